"""Numbers over seeds as results store them: a mean or share with its 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from covertfl.arrays import FloatArray
from covertfl.intervals import t_interval, wilson_interval

DIGITS = 5
# Runs from which on means of values with two levels are resampled: with fewer the interval is
# shorter than Student's and misses more often, also a normal variable.
FEWEST_RESAMPLED = 50
RESAMPLING_SEED = 21
FEWEST_SLOPE = 4  # runs, below which no slope is fitted


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


def average_levels(values: Sequence[float], *, most: float | None = None) -> dict[str, Any]:
    """Return the mean over seeds of values that may have two levels, with a resampled interval.

    With fewer than `FEWEST_RESAMPLED` seeds it is Student's.
    """
    if len(values) < FEWEST_RESAMPLED:
        return average(values, most=most)
    ends = resampled_interval(values, generator=np.random.default_rng(RESAMPLING_SEED))
    return {"mean": round(float(np.mean(values)), DIGITS), "interval": round_curve(np.array(ends))}


def resampled_interval(
    values: npt.ArrayLike,
    *,
    generator: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[FloatArray, FloatArray]:
    """Return low and high end of the percentile bootstrap interval for means of n runs.

    Unlike Student's t it follows a skewed distribution, as of values that have two levels; with
    few runs it is too short.

    Parameters
    ----------
    values : (n,) one finite number per run, or (n, m) for m means of the same runs, n at least 2
    generator : chooses the runs of each resample
    confidence : nominal coverage, strictly between 0 and 1
    """
    numbers = np.asarray(values, dtype=np.float64)
    n, tail = len(numbers), (1.0 - confidence) / 2.0
    counts = generator.multinomial(n, np.full(n, 1.0 / n), size=resamples)
    low, high = np.quantile(counts @ numbers / n, [tail, 1.0 - tail], axis=0)
    return low, high


def average_estimate(
    accuracies: Sequence[float] | FloatArray,
    named: Sequence[float] | FloatArray,
    expected: Sequence[float] | FloatArray,
    learner: Sequence[float] | FloatArray,
) -> dict[str, Any]:
    """Return the expected accuracy of the eavesdropper's estimate, and the mean `measured`.

    An accuracy x has two levels: the truth's if it is named, the decoy's otherwise.  How often the
    truth is named in some runs is luck; its probability is known exactly.  Hence the mean is that
    of x - b (named - expected), with b the slope of x on `named`.  If the probability is the same
    for all runs, this is the sum of both levels' means, weighted by the exact probabilities.  The
    interval is Student's, with the variance of the same sum; that of the truth's level is taken
    from the learner of all runs, because few may be named.

    Parameters
    ----------
    accuracies : (n,) of the final estimate
    named : (n,) 1 if it is the true trajectory, 0.5 in a tie, 0 otherwise
    expected : (n,) exact expectation of `named` with each run's policy
    learner : (n,) of the true weights, the level of the truth if no run shows it; if no run shows
        the decoy's level, the low end assumes zero for it

    The mean of a single run, or of two or three that show both levels, is not corrected.
    """
    x, seen, exact, true = (
        np.asarray(each, dtype=np.float64) for each in (accuracies, named, expected, learner)
    )
    n, prob, count, luck = len(x), float(exact.mean()), float(seen.sum()), seen - exact
    measured = {"measured": round(float(x.mean()), DIGITS)}
    is_mixed = bool(seen.min() < seen.max())
    if n < (FEWEST_SLOPE if is_mixed else 2) or not luck.any():
        return average(x.tolist(), most=1.0) | measured
    if is_mixed:
        slope = float(np.cov(x, seen)[0, 1] / seen.var(ddof=1))
        mean = float(x.mean() - slope * luck.mean())
        decoys = x[seen == 0.0] if np.count_nonzero(seen == 0.0) > 1 else x - slope * seen
        variance = prob**2 * true.var(ddof=1) / count
        variance += (1.0 - prob) ** 2 * decoys.var(ddof=1) / (n - count)
        variance += slope**2 * exact.var(ddof=1) / n
        half = -float(stdtrit(n - 2, 0.025)) * math.sqrt(variance)
        low, high = mean - half, mean + half
    elif count < n:
        mean, low, high = t_interval(x - luck / (1.0 - seen) * (true - x))
    else:
        mean, low, high = t_interval(x)
        low *= prob
    ends = round_curve([max(low, 0.0), min(high, 1.0)])
    return {"mean": round(mean, DIGITS), "interval": ends, **measured}


def share(successes: Sequence[float]) -> dict[str, Any]:
    """Return the share of successes and its Wilson interval; an entry of 0.5 counts half."""
    total = float(np.sum(successes))
    low, high = wilson_interval(total, len(successes))
    ends = [round(float(low), DIGITS), round(float(high), DIGITS)]
    return {"mean": round(total / len(successes), DIGITS), "interval": ends}


def round_curve(values: Sequence[float] | FloatArray) -> list[float]:
    """Round a curve as results store it."""
    return [round(float(value), DIGITS) for value in values]


def band(
    curves: Sequence[Sequence[float]] | FloatArray, *, two_levels: bool = False
) -> dict[str, Any]:
    """Return the mean of (runs, n) curves over runs and its t interval, point by point.

    If points may have `two_levels`, intervals are as in `average_levels`.
    """
    values = np.array(curves)
    if len(values) < 2:
        only = round_curve(values[0])
        return {"mean": only, "low": only, "high": only}
    if two_levels and len(values) >= FEWEST_RESAMPLED:
        ends = resampled_interval(values, generator=np.random.default_rng(RESAMPLING_SEED))
        low, high = map(round_curve, ends)
        return {"mean": round_curve(values.mean(axis=0)), "low": low, "high": high}
    means, lows, highs = zip(*(t_interval(column) for column in values.T), strict=True)
    return {"mean": round_curve(means), "low": round_curve(lows), "high": round_curve(highs)}
