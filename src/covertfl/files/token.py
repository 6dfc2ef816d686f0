"""The token of an owner: the file that holds it, and the header of a request that shows it."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.files.text import read_text


def make_token(path: Path) -> str:
    """Return the token in a file, which is made if there is none, for its owner's eyes alone.

    Raises
    ------
    InvalidInput
        if others can read the file, or it holds no token
    """
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise InvalidInput(
                f"{path} must be readable by its owner alone (mode 600), got mode {mode:o}"
            ) from None
        return read_token(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_token(path)


def read_token(path: Path) -> str:
    """Return the token in a file; raise InvalidInput if there is none."""
    return check_token(read_text(path, "the token of a service").strip(), str(path))


def check_token(token: str, name: str) -> str:
    """Return a token; raise InvalidInput, which calls it `name`, if it is none."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{20,200}", token):
        raise InvalidInput(f"{name} must be a token of at least 20 letters, digits, - and _")
    return token


def shows_token(headers: Iterable[tuple[bytes, bytes]], token: str) -> bool:
    """Return whether a request shows a token, in exactly one header `Authorization: Bearer ...`.

    Parameters
    ----------
    headers : names in lower case
    """
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, shown = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    is_same = hmac.compare_digest(shown.strip(), token.encode())
    return is_same and scheme.lower() == b"bearer"
