"""A learner that is done stops, so the trajectory that stopped moving first is the true one."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, normalise


class EarlyStopEavesdropper(Listener):
    """Believes in the trajectory whose last movement is the longest ago."""

    threat = "sees every query, guesses that a learner which is done stops, owns no data"

    def belief(self) -> FloatArray:
        """Even over the trajectories that stopped first."""
        moved = np.array(self._seen.moved)
        return normalise((moved == moved.min()).astype(np.float64))
