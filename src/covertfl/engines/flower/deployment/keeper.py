"""The keeper of a local federation: one process that all others are forked from, and end with.

What takes long is to start Python and to import Flower and PyTorch; the keeper does it once.  It
takes orders as lines of JSON on its standard input and tells of what began and ended on its
standard output.  When its input ends, because its owner is done or was killed, it ends all that it
has started, with all that these have started, and removes the federation's folder with the keys in
it.  Every process leads a group of its own, and is ended by the number of that group.

It is run as `python -m covertfl.engines.flower.deployment.keeper FOLDER [MODULE...]`.
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

from covertfl.engines.flower.deployment.fork import work_and_exit

# Imported before anything is forked.  Threads do not survive a fork, and none of these starts any.
PRELOADED = (
    "flwr.superlink.cli.flower_superlink",
    "flwr.supernode.cli.flower_supernode",
    "flwr.supernode.start_client_internal",
    "flwr.supernode.runtime.run_clientapp",
    "flwr.superlink.runtime.run_serverapp",
    "flwr.supercore.superexec.run_superexec",
    "covertfl.engines.flower.deployment.roles",
    "covertfl.training",
    "covertfl.kernels.choose",
    "torch",
    "sklearn.datasets",
)
# Seconds that processes have to end by themselves.
GRACE = 3.0
# Seconds between two looks at what has ended.
LOOK = 0.1


class Keeper:
    """Starts processes by fork, tells of their ends, and ends those that are left."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def keep(self) -> None:
        """Carry out orders until there are no more."""
        pending = b""
        while True:
            ready, _, _ = select.select([0], [], [], LOOK)
            self._look()
            if not ready:
                continue
            received = os.read(0, 65536)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                self._start(json.loads(line))

    def _start(self, order: Mapping[str, Any]) -> None:
        process = os.fork()
        if process == 0:
            become(order)
        with contextlib.suppress(OSError):  # the child may have been quicker
            os.setpgid(process, process)
        self._names[process] = order["name"]
        send_news({"started": order["name"], "process": process})

    def _look(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return
                name = self._names.pop(process, None)
                end_group(process, signal.SIGKILL)  # what it has started goes with it
                if name is not None:
                    code = os.waitstatus_to_exitcode(status)
                    send_news({"ended": name, "process": process, "status": code})

    def end_all(self) -> None:
        """End what is left: gently first, then by force."""
        for process in self._names:
            end_group(process, signal.SIGTERM)
        limit = time.monotonic() + GRACE
        while self._names and time.monotonic() < limit:
            time.sleep(LOOK / 2)
            self._look()
        for process in self._names:
            end_group(process, signal.SIGKILL)
        while self._names:
            time.sleep(LOOK / 2)
            self._look()


def end_group(process: int, number: int) -> None:
    """Send a signal to all processes of a group; none may be left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, number)


def send_news(news: Mapping[str, Any]) -> None:
    """Tell the owner; it may no longer be there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(news).encode() + b"\n")


def become(order: Mapping[str, Any]) -> NoReturn:
    """Turn this process, just forked, into what is ordered; does not return."""

    def work() -> None:
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

    work_and_exit(work)


def _redirect(log: str) -> None:
    """Write to a file, for its owner only, and read nothing."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(output)
    os.close(nothing)


def main() -> None:
    """Keep a federation; arguments are its folder and modules to import beside the usual ones."""
    folder, further = Path(sys.argv[1]), sys.argv[2:]

    def stop(_number: int, _frame: object) -> NoReturn:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner's business
    keeper = Keeper()
    try:
        for module in (*PRELOADED, *further):
            with contextlib.suppress(ImportError):  # clients may do without some of them
                importlib.import_module(module)
        send_news({"ready": os.getpid()})
        keeper.keep()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        keeper.end_all()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
