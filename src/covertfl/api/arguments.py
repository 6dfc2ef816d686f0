"""Checks of arguments: a wrong one is refused in a sentence that names it."""

from __future__ import annotations

import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput

Source = str | os.PathLike[str]


def read_path(value: Any, name: str) -> Path:
    """Return a path that was given as text or as a path."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidInput(f"{name} must be a path, got {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidInput(f"{name} must name a file or folder, got {path!r}")
    return Path(path)


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
