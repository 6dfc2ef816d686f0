"""By trajectory: a learning query that failed is sent again, unchanged.

A decoy that moves in every round never repeats itself; one that is gated as learning is, does.
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


class RepeatEavesdropper:
    """Believes in trajectories in proportion to their repeated queries."""

    threat: ClassVar[str] = (
        "sees every query, knows that failed learning queries repeat, owns no data"
    )

    def __init__(self, means: Means) -> None:
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """Note whether the query repeats the last one of its trajectory."""
        self._seen.add(query)

    def belief(self) -> FloatArray:
        """Share of all repeats; even where there is none."""
        return normalise(self._seen.repeats)

    def estimate(self) -> Sequence[Vector]:
        """Last query of the trajectory that repeats itself most."""
        return pick_latest(self.belief(), self._seen.latest)
