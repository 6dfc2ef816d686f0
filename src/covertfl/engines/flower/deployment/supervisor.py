"""The supervisor of a local federation: the process that all others are forked from, and end with.

Starting Python and importing Flower and PyTorch takes long; the supervisor does it once.  It reads
orders as lines of JSON from its standard input and writes what has started and ended to its
standard output.  When its input is closed, because its owner is done or was killed, it ends all
processes it has started, with their descendants, and removes the federation's folder with the keys
in it.  Every process leads a process group of its own and is ended through that group.  If the
supervisor itself is killed, the kernel ends the others; if its owner is killed, too, the folder
remains until the same user starts another federation.

Run as `python -m covertfl.engines.flower.deployment.supervisor FOLDER [MODULE...]`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from covertfl.engines.flower.deployment.scratch import hold_folder
from covertfl.processes import GRACE, end_group, fork_and_run

# Imported before anything is forked.  Threads do not survive a fork, and none of these starts any.
PRELOADED = (
    "flwr.superlink.cli.flower_superlink",
    "flwr.supernode.cli.flower_supernode",
    "flwr.supernode.start_client_internal",
    "flwr.supernode.runtime.run_clientapp",
    "flwr.superlink.runtime.run_serverapp",
    "flwr.supercore.superexec.run_superexec",
    "covertfl.engines.flower.deployment.roles",
    "covertfl.flower",
    "covertfl.training",
    "covertfl.kernels.choose",
    "torch",
    "sklearn.datasets",
)
# Seconds between two checks for processes that have ended.
LOOK = 0.1


class Supervisor:
    """A parent process that starts others by fork, reports their ends, and ends the rest."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def serve(self) -> None:
        """Carry out orders until the input is closed."""
        pending = b""
        while True:
            ready, _, _ = select.select([0], [], [], LOOK)
            self._reap()
            if not ready:
                continue
            received = os.read(0, 65536)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                self._start(json.loads(line))

    def _start(self, order: Mapping[str, Any]) -> None:
        process = fork_and_run(lambda: carry_out(order))
        with contextlib.suppress(OSError):  # the child may have done it first
            os.setpgid(process, process)
        self._names[process] = order["name"]
        send_event({"started": order["name"], "process": process})

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return
                name = self._names.pop(process, None)
                end_group(process, signal.SIGKILL)  # its descendants end with it
                if name is not None:
                    code = os.waitstatus_to_exitcode(status)
                    send_event({"ended": name, "process": process, "status": code})

    def end_all(self) -> None:
        """End the remaining processes, with SIGTERM first and then with SIGKILL."""
        for process in self._names:
            end_group(process, signal.SIGTERM)
        limit = time.monotonic() + GRACE
        while self._names and time.monotonic() < limit:
            time.sleep(LOOK / 2)
            self._reap()
        for process in self._names:
            end_group(process, signal.SIGKILL)
        while self._names:
            time.sleep(LOOK / 2)
            self._reap()


def send_event(event: Mapping[str, Any]) -> None:
    """Write an event for the owner, which may have ended."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def carry_out(order: Mapping[str, Any]) -> None:
    """Run the ordered role in this process, which was just forked."""
    os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    _redirect(order["log"])
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.path[:0] = order["path"]
    sys.argv = [order["role"], *order["arguments"]]
    from covertfl.engines.flower.deployment.roles import ROLES

    ROLES[order["role"]](dict(order["settings"]))


def _redirect(log: str) -> None:
    """Send all output to a file that only its owner can read, and take no input."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)


def main() -> None:
    """Supervise a federation; the arguments are its folder and further modules to import."""
    folder, further = Path(sys.argv[1]), sys.argv[2:]

    def stop(_number: int, _frame: object) -> NoReturn:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the owner
    supervisor = Supervisor()
    held = hold_folder(folder)
    try:
        for module in (*PRELOADED, *further):
            with contextlib.suppress(ImportError):  # some of them are optional
                importlib.import_module(module)
        send_event({"ready": os.getpid()})
        supervisor.serve()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        supervisor.end_all()
        shutil.rmtree(folder, ignore_errors=True)
        held.close()


if __name__ == "__main__":
    main()
