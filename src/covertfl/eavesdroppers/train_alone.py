"""The baseline: training on its own data, without listening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.kernels.weights import Vector


class TrainAloneEavesdropper(Listener):
    """Eavesdropper that ignores the queries and trains on its own data: the baseline.

    It takes only the scale of its initial weights from the first query.
    """

    tier = "B"
    needs: ClassVar[tuple[str, ...]] = ("kernel", "data")
    threat = "owns labelled data and does not listen"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "train-alone")
        super().__init__(means)
        self._generator = np.random.default_rng([means.seed, 1])
        self._weights: Vector | None = None

    def observe(self, query: SeenQuery) -> None:
        """Train for one more pass over its own data."""
        super().observe(query)
        if self._weights is None:
            self._weights = self._draw_weights(query.weights)
        self._weights = self._own.train(self._weights)

    def _draw_weights(self, like: Vector) -> Vector:
        """Return random weights, each parameter with the same standard deviation as in `like`."""
        layout = self._own.kernel.layout
        drawn = {
            name: (self._generator.normal(size=part.shape) * float(np.std(part))).astype(np.float32)
            for name, part in layout.split(like).items()
        }
        return layout.join(drawn)

    def belief(self) -> FloatArray:
        """Return equal beliefs, since it ignores the queries."""
        return normalise(np.ones(len(self._seen)))

    def estimate(self) -> Sequence[Vector]:
        """Return its own model."""
        assert self._weights is not None
        return (self._weights,)
