"""Checks of arguments, which raise `InvalidInput` with what is allowed and what came."""

from __future__ import annotations

import math
import os
from numbers import Integral, Number, Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput

Source = str | os.PathLike[str]
LONGEST_NAME = 255  # bytes, on every common file system


def quote(value: object) -> str:
    """Return a value as quoted in messages: on one line and not too long."""
    text = str(value) if isinstance(value, Number) else repr(value)
    return " ".join(text.split())[:60]


def require_type(value: object, kind: type, name: str) -> None:
    """Raise `InvalidInput` unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be of type {kind.__name__}, got {quote(value)}")


def require_choice(value: object, choices: tuple[str, ...], name: str) -> None:
    """Raise `InvalidInput` unless `value` is one of the texts that are allowed."""
    if not (isinstance(value, str) and value in choices):
        allowed = f"one of {', '.join(choices)}" if len(choices) > 2 else " or ".join(choices)
        raise InvalidInput(f"{name} must be {allowed}, got {quote(value)}")


def read_number(value: object, name: str) -> float:
    """Return a number as a float, infinite if it is too large for one."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidInput(f"{name} must be a number, got {quote(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def require_number(value: object, name: str, *, above: bool = False) -> None:
    """Raise `InvalidInput` unless `value` is a finite number of at least, or above, 0."""
    number = read_number(value, name)
    if not (math.isfinite(number) and (number > 0.0 if above else number >= 0.0)):
        bound = "above 0" if above else "of at least 0"
        raise InvalidInput(f"{name} must be a finite number {bound}, got {number:g}")


def read_count(value: object, name: str, *, least: int = 1) -> int:
    """Return a whole number; raise `InvalidInput` unless it is at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise InvalidInput(f"{name} must be a whole number of at least {least}, got {quote(value)}")
    return int(value)


def read_path(value: object, name: str) -> Path:
    """Return a path that was given as text or as a path."""
    if not isinstance(value, str | os.PathLike):
        raise InvalidInput(f"{name} must be a path, got {quote(value)}")
    path = os.fspath(value)
    if not (isinstance(path, str) and path and "\0" not in path and _fits(Path(path))):
        raise InvalidInput(f"{name} must name a file or folder, got {quote(path)}")
    return Path(path)


def _fits(path: Path) -> bool:
    """Return whether the system can encode a path, and none of its parts is too long for it."""
    try:
        return all(len(os.fsencode(part)) <= LONGEST_NAME for part in path.parts)
    except UnicodeError:
        return False


def read_callback(value: Any, name: str) -> Any:
    """Return a callback, or a function that ignores its arguments where None is given."""
    if value is not None and not callable(value):
        raise InvalidInput(f"{name} must be callable, got {quote(value)}")
    return value or (lambda *_: None)


def read_numbers(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return a copy of `values` as an array of floats; raise `InvalidInput` if it is not one."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{name} must be numbers in rows of one length") from error


def describe_shape(array: npt.NDArray[np.generic]) -> str:
    """Return the shape of an array in words, for messages."""
    return " x ".join(map(str, array.shape)) if array.ndim else "a single number"
