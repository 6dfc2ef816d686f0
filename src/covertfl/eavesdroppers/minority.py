"""The opposite of the paper's eavesdropper: it knows that the majority is meant to mislead."""

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


class MinorityEavesdropper:
    """Believes in the trajectory with fewest queries."""

    threat: ClassVar[str] = "sees every query, knows that decoys are the majority, owns no data"

    def __init__(self, means: Means) -> None:
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """Count the query."""
        self._seen.add(query)

    def belief(self) -> FloatArray:
        """Share of queries that did not belong to each trajectory."""
        counts = np.array(self._seen.counts, dtype=np.float64)
        return np.ones(1) if len(counts) == 1 else normalise(counts.sum() - counts)

    def estimate(self) -> Sequence[Vector]:
        """Last query of the least frequent trajectory."""
        return pick_latest(self.belief(), self._seen.latest)
