"""Replies of clients, and the server's step on them: FedAvg and FedSGD.

Replies may be anything.  What is not a finite vector of the model's size and type, or claims an
impossible number of examples, is rejected and counted by reason; a round in which nothing valid
arrives has failed.  Nothing is changed in place: a step returns new weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from covertfl.arrays import IntArray
from covertfl.kernels.exact_sum import ExactSum
from covertfl.kernels.job import Float32Array, Layout, LocalOptimizer, Vector

Algorithm = Literal["fedavg", "fedsgd"]
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Reply:
    """The reply of a client, not yet checked.

    Parameters
    ----------
    values : weights (FedAvg) or a gradient (FedSGD); should be a vector of 32-bit floats
    examples : number of examples that the client claims to have used
    fault : reason for which the engine rejects it, None if it does not
    """

    client: int
    values: Any
    examples: Any
    fault: str | None = None


@dataclass(frozen=True, eq=False)
class SiftedReplies:
    """Valid replies, and the reasons why the others were rejected.

    Parameters
    ----------
    clients : senders of the k valid replies
    values : (P,) each; empty where the replies were not kept
    examples : (k,)
    rejected : client and reason of each rejected reply
    average : (P,) mean of replies that were added up as they came, None where they were kept
    """

    clients: tuple[int, ...]
    values: tuple[Vector, ...]
    examples: np.ndarray[Any, np.dtype[np.int64]]
    rejected: tuple[tuple[int, str], ...]
    average: Vector | None = None

    @property
    def total(self) -> int:
        """Number of examples behind all valid replies."""
        return int(self.examples.sum())

    @cached_property
    def mean(self) -> Vector:
        """The (P,) mean of at least one reply, found once for all runs that share the replies."""
        return average_replies(self)

    def choose(self, places: Sequence[int] | IntArray) -> SiftedReplies:
        """Return some of the valid replies, by their places."""
        return SiftedReplies(
            tuple(self.clients[place] for place in places),
            tuple(self.values[place] for place in places),
            self.examples[np.asarray(places)],
            (),
        )

    def stack(self) -> Float32Array:
        """Return the valid replies as one (k, P) array."""
        return np.stack(self.values) if self.values else np.empty((0, 0), np.float32)


def find_fault(reply: Reply, size: int) -> str | None:
    """Return the reason to reject the values of a reply to a model of `size` parameters."""
    if reply.fault is not None or not isinstance(reply.values, np.ndarray):
        return reply.fault or "wrong type"
    if reply.values.dtype != np.float32:
        return "wrong dtype"
    if reply.values.shape != (size,):
        return "wrong shape"
    if not has_finite_norm(reply.values):
        return "not finite"
    return None


def has_finite_norm(*parts: Vector) -> bool:
    """Return whether all numbers and their squares, which the server's Adam sums, are finite."""
    total = sum(float(np.vdot(part, part)) for part in parts)  # unlike `dot`, without warnings
    return total <= LARGEST


