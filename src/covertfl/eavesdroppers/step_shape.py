"""An eavesdropper that looks at the shape of steps."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax

# Log-odds for a difference of 1 in smoothness.
SMOOTHNESS_ODDS = 10.0


class StepShapeEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with the smoothest steps.

    An average over many clients moves more smoothly than what a server trains on a single data set:
    successive steps of the true trajectory point in more similar directions, and their lengths vary
    less.
    """

    threat = "sees every query, knows how federated averages move, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._steps: dict[int, FloatArray] = {}
        self._cosines: dict[int, list[float]] = {}
        self._lengths: dict[int, list[float]] = {}

    def observe(self, query: SeenQuery) -> None:
        """Compare the trajectory's latest step with the previous one."""
        number = query.trajectory
        earlier = self._seen.add(query)
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
        numbers = range(len(self._seen))
        return softmax([SMOOTHNESS_ODDS * self.smoothness(number) for number in numbers])

    def smoothness(self, number: int) -> float:
        """Return the smoothness of a trajectory's steps; 0 if there are fewer than two.

        It is the mean cosine of successive steps less half the mean absolute change of log length.
        """
        if number not in self._cosines:
            return 0.0
        changes = np.diff(np.log(self._lengths[number]))
        return float(np.mean(self._cosines[number]) - 0.5 * np.mean(np.abs(changes)))
