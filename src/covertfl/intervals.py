"""Confidence intervals: Wilson's for probabilities, Student's t and resampling for means.

The default confidence is 95%.  A Wilson interval contains every probability p that the score test
does not reject, so it stays within [0, 1] and is useful even with no or only successes.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput


def _tail(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise InvalidInput(f"confidence must lie between 0 and 1, got {confidence:g}")
    return (1.0 - confidence) / 2.0


def wilson_interval(
    successes: npt.ArrayLike, trials: npt.ArrayLike, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Return the low and high end, in [0, 1], of Wilson's interval for the probability of success.

    They solve (s - n p)^2 = z^2 n p (1 - p) for p.

    Parameters
    ----------
    successes : any shape, in 0 .. trials (s)
    trials : a shape that broadcasts with it, at least 0 (n); with 0 trials the interval is (0, 1)
    confidence : nominal coverage, strictly between 0 and 1
    """
    s, n = np.broadcast_arrays(
        np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    )
    wrong = np.argwhere(~((s >= 0.0) & (s <= n) & np.isfinite(n)))
    if len(wrong):
        index = tuple(wrong[0])
        raise InvalidInput(f"successes must lie in 0..trials, got {s[index]:g} of {n[index]:g}")
    z = -NormalDist().inv_cdf(_tail(confidence))
    spread = z * np.sqrt(s * (n - s) / np.maximum(n, 1.0) + z * z / 4.0)
    middle = s + z * z / 2.0
    # Set the ends exactly, where rounding errors could exclude 0 or 1.
    low = np.where(s == 0.0, 0.0, (middle - spread) / (n + z * z))
    high = np.where(s == n, 1.0, (middle + spread) / (n + z * z))
    return low, high


def t_interval(values: npt.ArrayLike, *, confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the mean of independent runs, and low and high end of Student's t interval for it.

    Parameters
    ----------
    values : (n,) one finite number per seed, n at least 2
    confidence : nominal coverage, strictly between 0 and 1
    """
    from scipy.special import stdtrit

    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) < 2:
        raise InvalidInput(f"values must be a list of at least 2 numbers, got {numbers.size}")
    if not np.all(np.isfinite(numbers)):
        raise InvalidInput("values must be finite numbers")
    mean = float(numbers.mean())
    standard_error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    half = -float(stdtrit(len(numbers) - 1, _tail(confidence))) * standard_error
    return mean, mean - half, mean + half
