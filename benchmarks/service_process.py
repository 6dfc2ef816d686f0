"""A service in processes of its own, to be measured: started, asked, looked at, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurement import end_tree, list_tree

from covertfl.service.client import NoAnswer, Service, find_service

START_SECONDS, END_SECONDS = 120.0, 60.0
# The queue of the README's problem file: 25 rounds are promised, and reached within thousands.
QUEUE = """
[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]

[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, charged = "always" }

[queue]
arrival_prob   = 0.05
arrival_size   = 4
learning_limit = 3.0
"""


@dataclass(frozen=True)
class ServiceProcess:
    """A running service.

    Parameters
    ----------
    folder : of the service
    process : that plays the rounds; the HTTP interface is its child
    """

    folder: Path
    process: int
    service: Service

    def read_status(self) -> dict[str, Any]:
        """Return the JSON of /status."""
        status: dict[str, Any] = self.service.get("/status")
        return status

    def measure_memory(self) -> tuple[int, int]:
        """Return the resident memory, in bytes, of the rounds and of the HTTP interface."""
        rounds, *others = (_read_memory(process) for process in list_tree(self.process))
        return rounds, sum(others)


def _read_memory(process: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def write_service_file(path: Path, *, round_seconds: float, seed: int = 0) -> Path:
    """Write the file of a service on a free port of this machine, and return its path."""
    text = f'task = "toxicity"\nseed = {seed}\n\n[federation]\nclients = 20\n{QUEUE}\n[service]\n'
    path.write_text(f'{text}listen = "127.0.0.1:0"\nround_seconds = {round_seconds}\n', "utf-8")
    return path


@contextlib.contextmanager
def running_service(file: Path, folder: Path) -> Iterator[ServiceProcess]:
    """Run a service until the end of the block; it ends after its round."""
    environment: Mapping[str, str] = {**os.environ, "XDG_STATE_HOME": str(folder.parent / "state")}
    command = [sys.executable, "-m", "covertfl", "serve", str(file), "--out", str(folder)]
    with (
        (folder.parent / f"{folder.name}.log").open("wb") as log,
        subprocess.Popen(command, env=environment, stderr=log) as running,
    ):
        try:
            yield ServiceProcess(folder, running.pid, _await_start(folder, running))
            running.send_signal(signal.SIGTERM)
            if running.wait(END_SECONDS) != 0:
                raise RuntimeError(f"{' '.join(command)} has failed: see {log.name}")
        finally:
            if running.poll() is None:
                end_tree(running.pid)


def _await_start(folder: Path, running: subprocess.Popen[bytes]) -> Service:
    """Return the service when its first round has been played."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and running.poll() is None:
        if (folder / "address").exists():
            found = find_service(str(folder))
            with contextlib.suppress(NoAnswer):
                if found.get("/status")["round"] > 0:
                    return found
        time.sleep(0.1)
    raise RuntimeError(f"the service in {folder} has not started")
