"""Reading regular files, and refusing everything else that a name may stand for.

Opening a pipe waits until somebody writes to it, which may be never.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from covertfl.errors import InvalidInput

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def require_regular(path: str | os.PathLike[str], what: str) -> None:
    """Raise InvalidInput if a path, or what it links to, is not a regular file.

    Parameters
    ----------
    what : kind of file in messages, such as "a problem file"
    """
    name = os.fspath(path)
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError as error:
        raise InvalidInput(f"{name}: no such file, {what} is needed") from error
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror or error}") from error
    if stat.S_ISDIR(mode):
        raise InvalidInput(f"{name}: cannot be read: Is a directory")
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "something else")
        raise InvalidInput(f"{name}: cannot be read: it must be a regular file, got {kind}")


def read_bytes(path: str | os.PathLike[str], what: str) -> bytes:
    """Return the content of a regular file; `what` as in `require_regular`."""
    require_regular(path, what)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{os.fspath(path)}: cannot be read: {error.strerror or error}"
        ) from error
