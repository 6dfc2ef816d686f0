"""From results of jobs, or replies, to a step: FedAvg or FedSGD without optimizer state.

A decoy keeps nothing but its weights, so with FedSGD its step is the first step of the server's
optimizer: lr times the gradient for sgd; for adam and adamw, lr in every coordinate with the sign
of the gradient.  No true step is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer, Work
from covertfl.kernels.weights import Float32Array, Vector

Results = Sequence[Vector] | Float32Array  # (k, P)
Counts = Sequence[int] | IntArray | None  # (k,); None for equal weights


@dataclass(frozen=True)
class UpdateRule:
    """The federation's algorithm, as far as a decoy needs it.

    Parameters
    ----------
    algorithm : fedavg (clients reply with weights) or fedsgd (with gradients)
    optimizer : of the clients (fedavg) or of the server (fedsgd)
    """

    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    optimizer: LocalOptimizer = field(default_factory=LocalOptimizer)

    @property
    def work(self) -> Work:
        """The kind of work that jobs do."""
        return "train" if self.algorithm == "fedavg" else "gradient"

    def displace(self, weights: Vector, results: Results, examples: Counts = None) -> FloatArray:
        """Return the (P,) displacement of the weights by the mean of some results.

        Parameters
        ----------
        weights : (P,) from which the jobs started
        results : (k, P) weights or gradients, k at least 1
        examples : (k,) weights in the mean, numbers of examples; None for equal weights
        """
        if len(results) == 0:
            raise InvalidInput("an update needs at least one result, got none")
        mean = average_results(results, examples)
        if self.algorithm == "fedavg":
            return mean - weights
        return self._step(weights.astype(np.float64), mean)

    def _step(self, weights: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return the first step of the server's optimizer."""
        lr, decay = self.optimizer.lr, self.optimizer.weight_decay
        if self.optimizer.name == "sgd":
            return -lr * (gradient + decay * weights)
        if self.optimizer.name == "adam":
            gradient = gradient + decay * weights
        step = -lr * gradient / (np.abs(gradient) + self.optimizer.eps)
        if self.optimizer.name == "adamw":
            step -= lr * decay * weights
        return step


def average_results(results: Results, examples: Counts = None) -> FloatArray:
    """Return the (P,) mean weighted by examples, summed in order in double precision."""
    counts = np.ones(len(results)) if examples is None else np.asarray(examples, dtype=np.float64)
    total = np.zeros(results[0].shape, dtype=np.float64)
    for result, count in zip(results, counts, strict=True):
        total += np.multiply(result, count, dtype=np.float64)  # exact
    total /= counts.sum()
    return total


def move_by(weights: Vector, displacement: FloatArray) -> Vector:
    """Return the weights after a displacement, as 32-bit floats."""
    return (weights + displacement).astype(np.float32)
