"""The owner's side of a supervisor: start processes, see which have ended, end all of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from covertfl.errors import NoSolution
from covertfl.processes import GRACE, ChildProcess, end_group

SUPERVISOR = "covertfl.engines.flower.deployment.supervisor"
# Seconds that the supervisor has to import what all processes need, and to start one of them.
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
    """A federation that could not be started, or broke down."""


class SupervisedProcesses:
    """Processes by name, all forked from one supervisor.

    Parameters
    ----------
    folder : of the federation, removed at the end; logs are `NAME.log` in it
    preloaded : modules that all processes have imported, in addition to the usual ones
    """

    def __init__(self, folder: Path, preloaded: Sequence[str] = ()) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._running: dict[str, int] = {}
        self._ended: dict[str, int] = {}
        self._started: set[int] = set()  # what the supervisor has started and not seen ending
        self._is_ready = self._is_gone = False
        (folder / "homes").mkdir(mode=0o700)
        path = os.pathsep.join(entry for entry in sys.path if entry)
        log = os.open(folder / "supervisor.log", os.O_WRONLY | os.O_CREAT, 0o600)
        self._supervisor = ChildProcess(
            *(SUPERVISOR, str(folder), *preloaded),
            environment=os.environ | {"PYTHONPATH": path} | ENVIRONMENT,
            folder=folder,
            errors=log,
        )
        os.close(log)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for event in self._supervisor.receive():
            with self._changed:
                if "ready" in event:
                    self._is_ready = True
                elif "started" in event:
                    self._ended.pop(event["started"], None)
                    self._running[event["started"]] = event["process"]
                    self._started.add(event["process"])
                else:
                    self._running.pop(event["ended"], None)
                    self._started.discard(event["process"])
                    self._ended[event["ended"]] = event["status"]
                self._changed.notify_all()
        with self._changed:
            self._is_gone = True
            self._running.clear()  # they end with the supervisor
            self._changed.notify_all()

    def start(
        self,
        name: str,
        role: str,
        arguments: Sequence[str] = (),
        *,
        settings: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        path: Sequence[str] = (),
    ) -> None:
        """Start a process under a name that no running process has.

        Parameters
        ----------
        role : one of `roles.ROLES`, with the arguments of its command and its settings
        environment : variables in addition to the supervisor's
        path : folders that it imports from before all others

        Raises
        ------
        DeploymentFailed
            if it does not start in time
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
            "log": str(self._find_log(name)),
        }
        assert name not in self._running
        self._wait(lambda: self._is_ready, "the supervisor of the federation")
        with self._changed:
            self._ended.pop(name, None)  # an earlier process of that name
        self._supervisor.send(order)
        self._wait(lambda: name in self._running or name in self._ended, name)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        with self._changed:
            is_in_time = self._changed.wait_for(lambda: is_so() or self._is_gone, START_LIMIT)
            if not is_in_time or self._is_gone:
                raise DeploymentFailed(f"{what} did not start: {self.quote('supervisor')}")

    @property
    def running(self) -> dict[str, int]:
        """Process IDs of the running processes, by name."""
        with self._changed:
            return dict(self._running)

    def end(self, name: str, number: int = signal.SIGTERM) -> int:
        """End a process and its descendants with a signal, and return its exit status."""
        with self._changed:
            process = self._running.get(name)
            if process is None:
                return self._ended[name]
        end_group(process, number)
        with self._changed:
            if not self._wait_for_end(name, GRACE + 3.0):
                end_group(process, signal.SIGKILL)
                self._wait_for_end(name, GRACE)
            return self._ended.get(name, -1)

    def _wait_for_end(self, name: str, limit: float) -> bool:
        return self._changed.wait_for(lambda: name in self._ended or self._is_gone, limit)

    def _find_log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def read_log(self, name: str) -> str:
        """Return what a process has written so far."""
        try:
            return self._find_log(name).read_text("utf-8", errors="replace")
        except OSError:
            return ""

    def quote(self, name: str) -> str:
        """Return the last lines of a log in one line, for a message."""
        written = [line.strip() for line in self.read_log(name).splitlines() if line.strip()]
        return " / ".join(written[-6:]) or "it wrote nothing"

    def close(self) -> None:
        """End everything; the supervisor removes the folder."""
        groups = [self._supervisor.number, *self._started]
        self._supervisor.close(GRACE + 7.0)
        # Nothing is left of what the supervisor ended; if it was killed itself, everything is.
        for group in groups:
            end_group(group, signal.SIGKILL)
        self._reader.join(GRACE)
        self._supervisor.close_output()


def wait_until(is_so: Callable[[], bool], limit: float) -> bool:
    """Wait for a condition and return whether it held within the limit, in seconds."""
    end = time.monotonic() + limit
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
