"""Telling trajectories apart: which query belongs to which (assumption E2, made real).

Nobody tells an eavesdropper how many trajectories there are or which one a query belongs to.  It
compares a new query with the latest of each trajectory so far.  Two models that were initialised
apart are far from each other, about as far as each is from nought, while the steps of one
trajectory are short beside that.
"""

from __future__ import annotations

import numpy as np

from covertfl.oracle import FloatArray
from covertfl.weights import Vector

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
        distances = [_distance(weights, latest) for latest in self._latest]
        length = float(np.linalg.norm(weights.astype(np.float64)))
        if not distances or min(distances) > NEW_FROM * length:
            self._latest.append(weights)
            return len(self._latest) - 1
        nearest = int(np.argmin(distances))
        self._latest[nearest] = weights
        return nearest


def _distance(one: Vector, other: Vector) -> float:
    difference: FloatArray = one.astype(np.float64) - other.astype(np.float64)
    return float(np.linalg.norm(difference))
