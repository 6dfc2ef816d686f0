"""Eavesdroppers that evaluate or train weights on labelled data of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise, softmax
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector

# Shares of one trajectory that are tried in a mixture with the mean of the others.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


class OwnData:
    """An eavesdropper's labelled examples, and the kernel to evaluate and train weights on them.

    The eavesdropper's name is for the error message if the means have no data or no kernel.
    """

    def __init__(self, means: Means, name: str) -> None:
        if means.kernel is None or means.data is None:
            raise InvalidInput(f"the {name} eavesdropper needs labelled data and a model, got none")
        self.kernel, self.data = means.kernel, means.data
        self._batch_size = means.batch_size
        self._generator = np.random.default_rng([means.seed, len(means.data)])

    def measure_loss(self, weights: Vector) -> float:
        """Return the mean cross entropy of weights on the data."""
        logits = self.kernel.predict(weights, self.data.features).astype(np.float64)
        if logits.shape[1] == 1:
            margin = logits[:, 0]
            return float(np.mean(np.logaddexp(0.0, margin) - self.data.labels * margin))
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(logits)), self.data.labels.astype(np.int64)]
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))

    def train(self, weights: Vector) -> Vector:
        """Return the weights after one pass over the data."""
        rows = self._generator.permutation(len(self.data))
        seed = int(self._generator.integers(2**62))
        (trained,) = self.kernel.run([LocalJob(weights, self.data, rows, self._batch_size, seed)])
        return trained


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


class FineTuneEavesdropper(ValidationEavesdropper):
    """Eavesdropper that chooses as `ValidationEavesdropper` does and trains for one more pass."""

    threat = "sees every query, owns labelled data and trains on from what it caught"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._tuned: dict[bytes, Vector] = {}

    def estimate(self) -> Sequence[Vector]:
        """Return the chosen weights after one pass over its own data."""
        chosen = {weights.tobytes(): weights for weights in super().estimate()}
        # Weights are tuned once and kept for as long as they remain the choice.
        self._tuned = {
            key: self._tuned[key] if key in self._tuned else self._own.train(weights)
            for key, weights in chosen.items()
        }
        return tuple(self._tuned.values())


class EnsembleEavesdropper(Listener):
    """Eavesdropper that interpolates between the latest weights of all trajectories."""

    threat = "sees every query, owns labelled data and mixes trajectories"

    def __init__(self, means: Means) -> None:
        self._own = OwnData(means, "ensemble")
        super().__init__(means)
        self._mixtures: list[tuple[float, FloatArray, Vector]] = []

    def observe(self, query: SeenQuery) -> None:
        """Evaluate all mixtures again if a trajectory has moved."""
        super().observe(query)
        if query.moved != 0.0:
            self._mixtures = [self._mix(shares) for shares in self._list_shares()]

    def _list_shares(self) -> list[FloatArray]:
        number = len(self._seen)
        if number == 1:
            return [np.ones(1)]
        rows = []
        # With two trajectories, the share of the first determines that of the second.
        for first in range(number if number > 2 else 1):
            for share in SHARES:
                row = np.full(number, (1.0 - share) / (number - 1))
                row[first] = share
                rows.append(row)
        return rows

    def _mix(self, shares: FloatArray) -> tuple[float, FloatArray, Vector]:
        mixed = (shares[:, np.newaxis] * np.stack(self._seen.latest)).sum(axis=0)
        weights = mixed.astype(np.float32)
        return self._own.measure_loss(weights), shares, weights

    def belief(self) -> FloatArray:
        """Return the shares of the trajectories in the best mixture."""
        return normalise(min(self._mixtures, key=lambda mixture: mixture[0])[1])

    def estimate(self) -> Sequence[Vector]:
        """Return the mixture with the lowest loss on its own data."""
        return (min(self._mixtures, key=lambda mixture: mixture[0])[2],)


class TrainAloneEavesdropper(Listener):
    """Eavesdropper that ignores the queries and trains on its own data: the baseline.

    It takes only the scale of its initial weights from the first query.
    """

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
