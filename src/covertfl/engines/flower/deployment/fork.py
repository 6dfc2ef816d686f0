"""The end of a forked process: with the status of its work, without its parent's clean-up."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn


def run_and_exit(work: Callable[[], None]) -> NoReturn:
    """Do the work of this process, which was just forked, and end it."""
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
