"""By content: labelled data of its own picks the trajectory with the lower loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from covertfl.eavesdroppers.eavesdropper import (
    Means,
    SeenQuery,
    Trajectories,
    pick_latest,
    weigh,
)
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.oracle import FloatArray
from covertfl.weights import Vector


class ValidationEavesdropper:
    """Believes in the trajectory that does best on its own data."""

    threat: ClassVar[str] = "sees every query and owns labelled data (the public set)"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "validation")
        self._seen = Trajectories()
        self._losses: list[float] = []

    def observe(self, query: SeenQuery) -> None:
        """Try the query's weights on its data, unless they are the last ones again."""
        self._seen.add(query)
        if query.moved is None:
            self._losses.append(self._own.measure_loss(query.weights))
        elif query.moved > 0.0:
            self._losses[query.trajectory] = self._own.measure_loss(query.weights)

    def belief(self) -> FloatArray:
        """By the likelihood of its labels under the latest weights of each trajectory."""
        return weigh([-loss * len(self._own.data) for loss in self._losses])

    def estimate(self) -> Sequence[Vector]:
        """Latest weights of the trajectory with the lowest loss."""
        return pick_latest(self.belief(), self._seen.latest)
