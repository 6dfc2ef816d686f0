"""The baseline: ignore the queries and train on one's own data, one pass for each round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, Trajectories, normalise
from covertfl.eavesdroppers.own_data import OwnData
from covertfl.kernels.weights import Vector


class TrainAloneEavesdropper:
    """Eavesdropper that takes only the scale of its initial weights from the first query."""

    threat: ClassVar[str] = "owns labelled data and does not listen"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "train-alone")
        self._generator = np.random.default_rng([means.seed, 1])
        self._seen = Trajectories()
        self._weights: Vector | None = None

    def observe(self, query: SeenQuery) -> None:
        """Train for one more pass over its own data."""
        self._seen.add(query)
        if self._weights is None:
            self._weights = self._draw_weights(query.weights)
        self._weights = self._own.train(self._weights)

    def _draw_weights(self, like: Vector) -> Vector:
        """Return random weights, each parameter with the same standard deviation as in `like`."""
        parts = self._own.kernel.layout.split(like)
        drawn = {
            name: (self._generator.normal(size=part.shape) * float(np.std(part) or 0.0)).astype(
                np.float32
            )
            for name, part in parts.items()
        }
        return self._own.kernel.layout.join(drawn)

    def belief(self) -> FloatArray:
        """Return equal beliefs, since it ignores the queries."""
        return normalise(np.ones(len(self._seen)))

    def estimate(self) -> Sequence[Vector]:
        """Return its own model."""
        assert self._weights is not None
        return (self._weights,)
