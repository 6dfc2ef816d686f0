"""Equality of problems, number by number."""

from __future__ import annotations

import numpy as np

from covertfl.decision.problem import FiniteHorizon, QueueProblem


def same_problem(one: FiniteHorizon | QueueProblem, other: FiniteHorizon | QueueProblem) -> bool:
    """Whether two problems agree in every number."""
    left, right = vars(one) | vars(one.oracle), vars(other) | vars(other.oracle)
    del left["oracle"], right["oracle"]
    return left.keys() == right.keys() and all(
        np.array_equal(left[key], right[key]) if isinstance(left[key], np.ndarray)
        else left[key] == right[key]
        for key in left
    )  # fmt: skip
