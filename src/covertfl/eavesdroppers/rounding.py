"""An eavesdropper that looks for coordinates that move by rounding only."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import SeenQuery, softmax
from covertfl.eavesdroppers.moves import MoveListener

# A move of at most so many units in the last place is rounding.
MOST_UNITS = 4.0
# Log-odds for a share of coordinates that is larger by 1.
ROUNDING_ODDS = 200.0


class RoundingEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory in which most weights move by rounding only.

    A weight that no client has changed differs after averaging by the rounding of the mean; one
    that a server's own optimizer has not changed stays as it is.
    """

    threat = "sees every query, looks for weights that move by rounding only, owns no data"

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Count weights that moved by a few units in the last place, and those that did not."""
        units = np.abs(step) / np.spacing(np.abs(query.weights))
        is_still = units == 0.0
        number = query.trajectory
        self._tally.note("still", number, float(np.mean(is_still)))
        self._tally.note("rounding", number, float(np.mean((units <= MOST_UNITS) & ~is_still)))

    def belief(self) -> FloatArray:
        """Return beliefs by the mean share of weights that moved by rounding."""
        return softmax(ROUNDING_ODDS * self._tally.average("rounding", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return mean shares of weights that moved by rounding, and that did not move."""
        count = len(self._seen)
        return {name: self._tally.average(name, count) for name in ("rounding", "still")}
