"""Numbers over seeds as results store them: a mean or share with its 95% interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.intervals import t_interval, wilson_interval

DIGITS = 5


def average(values: Sequence[float], *, most: float | None = None) -> dict[str, Any]:
    """Return the mean over seeds and its Student t interval, None for a single seed.

    If `most` is given, values lie in [0, most] and the interval is cut to it.
    """
    if len(values) < 2:
        return {"mean": round(float(values[0]), DIGITS), "interval": None}
    mean, low, high = (round(number, DIGITS) for number in t_interval(values))
    if most is not None:
        low, high = max(low, 0.0), min(high, most)
    return {"mean": mean, "interval": [low, high]}


def share(successes: Sequence[float]) -> dict[str, Any]:
    """Return the share of successes and its Wilson interval; an entry of 0.5 counts half."""
    total = float(np.sum(successes))
    low, high = wilson_interval(total, len(successes))
    ends = [round(float(low), DIGITS), round(float(high), DIGITS)]
    return {"mean": round(total / len(successes), DIGITS), "interval": ends}


def round_curve(values: Sequence[float] | FloatArray) -> list[float]:
    """Round a curve as results store it."""
    return [round(float(value), DIGITS) for value in values]


def band(curves: Sequence[Sequence[float]] | FloatArray) -> dict[str, Any]:
    """Return the mean of (runs, n) curves over runs and its t interval, point by point."""
    values = np.array(curves)
    if len(values) < 2:
        only = round_curve(values[0])
        return {"mean": only, "low": only, "high": only}
    means, lows, highs = zip(*(t_interval(column) for column in values.T), strict=True)
    return {"mean": round_curve(means), "low": round_curve(lows), "high": round_curve(highs)}
