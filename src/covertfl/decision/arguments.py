"""Checks of arguments, which raise `InvalidInput` with what is allowed and what came."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput


def require_type(value: object, kind: type, name: str) -> None:
    """Raise `InvalidInput` unless `value` is an instance of `kind`."""
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be of type {kind.__name__}, got {value!r:.60}")


def require_number(value: object, name: str, *, low: float = 0.0) -> None:
    """Raise `InvalidInput` unless `value` is a finite number of at least `low`."""
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= low):
        came = f"{number:g}" if isinstance(value, Real) else f"{value!r:.60}"
        raise InvalidInput(f"{name} must be a finite number of at least {low:g}, got {came}")


def require_count(value: object, name: str) -> None:
    """Raise `InvalidInput` unless `value` is a whole number of at least 1."""
    if not (isinstance(value, Integral) and int(value) >= 1):
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value!s:.60}")


def read_numbers(values: npt.ArrayLike, name: str) -> FloatArray:
    """Return a copy of `values` as an array of floats; raise `InvalidInput` if it is not one."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{name} must be numbers in rows of one length") from error


def describe_shape(array: npt.NDArray[np.generic]) -> str:
    """Return the shape of an array in words, for messages."""
    return " x ".join(map(str, array.shape)) if array.ndim else "a single number"
