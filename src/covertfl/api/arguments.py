"""Checks of arguments: a wrong one is refused in a sentence that names it."""

from __future__ import annotations

import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.toml import shorten

Source = str | os.PathLike[str]
LONGEST_NAME = 255  # bytes, on every common file system


def read_path(value: Any, name: str) -> Path:
    """Return a path that was given as text or as a path."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidInput(f"{name} must be a path, got {value!r}")
    path = os.fspath(value)
    if not (isinstance(path, str) and path and "\0" not in path and _fits(Path(path))):
        raise InvalidInput(f"{name} must name a file or folder, got {shorten(path)}")
    return Path(path)


def _fits(path: Path) -> bool:
    """Return whether the system can encode a path, and none of its parts is too long for it."""
    try:
        return all(len(os.fsencode(part)) <= LONGEST_NAME for part in path.parts)
    except UnicodeError:
        return False


def read_count(value: Any, name: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def read_number(value: Any, name: str) -> float:
    """Return a number as a float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidInput(f"{name} must be a number, got {value!r}")
    return float(value)


def read_callback(value: Any, name: str) -> Any:
    """Return a callback, or a function that ignores its arguments where None is given."""
    if value is not None and not callable(value):
        raise InvalidInput(f"{name} must be callable, got {value!r}")
    return value or (lambda *_: None)
