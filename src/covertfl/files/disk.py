"""Files as bytes: read only if they are regular files, and written whole or not at all."""

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
    """Write a file under a temporary name in the same folder and rename it.

    After a crash or with a full disk the old file, if any, is unchanged.  A symbolic link remains,
    and the file it points to is replaced; a device or a pipe is written to directly.

    Parameters
    ----------
    content : text (written as UTF-8) or bytes
    mode : permissions of the file, also of an existing one; None for those of the existing one, or
        the system's default
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
    """Return the type and permissions of a file, or of a regular one if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat().st_mode
        if wanted is None or not stat.S_ISREG(found):
            return found
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
