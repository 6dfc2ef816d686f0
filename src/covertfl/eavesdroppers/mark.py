"""An active eavesdropper: it marks its own replies and looks for the mark."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, softmax
from covertfl.eavesdroppers.moves import MoveListener

# Log-odds for a sum that is one standard deviation larger.
MARK_ODDS = 3.0


class MarkEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory that moves along the pattern in its replies.

    A pattern drawn at random has a product with every other direction whose deviation is the
    direction's length over the square root of the number of weights; the sum over moves is compared
    with that.  Only moves from queries that it was asked itself are counted.
    """

    tier = "C"
    needs: ClassVar[tuple[str, ...]] = ("mark",)
    threat = "is a client: adds a small known pattern to its replies and looks for it in the moves"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.mark is not None
        self._mark, self._attended = means.mark.astype(np.float64), means.attended
        self._asked: dict[int, bool] = {}

    def observe(self, query: SeenQuery) -> None:
        """Look at the move, then note whether it was asked itself."""
        super().observe(query)
        is_asked = self._attended is None or query.round in self._attended
        self._asked[query.trajectory] = is_asked

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Multiply a move by the pattern."""
        if self._asked[query.trajectory]:
            self._tally.note("product", query.trajectory, float(np.sum(step * self._mark)))
            self._tally.note("square", query.trajectory, float(np.sum(step * step)) / len(step))

    def measure_mark(self) -> FloatArray:
        """Return the sum of products of each trajectory, in standard deviations."""
        count = len(self._seen)
        sums = [sum(self._tally.read("product", number)) for number in range(count)]
        squares = [sum(self._tally.read("square", number)) for number in range(count)]
        pairs = zip(sums, squares, strict=True)
        return np.array([total / math.sqrt(square) if square else 0.0 for total, square in pairs])

    def belief(self) -> FloatArray:
        """Return beliefs by how much of the pattern is in the moves."""
        return softmax(MARK_ODDS * self.measure_mark())

    def figures(self) -> dict[str, FloatArray]:
        """Return the pattern's part in the moves, in standard deviations."""
        return {"pattern": self.measure_mark()}
