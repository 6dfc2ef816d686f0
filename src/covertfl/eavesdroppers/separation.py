"""Telling trajectories apart: which query belongs to which (assumption E2, made real).

Nobody tells an eavesdropper how many trajectories there are or which one a query belongs to.  It
compares a new query with the latest of each trajectory so far.  Two models that were initialised
apart are far from each other, about as far as each is from nought, while the steps of one
trajectory are short beside that.
"""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.kernels.weights import Vector

# A query further than this from all trajectories, in units of its own length, begins a new one.
NEW_FROM = 0.7


class Separator:
    """Names the trajectory of each query, one by one; it remembers the latest query of each."""

    def __init__(self) -> None:
        self._latest: list[Vector] = []

    def assign(self, weights: Vector) -> int:
        """The trajectory of a query, 0, 1, ... in the order in which they were first seen.

        Parameters
        ----------
        weights : (P,) that were sent
        """
        return self.place(weights)[0]

    def place(self, weights: Vector) -> tuple[int, float | None]:
        """The trajectory of a query and how far it has moved, None at its first query."""
        distances = [measure_distance(weights, latest) for latest in self._latest]
        length = measure_distance(weights, np.zeros_like(weights))
        if not distances or min(distances) > NEW_FROM * length:
            self._latest.append(weights)
            return len(self._latest) - 1, None
        nearest = int(np.argmin(distances))
        self._latest[nearest] = weights
        return nearest, distances[nearest]


def measure_distance(one: Vector, other: Vector) -> float:
    """Euclidean distance, summed in double precision."""
    difference: FloatArray = one.astype(np.float64) - other
    # Not by a product of vectors: for these lengths its threads cost more than they save.
    return math.sqrt(float(np.sum(difference * difference)))
