"""The decoy protocol: how a decoy trajectory moves after its queries (equation (5) of the paper).

A decoy has no state besides its weights, so that a run can be resumed from them.  Its training
consists of local jobs, like that of the clients, and the engine runs all of them together: `plan`
returns the jobs, and `move` turns their results into new weights.  A decoy that needs the clients'
replies sets `needs_replies`; they are then in the view.

With FedSGD a decoy's step is the first step of the server's optimizer, because it keeps no state of
one: lr times the gradient for sgd; for adam and adamw, lr in every coordinate with the sign of the
gradient.  No true step is longer (`UpdateRule`).

To add a decoy, write its module and enter it in `registry`:

    class StillDecoy:
        needs_replies = False

        def plan(self, view, *, generator):
            return []

        def move(self, view, results, *, generator):
            return view.weights
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Float32Array, LocalJob, LocalOptimizer, Vector, Work


@dataclass(frozen=True, eq=False)
class DecoyView:
    """What a decoy may use when it moves.

    Parameters
    ----------
    weights : (P,) its own, as they were just sent
    learner : (P,) the true weights of this round
    replies : (k, P) valid replies to its query, weights or gradients; empty unless `needs_replies`
    examples : (k,) number of examples behind each reply
    moves : number of its moves so far
    predict : returns (n, outputs) raw outputs of the model for given weights and features
    is_steady : whether somebody measures how long a plan and its jobs take, so that their amount
        must not depend on weights or moves; a plan may then have further jobs after its own, whose
        results are discarded
    """

    weights: Vector
    learner: Vector
    replies: Float32Array
    examples: IntArray
    moves: int
    predict: Callable[[Vector, Float32Array], Float32Array]
    is_steady: bool = False


class Decoy(Protocol):
    """Rule by which a decoy trajectory moves."""

    needs_replies: bool

    def plan(self, view: DecoyView, *, generator: np.random.Generator) -> list[LocalJob]:
        """Return the jobs whose results the move needs; none if it needs no training."""
        ...

    def move(
        self, view: DecoyView, results: Sequence[Vector], *, generator: np.random.Generator
    ) -> Vector:
        """Return the weights after the move."""
        ...


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
