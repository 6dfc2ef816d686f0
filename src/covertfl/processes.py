"""Processes that this one starts or forks and that end with it, and signals that end this one."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
# Seconds that processes have to end by themselves.
GRACE = 3.0


class ChildProcess:
    """A module that runs as a process of its own and is spoken to in lines of JSON.

    It must end when its standard input ends, so that it also ends if this process is killed.
    Ctrl-C does not reach it: its owner ends it in order.

    Parameters
    ----------
    module : run with `python -m`
    environment, folder : of the process, None for those of this one
    errors : receives standard error: a file descriptor, or subprocess.PIPE
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        errors: int = subprocess.PIPE,
    ) -> None:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self.errors = self._process.stderr

    @property
    def number(self) -> int:
        """The number of the process, and of the group that it leads."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a line; one that has ended already shows that in what it answers."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(json.dumps(message) + "\n")
            self._input.flush()

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that it writes, until it has ended."""
        yield from map(json.loads, self._output)

    def find_status(self) -> int | None:
        """Return its exit status, None as long as it runs."""
        return self._process.poll()

    def close(self, limit: float) -> None:
        """End it, by force after some seconds, and wait for its end."""
        with contextlib.suppress(OSError):
            self._input.close()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close_output(self) -> None:
        """Close what it has written to, once nobody reads it any more."""
        self._output.close()
        if self.errors is not None:
            self.errors.close()


@contextlib.contextmanager
def handling_signals(handle: Callable[[int], None], *numbers: signal.Signals) -> Iterator[None]:
    """Call a function with the number of a signal that comes; only the main thread can do so."""
    with contextlib.ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            for number in numbers:
                before = signal.signal(number, lambda came, _frame: handle(came))
                stack.callback(signal.signal, number, before)
        yield


def fork_and_run(work: Callable[[], None]) -> int:
    """Do some work in a fork of this process and return the fork's process ID.

    The fork does not run its parent's exit handlers.  On Linux it is killed when the thread that
    calls this function ends, for whatever reason.
    """
    parent = os.getpid()
    process = os.fork()
    if process == 0:
        end_with_parent(parent)
        _run_and_exit(work)
    return process


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; a change of user revokes that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)


def end_group(process: int, number: int) -> None:
    """Send a signal to all processes of a group, which may have ended already."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, number)


def _run_and_exit(work: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        work()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
