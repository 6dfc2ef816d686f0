"""Rights of an ordinary user, also where the tests run as root: root may write everywhere.

On Linux root owes that to two capabilities.  Without them the permissions of its own files hold for
it, too, while everything it needs to read, such as the installed packages, stays readable.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

VERSION = 0x20080522  # of the kernel's interface, with two words for each set of capabilities
OVERRIDE = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
EFFECTIVE = 0  # place of that set, before the permitted and the inheritable one


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Give up root's rights over files for a while; nothing changes for others."""
    if os.geteuid() != 0:
        yield
        return
    header, sets = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    _call("capget", header, sets)
    before = sets[EFFECTIVE]
    sets[EFFECTIVE] = before & ~OVERRIDE
    _call("capset", header, sets)
    try:
        yield
    finally:
        sets[EFFECTIVE] = before
        _call("capset", header, sets)


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name} failed")


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder and all that is in it read-only, and look at it as an ordinary user."""
    modes = {path: path.stat().st_mode for path in [folder, *folder.rglob("*")]}
    try:
        for path in modes:
            path.chmod(0o500 if path.is_dir() else 0o400)
        with as_ordinary_user():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
