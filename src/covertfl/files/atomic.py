"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from covertfl.errors import InvalidInput


def write_atomically(
    path: str | os.PathLike[str], content: str | bytes, *, mode: int | None = None
) -> None:
    """Write a file to a temporary name beside it and rename it into place.

    A crash or a full disk leaves the old file, if any, as it was.  A link stays a link to the file
    that is replaced, an old file keeps its permissions, and a device or a pipe is written to.

    Parameters
    ----------
    mode : permissions of a new file; what the system allows by default where None

    Raises
    ------
    InvalidInput
        naming the file, where it cannot be written
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        found = _find_mode(Path(path), mode)
        if stat.S_ISREG(found) or stat.S_ISDIR(found):
            _replace(Path(os.path.realpath(path)), data, stat.S_IMODE(found))
        else:
            Path(path).write_bytes(data)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error


def _find_mode(path: Path, wanted: int | None) -> int:
    """Kind and permissions of a file, of an ordinary new one if it is not there."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mode
    if wanted is not None:
        return stat.S_IFREG | wanted
    mask = os.umask(0)
    os.umask(mask)
    return stat.S_IFREG | 0o666 & ~mask


def _replace(target: Path, data: bytes, permissions: int) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(permissions)
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
