"""The labelled data of an eavesdropper, and what it does with them."""

from __future__ import annotations

import numpy as np

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector


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
