"""Forked processes: they end with the status of their work, and with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

PR_SET_PDEATHSIG = 1
# Seconds that processes have to end by themselves.
GRACE = 3.0


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
