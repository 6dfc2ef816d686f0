"""Rights of an ordinary user, also where the tests run as root: root may write everywhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def as_ordinary_user() -> Iterator[None]:
    """Give up root's rights for a while; nothing changes for others."""
    if os.geteuid() != 0:
        yield
        return
    group = os.getegid()
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that an ordinary user owns and can reach, which pytest's own are not."""
    with as_ordinary_user():
        folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        yield folder
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


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
