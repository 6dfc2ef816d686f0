"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from covertfl.errors import InvalidInput


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file to a temporary name beside it and rename it into place.

    A crash or a full disk leaves the old file, if any, as it was.

    Raises
    ------
    InvalidInput
        naming the file, where it cannot be written
    """
    target = Path(path)
    data = content.encode() if isinstance(content, str) else content
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o666 & ~_current_umask())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(f"{target} cannot be written: {error.strerror or error}") from error


def _current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