def _is_count(value: Any, most: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return 1 <= int(value) <= most


def sift_replies(
    replies: Sequence[Reply], find_fault: Callable[[Reply], str | None], most_examples: int
) -> SiftedReplies:
    """Keep the valid replies, in the order of their clients.

    Parameters
    ----------
    find_fault : returns the reason to reject what a reply holds, None if it is valid
    most_examples : largest number of examples that a client may claim
    """
    valid, rejected = [], []
    for reply in sorted(replies, key=lambda reply: reply.client):
        fault = find_fault(reply)
        if fault is None and not _is_count(reply.examples, most_examples):
            fault = "bad example count"
        if fault is None:
            valid.append(reply)
        else:
            rejected.append((reply.client, fault))
    return SiftedReplies(
        tuple(reply.client for reply in valid),
        tuple(reply.values for reply in valid),
        np.array([int(reply.examples) for reply in valid], dtype=np.int64),
        tuple(rejected),
    )


def average_replies(replies: SiftedReplies) -> Vector:
    """Return the mean of the replies, at least one, weighted by examples (FedAvg).

    The sum is exact, so that the order of arrival does not matter (`ExactSum`).
    """
    if replies.average is not None:
        return replies.average.copy()
    total = ExactSum(len(replies.values[0]))
    for values, count in zip(replies.values, replies.examples.tolist(), strict=True):
        total.add(values, count)
    return total.mean()


@dataclass(frozen=True, eq=False)
class ServerMemory:
    """State of the server's optimizer with FedSGD.

    Parameters
    ----------
    steps : number of gradients used so far
    mean, square : (P,) running mean of gradients and of their squares; the mean is sgd's momentum
    """

    steps: int
    mean: Vector
    square: Vector

    def empty(self) -> ServerMemory:
        """Return the memory before the first gradient."""
        return ServerMemory(0, np.zeros_like(self.mean), np.zeros_like(self.square))


def apply_gradient(
    weights: Vector, gradient: Vector, memory: ServerMemory, optimizer: LocalOptimizer
) -> tuple[Vector, ServerMemory]:
    """Take one step of the server's optimizer, the same as PyTorch's of that name."""
    step = memory.steps + 1
    x, g = weights.astype(np.float64), gradient.astype(np.float64)
    if optimizer.name == "adamw":
        x *= 1.0 - optimizer.lr * optimizer.weight_decay
    else:
        g += optimizer.weight_decay * x
    if optimizer.name == "sgd":
        mean = g if step == 1 else optimizer.momentum * memory.mean.astype(np.float64) + g
        moved, square = x - optimizer.lr * mean, memory.square.astype(np.float64)
    else:
        first, second = optimizer.betas
        mean = first * memory.mean.astype(np.float64) + (1.0 - first) * g
        square = second * memory.square.astype(np.float64) + (1.0 - second) * g * g
        size = np.sqrt(square) / math.sqrt(1.0 - second**step) + optimizer.eps
        moved = x - optimizer.lr / (1.0 - first**step) * mean / size
    after = ServerMemory(step, mean.astype(np.float32), square.astype(np.float32))
    return moved.astype(np.float32), after


@dataclass(frozen=True, eq=False)
class Scaling:
    """A multiplication of the columns of one array of a model.

    Parameters
    ----------
    layout : names and shapes of the model's parameters
    name : of the array, (outputs, d)
    factors : (d,)
    """

    layout: Layout
    name: str
    factors: Float32Array

    def apply(self, values: Float32Array) -> Float32Array:
        """Scale (..., P) values in place and return them: copies of large models take long."""
        # Splitting an axis makes a view, so that the values themselves are changed.
        shape = self.layout.shapes[self.layout.names.index(self.name)]
        columns = values[..., self.layout.locate(self.name)].reshape(*values.shape[:-1], *shape)
        columns *= self.factors
        columns += np.float32(0.0)  # a flipped zero would keep its sign
        return values


class Aggregator(Protocol):
    """Turns replies to a trajectory into its move; one of an engine may remember earlier moves.

    Each trajectory that moves by itself has a `slot`, from 0, with a memory of its own.
    """

    @property
    def is_steady(self) -> bool:
        """Whether clients could measure how long the server works, which must then be constant."""
        ...

    def start(self, weights: Vector) -> ServerMemory | None:
        """Return the memory that `finish` needs before the first move, None if it needs none."""
        ...

    def attempt(
        self,
        slot: int,
        weights: Vector,
        replies: SiftedReplies,
        *,
        keeps: bool,
        scaling: Scaling | None = None,
        proposal: Vector | None = None,
    ) -> Vector | None:
        """Return what the replies come to, None if there are none or the aggregation fails.

        Nothing is moved.  The work is the same whether or not the result is kept.

        Parameters
        ----------
        weights : (P,) of the slot
        keeps : whether `keep` may be called for this attempt
        scaling : of every reply before it is used
        proposal : (P,) where a decoy would move to, in the place of all replies' own parameters
        """
        ...

    def finish(
        self, weights: Vector, memory: ServerMemory | None, aggregate: Vector
    ) -> tuple[Vector, ServerMemory | None] | None:
        """Return the weights and the memory after a move; None where they are not finite.

        Parameters
        ----------
        weights : (P,) that move
        aggregate : (P,) what `attempt` returned
        """
        ...

    def keep(self, slot: int) -> None:
        """Remember the latest attempt that may be kept as the move of a slot."""
        ...


@dataclass(frozen=True)
class ExactAverage:
    """FedAvg and FedSGD with exact sums; all that they remember is in the state of the run."""

    algorithm: Algorithm
    optimizer: LocalOptimizer
    is_steady: bool = False

    def start(self, weights: Vector) -> ServerMemory | None:
        """Return the state of the server's optimizer with FedSGD, None with FedAvg."""
        if self.algorithm == "fedavg":
            return None
        return ServerMemory(0, weights, weights).empty()

    def attempt(
        self,
        slot: int,
        weights: Vector,
        replies: SiftedReplies,
        *,
        keeps: bool,
        scaling: Scaling | None = None,
        proposal: Vector | None = None,
    ) -> Vector | None:
        """Return the mean of the replies, or a decoy's proposal, if it is finite."""
        if proposal is not None:
            return proposal if is_finite(proposal) else None
        if not replies.clients:
            return None
        # One vector is scaled instead of all replies: a scaling by signs commutes with averages.
        average = replies.mean if scaling is None else scaling.apply(average_replies(replies))
        return average if is_finite(average) else None

    def finish(
        self, weights: Vector, memory: ServerMemory | None, aggregate: Vector
    ) -> tuple[Vector, ServerMemory | None] | None:
        """Return the average itself (FedAvg), or a step of the server's optimizer (FedSGD)."""
        if memory is None:
            return aggregate, None
        moved, after = apply_gradient(weights, aggregate, memory, self.optimizer)
        return (moved, after) if is_finite(moved) else None

    def keep(self, slot: int) -> None:
        """Do nothing."""


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Return whether all values are finite, usually in one pass and without a mask.

    A finite sum has finite terms.  A sum that is not finite may have overflowed; NaN and infinity
    then show in the extremes.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))
