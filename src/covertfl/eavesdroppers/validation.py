"""By content: labelled data of its own picks the trajectory with the lower loss."""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, weigh
from covertfl.eavesdroppers.own_data import OwnData


class ValidationEavesdropper(Listener):
    """Believes in the trajectory that does best on its own data."""

    threat = "sees every query and owns labelled data (the public set)"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "validation")
        super().__init__(means)
        self._losses: list[float] = []

    def observe(self, query: SeenQuery) -> None:
        """Try the query's weights on its data, unless they are the last ones again."""
        super().observe(query)
        if query.moved is None:
            self._losses.append(self._own.measure_loss(query.weights))
        elif query.moved > 0.0:
            self._losses[query.trajectory] = self._own.measure_loss(query.weights)

    def belief(self) -> FloatArray:
        """By the likelihood of its labels under the latest weights of each trajectory."""
        return weigh([-loss * len(self._own.data) for loss in self._losses])
