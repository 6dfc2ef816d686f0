"""The distribution of arriving updates, in either form in which it is given.

`arrival_prob` and `arrival_size` are the paper's arrivals, all of one size; `arrival_sizes` has the
probability of each size in a round.  Both become a support, 0 for no arrival and then the sizes in
ascending order, and its probabilities.  A place in the support is the arrival index of policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.arguments import quote, read_count
from covertfl.errors import InvalidInput

FORMS = "give arrival_prob and arrival_size, or arrival_sizes"
SUM_TOLERANCE = 1e-9  # decimal probabilities rarely sum to exactly 1


def resolve_arrivals(prob: object, size: object, sizes: object) -> tuple[IntArray, FloatArray]:
    """Return support and probabilities of the arrivals, (A,) each; (A - 1) sizes and none first.

    Parameters
    ----------
    prob, size : probability of an arrival in a round, in (0, 1], and its size; None with `sizes`
    sizes : probability by size, the sum at most 1; None with the other two
    """
    if sizes is None:
        for name, value in (("arrival_prob", prob), ("arrival_size", size)):
            if value is None:
                raise InvalidInput(f"{name} is missing: {FORMS}")
        by_size = {read_count(size, "arrival_size"): _read_prob(prob, "arrival_prob")}
    elif prob is not None or size is not None:
        raise InvalidInput(f"arrival_sizes takes the place of the other two: {FORMS}")
    else:
        by_size = _read_sizes(sizes)
    support = np.array([0, *sorted(by_size)], dtype=np.int64)
    probs = np.array([0.0, *(by_size[number] for number in sorted(by_size))])
    total = math.fsum(probs)
    if total > 1.0 + SUM_TOLERANCE:
        raise InvalidInput(f"arrival_sizes must sum to at most 1, got {total:.10g}")
    probs /= max(total, 1.0)
    probs[0] = max(1.0 - total, 0.0)
    for values in (support, probs):
        values.setflags(write=False)
    return support, probs


def _read_prob(value: object, name: str) -> float:
    if not (isinstance(value, Real) and 0.0 < float(value) <= 1.0):
        raise InvalidInput(f"{name} must lie in (0, 1], got {quote(value)}")
    return float(value)


def _read_sizes(sizes: object) -> dict[int, float]:
    if not (isinstance(sizes, Mapping) and sizes):
        raise InvalidInput(f"arrival_sizes must have a probability by size, got {quote(sizes)}")
    return {
        read_count(size, "a size in arrival_sizes"): _read_prob(prob, f"arrival_sizes.{size}")
        for size, prob in sizes.items()
    }
