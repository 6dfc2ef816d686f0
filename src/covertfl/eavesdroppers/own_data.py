"""The labelled data of an eavesdropper, and what it does with them."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Labels, LocalJob
from covertfl.kernels.weights import Float32Array, Vector


class OwnData:
    """An eavesdropper's labelled examples, and the kernel to evaluate and train weights on them.

    The eavesdropper's name is for the error message if the means have no data or no kernel.
    """

    def __init__(self, means: Means, name: str) -> None:
        if means.kernel is None or means.data is None:
            raise InvalidInput(f"the {name} eavesdropper needs labelled data and a model, got none")
        self.kernel, self.data = means.kernel, means.data
        self._batch_size, self._memory = means.batch_size, means.memory
        self._generator = np.random.default_rng([means.seed, len(means.data)])

    def predict(self, weights: Vector) -> Float32Array:
        """Return (n, outputs) logits of sent weights on the data; they are kept."""
        return self._memory.recall(
            "public", 0, weights, lambda: self.kernel.predict(weights, self.data.features)
        )

    def measure_loss(self, weights: Vector) -> float:
        """Return the mean cross entropy of weights on the data."""
        return compute_loss(self.kernel.predict(weights, self.data.features), self.data.labels)

    def train(self, weights: Vector) -> Vector:
        """Return the weights after one pass over the data."""
        rows = self._generator.permutation(len(self.data))
        seed = int(self._generator.integers(2**62))
        (trained,) = self.kernel.run([LocalJob(weights, self.data, rows, self._batch_size, seed)])
        return trained


def compute_loss(outputs: Float32Array, labels: Labels) -> float:
    """Return the mean cross entropy of (n, outputs) logits."""
    logits = outputs.astype(np.float64)
    if logits.shape[1] == 1:
        margin = logits[:, 0]
        return float(np.mean(np.logaddexp(0.0, margin) - labels * margin))
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(logits)), labels.astype(np.int64)]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))


def count_answers(outputs: Float32Array) -> FloatArray:
    """Return (classes,) shares of the inputs for which (n, outputs) logits answer each class."""
    if outputs.shape[1] == 1:
        positive = float(np.mean(outputs[:, 0] > 0.0))
        return np.array([1.0 - positive, positive])
    answers = np.bincount(outputs.argmax(axis=1), minlength=outputs.shape[1])
    shares: FloatArray = answers / len(outputs)
    return shares


def measure_evenness(shares: FloatArray) -> float:
    """Return the entropy of shares in units of the largest, that of equal shares."""
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    return -float(np.sum(shares * logs)) / float(np.log(max(len(shares), 2)))
