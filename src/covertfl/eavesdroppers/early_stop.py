"""A learner that is done stops, so the trajectory that stopped moving first is the true one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.eavesdroppers.eavesdropper import (
    Means,
    SeenQuery,
    Trajectories,
    normalise,
    pick_latest,
)
from covertfl.oracle import FloatArray
from covertfl.weights import Vector


class EarlyStopEavesdropper:
    """Believes in the trajectory whose last movement is the longest ago."""

    threat: ClassVar[str] = (
        "sees every query, guesses that a learner which is done stops, owns no data"
    )

    def __init__(self, means: Means) -> None:
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """Note whether the trajectory has moved."""
        self._seen.add(query)

    def belief(self) -> FloatArray:
        """Even over the trajectories that stopped first."""
        moved = np.array(self._seen.moved)
        return normalise((moved == moved.min()).astype(np.float64))

    def estimate(self) -> Sequence[Vector]:
        """Last query of the trajectory that stopped first."""
        return pick_latest(self.belief(), self._seen.latest)
