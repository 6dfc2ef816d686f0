"""By trajectory: the shape of its steps.

An average over many clients moves more smoothly than what a server trains on a single data set:
successive steps of the true trajectory point in more similar directions, and their lengths vary
less.
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax

# Log-odds for a difference of 1 in smoothness.
SHARPNESS = 10.0


class StepShapeEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with the smoothest steps."""

    threat = "sees every query, knows how federated averages move, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._steps: dict[int, FloatArray] = {}
        self._cosines: dict[int, list[float]] = {}
        self._lengths: dict[int, list[float]] = {}

    def observe(self, query: SeenQuery) -> None:
        """Compare the trajectory's latest step with the previous one."""
        number = query.trajectory
        earlier = self._seen.latest[number] if number < len(self._seen) else None
        super().observe(query)
        if earlier is None or not query.moved:
            return
        step = query.weights.astype(np.float64) - earlier
        if number in self._steps:
            last = self._lengths[number][-1]
            cosine = float(np.sum(step * self._steps[number])) / (query.moved * last)
            self._cosines.setdefault(number, []).append(cosine)
        self._steps[number] = step
        self._lengths.setdefault(number, []).append(query.moved)

    def belief(self) -> FloatArray:
        """Return beliefs by smoothness."""
        return softmax([SHARPNESS * self.smoothness(number) for number in range(len(self._seen))])

    def smoothness(self, number: int) -> float:
        """Return the smoothness of a trajectory's steps; 0 if there are fewer than two.

        It is the mean cosine of successive steps less half the mean absolute change of log length.
        """
        cosines, lengths = self._cosines.get(number, []), self._lengths.get(number, [])
        if not cosines:
            return 0.0
        changes = np.diff(np.log(lengths))
        return float(np.mean(cosines) - 0.5 * np.mean(np.abs(changes)))
