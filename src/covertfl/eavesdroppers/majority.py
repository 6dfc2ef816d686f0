"""The paper's eavesdropper: proportional sampling (E3, equation (6)).

Its belief in a trajectory is the share of queries that belonged to it (F3), and its estimate is the
last query of the trajectory it believes in most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from covertfl.eavesdroppers.eavesdropper import (
    Means,
    SeenQuery,
    Trajectories,
    normalise,
    pick_latest,
)
from covertfl.oracle import FloatArray
from covertfl.weights import Vector


class MajorityEavesdropper:
    """Believes in the trajectory with most queries."""

    threat: ClassVar[str] = "sees every query, knows nothing of the scheme, owns no data"

    def __init__(self, means: Means) -> None:
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """Count the query."""
        self._seen.add(query)

    def belief(self) -> FloatArray:
        """Share of queries of each trajectory (F3)."""
        return normalise(self._seen.counts)

    def estimate(self) -> Sequence[Vector]:
        """Equation (6)."""
        return pick_latest(self.belief(), self._seen.latest)
