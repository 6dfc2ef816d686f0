"""An eavesdropper that looks for the trajectory that stopped first."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class EarlyStopEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory that has not moved for the longest time."""

    threat = "sees every query, guesses that a learner which is done stops, owns no data"

    def belief(self) -> FloatArray:
        """Return equal beliefs in the trajectories that stopped first."""
        moved = np.array(self._seen.moved)
        return normalise((moved == moved.min()).astype(np.float64))

    def figures(self) -> dict[str, FloatArray]:
        """Return the number of the query at which each trajectory last moved, as a share."""
        return {"last moved": np.array(self._seen.moved) / self._seen.total}
