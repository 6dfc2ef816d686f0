"""An eavesdropper that looks at the energy of moves by axis of the public map."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import MoveListener
from covertfl.eavesdroppers.own_data import measure_evenness

# Log-odds for a centre of energy that lies one unit of log rank nearer to the leading axis.
CENTRE_ODDS = 20.0


class MapSpectrumEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory that moves most along the leading axes.

    Real data keep their news in the leading axes of the public map: their mean square, and with it
    that of the moves of the first layer, falls from axis to axis.
    """

    needs: ClassVar[tuple[str, ...]] = ("kernel", "pivot", "axes")
    threat = "sees every query, knows the public map and where real data have energy, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None and means.pivot is not None and means.axes is not None
        self._part, self._axes = means.kernel.layout.locate(means.pivot), means.axes
        self._is_mapped = np.array_equal(means.axes, np.eye(len(means.axes)))
        self._ranks = np.log(np.arange(1, len(means.axes) + 1))
        self._ways: dict[int, FloatArray] = {}

    def measure_energy(self, step: FloatArray) -> FloatArray:
        """Return (d,) shares of the pivot's squared length by axis; equal ones if it is still."""
        by_axis = step[self._part].reshape(-1, len(self._axes))
        if not self._is_mapped:
            by_axis = by_axis @ self._axes
        energy: FloatArray = np.sum(by_axis * by_axis, axis=0)
        total = float(np.sum(energy))
        return energy / total if total > 0.0 else np.full(len(energy), 1.0 / len(energy))

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Find the centre and the evenness of the energy."""
        energy, number = self.measure_energy(step), query.trajectory
        self._tally.note("centre", number, float(np.sum(energy * self._ranks)))
        self._tally.note("evenness", number, measure_evenness(energy))
        self._ways[number] = self._ways.get(number, 0.0) + step

    def belief(self) -> FloatArray:
        """Return beliefs by the mean centre of energy."""
        return softmax(-CENTRE_ODDS * self._tally.average("centre", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return centre and evenness of the energy of moves, and of the way so far."""
        count = len(self._seen)
        centres = np.zeros(count)
        for number, way in self._ways.items():
            centres[number] = float(np.sum(self.measure_energy(way) * self._ranks))
        return {
            "centre": self._tally.average("centre", count),
            "centre at first": self._tally.average("centre", count, first=3),
            "trend of centre": self._tally.trend("centre", count),
            "evenness": self._tally.average("evenness", count),
            "centre of the way": centres,
        }
