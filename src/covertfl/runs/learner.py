"""The true trajectory and the decoys, the replies of clients, and the server's step on them.

Nothing is changed in place: a step returns a new state.  `rounds.update_trajectories`
decides which trajectory moves.

Replies come from clients and may be anything.  What is not a finite vector of the model's size and
type, or claims an impossible number of examples, is rejected and counted by reason; a round in
which nothing valid arrives has failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from covertfl.arrays import IntArray
from covertfl.kernels.exact_sum import ExactSum
from covertfl.kernels.job import LocalOptimizer
from covertfl.kernels.weights import Float32Array, Vector

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


def find_fault(reply: Reply, size: int, most_examples: int) -> str | None:
    """Return the reason to reject a reply, None if it is valid.

    The model has `size` parameters, and no client more than `most_examples` examples.
    """
    if reply.fault is not None or not isinstance(reply.values, np.ndarray):
        return reply.fault or "wrong type"
    if reply.values.dtype != np.float32:
        return "wrong dtype"
    if reply.values.shape != (size,):
        return "wrong shape"
    if not has_finite_norm(reply.values):
        return "not finite"
    if not _is_count(reply.examples, most_examples):
        return "bad example count"
    return None


def has_finite_norm(*parts: Vector) -> bool:
    """Return whether all numbers and their squares, which the server's Adam sums, are finite."""
    total = sum(float(np.vdot(part, part)) for part in parts)  # unlike `dot`, without warnings
    return total <= LARGEST


def _is_count(value: Any, most: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return 1 <= int(value) <= most


def sift_replies(replies: Sequence[Reply], size: int, most_examples: int) -> SiftedReplies:
    """Keep the valid replies, in the order of their clients."""
    valid, rejected = [], []
    for reply in sorted(replies, key=lambda reply: reply.client):
        fault = find_fault(reply, size, most_examples)
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


@dataclass(frozen=True, eq=False)
class LearnerState:
    """The true trajectory and the decoys.

    Parameters
    ----------
    true : (P,) the true weights
    decoys : (P,) each, at least one
    updates : number of moves of the true trajectory
    moves : number of moves of each decoy
    memory : of the server's optimizer, None with FedAvg
    sent : with replicas, what queries of each trajectory send; one update behind `trajectories`
        after the last update of a horizon, because the final model is never sent
    """

    true: Vector
    decoys: tuple[Vector, ...]
    updates: int
    moves: tuple[int, ...]
    memory: ServerMemory | None
    sent: tuple[Vector, ...] | None = None

    @property
    def trajectories(self) -> tuple[Vector, ...]:
        """Weights of all trajectories: 0 is the true one, 1, 2, ... are the decoys."""
        return (self.true, *self.decoys)

    def query(self, trajectory: int) -> Vector:
        """Return the weights that a query of a trajectory sends."""
        return (self.sent or self.trajectories)[trajectory]

    def with_decoy(self, trajectory: int, weights: Vector) -> LearnerState:
        """Return the state after a decoy has moved to new weights."""
        at = trajectory - 1
        decoys, moves = list(self.decoys), list(self.moves)
        decoys[at], moves[at] = weights, moves[at] + 1
        return replace(self, decoys=tuple(decoys), moves=tuple(moves))


def start_learner(true: Vector, decoys: Sequence[Vector], algorithm: Algorithm) -> LearnerState:
    """Return the trajectories before the first round."""
    memory = None
    if algorithm == "fedsgd":
        memory = ServerMemory(0, np.zeros_like(true), np.zeros_like(true))
    return LearnerState(true, tuple(decoys), 0, (0,) * len(decoys), memory)


def move_true(
    state: LearnerState, replies: SiftedReplies, optimizer: LocalOptimizer
) -> LearnerState:
    """Move the true trajectory on replies: FedAvg, or FedSGD if the state has a memory."""
    return move_to_average(state, replies.mean, optimizer)


def move_to_average(
    state: LearnerState, average: Vector, optimizer: LocalOptimizer
) -> LearnerState:
    """Move the true trajectory as `move_true` does, given the (P,) mean of all replies."""
    if state.memory is None:
        return replace(state, true=average, updates=state.updates + 1)
    true, memory = apply_gradient(state.true, average, state.memory, optimizer)
    return replace(state, true=true, updates=state.updates + 1, memory=memory)


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
