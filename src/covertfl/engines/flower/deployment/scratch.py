"""Temporary folders of federations, in use as long as one of a federation's processes lives.

A process that uses a folder holds a shared lock on a file in it, which the kernel releases when the
process ends, however it ends; forks hold it, too.  A folder that nobody holds was left behind by
processes that were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

PREFIX = "covertfl-"
LOCK = "in-use"


def make_scratch_folder() -> tuple[Path, IO[bytes]]:
    """Return a new folder that only its owner can read, and the file that holds it while open."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        # Another process may have removed it as left behind.
        with contextlib.suppress(FileNotFoundError):
            return folder, hold_folder(folder)


def hold_folder(folder: Path) -> IO[bytes]:
    """Hold a folder until the returned file is closed in this process and in its forks.

    Raises
    ------
    FileNotFoundError
        if the folder does not exist any more
    """
    path = folder / LOCK
    stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
    try:
        fcntl.flock(stream, fcntl.LOCK_SH)
        path.stat()
    except BaseException:
        stream.close()
        raise
    return stream


def remove_abandoned_folders() -> None:
    """Remove the folders of this user's federations whose processes have all ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # in use, or somebody else removes it
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Remove a folder unless it is held, or never was; raise OSError in these cases."""
    with os.fdopen(os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW), "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
