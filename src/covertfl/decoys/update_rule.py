"""How results of jobs, or replies, become one update: FedAvg or FedSGD without a memory.

A decoy keeps nothing but its weights, so with FedSGD its step is the one that the server's
optimiser makes first: lr times the gradient for sgd, lr in every coordinate, with the gradient's
sign, for adam and adamw.  Such a step is as long as a true one can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer, Work
from covertfl.kernels.weights import Vector

FloatVector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class UpdateRule:
    """The algorithm of the federation, as a decoy needs it.

    Parameters
    ----------
    algorithm : fedavg, where clients reply with weights, or fedsgd, with gradients
    optimizer : of the clients (fedavg) or of the server (fedsgd)
    """

    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    optimizer: LocalOptimizer = field(default_factory=LocalOptimizer)

    def __post_init__(self) -> None:
        if self.algorithm not in ("fedavg", "fedsgd"):
            raise InvalidInput(f"algorithm must be fedavg or fedsgd, got {self.algorithm!r}")

    @property
    def work(self) -> Work:
        """What jobs are asked for."""
        return "train" if self.algorithm == "fedavg" else "gradient"

    def displace(
        self,
        weights: Vector,
        results: Sequence[Vector] | npt.NDArray[np.float32],
        examples: Sequence[int] | npt.NDArray[np.int64] | None = None,
    ) -> FloatVector:
        """(P,) how far results move the weights, averaged by examples.

        Parameters
        ----------
        weights : (P,) where the jobs began
        results : (k, P) weights or gradients, k at least 1
        examples : (k,) behind each result; None: all count alike
        """
        if len(results) == 0:
            raise InvalidInput("an update needs at least one result, got none")
        mean = average(results, examples)
        if self.algorithm == "fedavg":
            return mean - weights
        return self._step(weights.astype(np.float64), mean)

    def _step(self, weights: FloatVector, gradient: FloatVector) -> FloatVector:
        """First step of the server's optimiser."""
        lr, decay = self.optimizer.lr, self.optimizer.weight_decay
        if self.optimizer.name == "sgd":
            return -lr * (gradient + decay * weights)
        if self.optimizer.name == "adam":
            gradient = gradient + decay * weights
        step = -lr * gradient / (np.abs(gradient) + self.optimizer.eps)
        if self.optimizer.name == "adamw":
            step -= lr * decay * weights
        return step


def average(
    results: Sequence[Vector] | npt.NDArray[np.float32],
    examples: Sequence[int] | npt.NDArray[np.int64] | None = None,
) -> FloatVector:
    """(P,) mean of results weighted by examples, in double precision and in their order."""
    counts = np.ones(len(results)) if examples is None else np.asarray(examples, dtype=np.float64)
    total = np.zeros(results[0].shape, dtype=np.float64)
    for result, count in zip(results, counts, strict=True):
        total += result * count
    total /= counts.sum()
    return total


def move_by(weights: Vector, displacement: FloatVector) -> Vector:
    """The weights after a displacement, as 32-bit floats."""
    return (weights + displacement).astype(np.float32)
