"""An eavesdropper that looks at the shape of steps."""

from __future__ import annotations

import math

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import MoveListener, measure_cosine, measure_length

# Log-odds for a difference of 1 in smoothness.
SMOOTHNESS_ODDS = 10.0


class StepShapeEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory with the smoothest steps.

    An average over many clients moves more smoothly than what a server trains on a single data set:
    successive steps of the true trajectory point in more similar directions, and their lengths vary
    less.
    """

    threat = "sees every query, knows how federated averages move, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._steps: dict[int, list[FloatArray]] = {}
        self._ways: dict[int, FloatArray] = {}

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Compare the trajectory's latest step with the previous two."""
        number = query.trajectory
        before = self._steps.get(number, [])
        for name, earlier in zip(("cosine", "cosine with the step before"), before, strict=False):
            self._tally.note(name, number, measure_cosine(step, earlier))
        self._steps[number] = [step, *before[:1]]
        way = self._ways.get(number)
        self._ways[number] = step if way is None else way + step
        self._tally.note("length", number, math.log(measure_length(step)))

    def belief(self) -> FloatArray:
        """Return beliefs by smoothness."""
        numbers = range(len(self._seen))
        return softmax([SMOOTHNESS_ODDS * self.smoothness(number) for number in numbers])

    def smoothness(self, number: int) -> float:
        """Return the smoothness of a trajectory's steps; 0 if there are fewer than two.

        It is the mean cosine of successive steps less half the mean absolute change of log length.
        """
        cosines = self._tally.read("cosine", number)
        if not cosines:
            return 0.0
        return float(np.mean(cosines)) - 0.5 * self._measure_change(number)

    def _measure_change(self, number: int) -> float:
        """Return the mean absolute change of log length; 0 with fewer than two steps."""
        changes = np.abs(np.diff(self._tally.read("length", number)))
        return float(np.mean(changes)) if len(changes) else 0.0

    def figures(self) -> dict[str, FloatArray]:
        """Return lengths (logs, deviations, changes, trends), cosines, and the length of the way.

        The way leads from the first query to the latest; its log length is 0 without a move.
        """
        count = len(self._seen)
        ways = [measure_length(self._ways[n]) if n in self._ways else 1.0 for n in range(count)]
        return {
            "length": self._tally.average("length", count),
            "length at first": self._tally.average("length", count, first=3),
            "deviation of length": self._tally.spread("length", count),
            "change of length": np.array([self._measure_change(n) for n in range(count)]),
            "trend of length": self._tally.trend("length", count),
            "cosine": self._tally.average("cosine", count),
            "trend of cosine": self._tally.trend("cosine", count),
            "cosine with the step before": self._tally.average(
                "cosine with the step before", count
            ),
            "length of the way": np.log(np.maximum(ways, 1e-12)),
        }
