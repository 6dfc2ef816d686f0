"""The owner's side of a keeper: start processes, see which have ended, end all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from covertfl.engines.flower.deployment.keeper import GRACE, end_group
from covertfl.errors import NoSolution

KEEPER = "covertfl.engines.flower.deployment.keeper"
# Seconds that the keeper has to import what all processes need, and to start one of them.
START_LIMIT = 120.0
# One thread each: a federation on one machine has more processes than there are cores.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


class DeploymentFailed(NoSolution):
    """A federation that could not be brought up, or broke down."""


class KeptProcesses:
    """Processes by name, all forked from one keeper.

    Parameters
    ----------
    folder : of the federation, removed at the end; logs are `NAME.log` in it
    preloaded : modules that all processes have imported, beside the usual ones
    """

    def __init__(self, folder: Path, preloaded: Sequence[str] = ()) -> None:
        self._folder = folder
        self._news = threading.Condition()
        self._running: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._ready = self._gone = False
        (folder / "homes").mkdir(mode=0o700)
        log = os.open(folder / "keeper.log", os.O_WRONLY | os.O_CREAT, 0o600)
        self._keeper: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", KEEPER, folder, *preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_inherit_path() | ENVIRONMENT,
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for the owner, who ends them in order
        )
        os.close(log)
        assert self._keeper.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._keeper.stdout,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            news = json.loads(line)
            with self._news:
                if "ready" in news:
                    self._ready = True
                elif "started" in news:
                    self._ended.pop(news["started"], None)
                    self._running[news["started"]] = news["process"]
                else:
                    self._running.pop(news["ended"], None)
                    self._ended[news["ended"]] = news["status"]
                self._news.notify_all()
        with self._news:
            self._gone = True
            self._news.notify_all()

    def start(
        self,
        name: str,
        role: str,
        arguments: Sequence[str] = (),
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        path: Sequence[str] = (),
    ) -> int:
        """Start a process; gives its number.

        Parameters
        ----------
        name : that no running process has
        role : one of `deployment_roles.ROLES`
        arguments : of the role's command
        settings : of the role
        environment : what it has beyond the keeper's
        path : folders that it imports from before all others
        """
        home = self._folder / "homes" / name
        home.mkdir(mode=0o700, exist_ok=True)
        order = {
            "name": name,
            "role": role,
            "arguments": list(arguments),
            "settings": dict(settings or {}),
            "environment": {"FLWR_HOME": str(home)} | dict(environment or {}),
            "path": list(path),
            "folder": str(home),
            "log": str(self.find_log(name)),
        }
        assert name not in self._running
        self._wait(lambda: self._ready, "the keeper of the federation")
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()
        self._wait(lambda: name in self._running or name in self._ended, name)
        with self._news:
            return self._running.get(name, -1)

    def _wait(self, is_so: Any, what: str, limit: float = START_LIMIT) -> None:
        with self._news:
            if not self._news.wait_for(lambda: is_so() or self._gone, limit) or self._gone:
                raise DeploymentFailed(f"{what} did not start: {self.quote('keeper')}")

    def is_running(self, name: str) -> bool:
        """Whether a process has been started and has not ended."""
        with self._news:
            return name in self._running

    def find_process(self, name: str) -> int:
        """The number of a running process."""
        with self._news:
            return self._running[name]

    @property
    def numbers(self) -> list[int]:
        """The numbers of all running processes, the keeper's first."""
        with self._news:
            return [self._keeper.pid, *self._running.values()]

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """End a process and what it has started; gives its exit status."""
        with self._news:
            process = self._running.get(name)
            if process is None:
                return self._ended[name]
        end_group(process, number)
        with self._news:
            if not self._news.wait_for(lambda: name in self._ended or self._gone, GRACE + 3.0):
                end_group(process, signal.SIGKILL)
                self._news.wait_for(lambda: name in self._ended or self._gone, GRACE)
            return self._ended.get(name, -1)

    def find_log(self, name: str) -> Path:
        """The file that a process writes to."""
        return self._folder / f"{name}.log"

    def read_log(self, name: str) -> str:
        """What a process has written so far."""
        try:
            return self.find_log(name).read_text("utf-8", errors="replace")
        except OSError:
            return ""

    def quote(self, name: str, lines: int = 6) -> str:
        """The last lines of a log in one line."""
        written = [line.strip() for line in self.read_log(name).splitlines() if line.strip()]
        return " / ".join(written[-lines:]) or "it wrote nothing"

    def close(self) -> None:
        """End everything; the keeper removes the folder."""
        numbers = self.numbers
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(GRACE + 7.0)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        # Nothing is left of what the keeper has ended; all is, should the keeper have been killed.
        for number in numbers:
            end_group(number, signal.SIGKILL)
        self._reader.join(GRACE)
        assert self._keeper.stdout is not None
        self._keeper.stdout.close()


def wait_until(is_so: Any, limit: float, *, every: float = 0.1) -> bool:
    """Ask again and again until it is so; gives whether it became so within the limit."""
    end = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(every)
    return True


def _inherit_path() -> dict[str, str]:
    """The environment with this process's way to find modules."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}
