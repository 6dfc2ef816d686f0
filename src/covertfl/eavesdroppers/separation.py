"""Which trajectory a query belongs to.

Assumption E2 of the paper takes this as known.  Here the eavesdropper knows neither how many
trajectories there are nor which one a query belongs to: it compares a new query with the latest one
of each trajectory so far.  Two models that were initialised independently are about as far from
each other as each is from zero, and the steps of one trajectory are short in comparison.
"""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.kernels.weights import Vector

# A query farther than this from all trajectories, relative to its own norm, starts a new one.
NEW_FROM = 0.7


class Separator:
    """Assigns queries to trajectories, one by one, by the distance to the latest query of each."""

    def __init__(self) -> None:
        self._latest: list[Vector] = []

    def place(self, weights: Vector) -> tuple[int, float | None]:
        """Return the trajectory of a query, and its distance from the trajectory's previous query.

        Trajectories are numbered in the order in which they were first seen; at the first query of
        one the distance is None.
        """
        distances = [measure_distance(weights, latest) for latest in self._latest]
        length = measure_distance(weights, np.zeros_like(weights))
        if not distances or min(distances) > NEW_FROM * length:
            self._latest.append(weights)
            return len(self._latest) - 1, None
        nearest = int(np.argmin(distances))
        self._latest[nearest] = weights
        return nearest, distances[nearest]


def measure_distance(one: Vector, other: Vector) -> float:
    """Return the Euclidean distance, summed in double precision."""
    difference: FloatArray = one.astype(np.float64) - other
    # Not np.dot: for vectors of this length its threads cost more than they save.
    return math.sqrt(float(np.sum(difference * difference)))
