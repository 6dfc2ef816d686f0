"""An eavesdropper that evaluates queries on labelled data of its own."""

from __future__ import annotations

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, softmax
from covertfl.eavesdroppers.own_data import OwnData


class ValidationEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with the lowest loss on its own data."""

    threat = "sees every query and owns labelled data (the public set)"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "validation")
        super().__init__(means)
        self._losses: list[float] = []

    def observe(self, query: SeenQuery) -> None:
        """Evaluate the query's weights on its own data, unless they repeat the previous ones."""
        super().observe(query)
        if query.moved is None:
            self._losses.append(self._own.measure_loss(query.weights))
        elif query.moved > 0.0:
            self._losses[query.trajectory] = self._own.measure_loss(query.weights)

    def belief(self) -> FloatArray:
        """Return the posterior, given its labels, of each trajectory's latest weights."""
        return softmax([-loss * len(self._own.data) for loss in self._losses])
