"""What an eavesdropper is: fed queries one by one, it believes in a trajectory and holds weights.

It is handed what clients were sent and nothing of the learner's own records.  What it owns or knows
beyond that, labelled data, a place among the clients, the scheme, comes in `Means`, and its threat
says in one line which of these it uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Policy
from covertfl.decision.problem import Problem
from covertfl.kernels.job import Examples, LocalJob, LocalKernel
from covertfl.kernels.weights import Vector


@dataclass(frozen=True, eq=False)
class SeenQuery:
    """A query as an eavesdropper sees it.

    Parameters
    ----------
    round : 1, 2, ...
    trajectory : that it is taken to belong to, 0, 1, ... as first seen
    weights : (P,) that were sent
    moved : how far its trajectory has moved since its last query, None at its first
    """

    round: int
    trajectory: int
    weights: Vector
    moved: float | None


@dataclass(frozen=True, eq=False)
class Scheme:
    """What is known of the learner by somebody who knows the scheme.

    Parameters
    ----------
    problem : oracle, costs, horizon or queue
    policy : when it learns
    takes_every_reply : whether a learning query counts whatever the acceptance says
    num_decoys : among which an obfuscating query is drawn uniformly
    first : (W,) law of the first oracle state; the stationary law where None
    """

    problem: Problem
    policy: Policy
    takes_every_reply: bool = False
    num_decoys: int = 1
    first: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Means:
    """What an eavesdropper has besides the queries; None for what it has not.

    Parameters
    ----------
    kernel : the model, to predict and to train with
    data : its own labelled examples
    batch_size : in which it trains
    scheme : problem and policy of the learner
    reply : as a client, its own work in a round for the weights it was sent
    seed : of its own randomness
    """

    kernel: LocalKernel | None = None
    data: Examples | None = None
    batch_size: int = 40
    scheme: Scheme | None = None
    reply: Callable[[int, Vector], LocalJob] | None = None
    seed: int = 0


class Eavesdropper(Protocol):
    """Anything that listens."""

    threat: ClassVar[str]

    def observe(self, query: SeenQuery) -> None:
        """See a query."""
        ...

    def belief(self) -> FloatArray:
        """Chance of each trajectory seen so far to be the true one; sums to 1."""
        ...

    def estimate(self) -> Sequence[Vector]:
        """The weights it would use now; several where it cannot choose, each as likely."""
        ...


class Trajectories:
    """The queries of each trajectory so far; what most eavesdroppers remember."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.latest: list[Vector] = []
        self.moved: list[int] = []
        self.repeats: list[int] = []
        self.order: list[int] = []

    def add(self, query: SeenQuery) -> None:
        """Remember a query."""
        number = query.trajectory
        self.order.append(number)
        if number == len(self.counts):
            self.counts.append(0)
            self.latest.append(query.weights)
            self.moved.append(query.round)
            self.repeats.append(0)
        self.counts[number] += 1
        self.latest[number] = query.weights
        if query.moved == 0.0:
            self.repeats[number] += 1
        else:
            self.moved[number] = query.round

    def __len__(self) -> int:
        return len(self.counts)


def normalise(scores: Sequence[float] | FloatArray) -> FloatArray:
    """Beliefs in proportion to scores that are not negative; even where all are 0."""
    values = np.asarray(scores, dtype=np.float64)
    total = values.sum()
    return values / total if total > 0.0 else np.full(len(values), 1.0 / len(values))


def weigh(log_scores: Sequence[float] | FloatArray) -> FloatArray:
    """Beliefs in proportion to the exponentials of scores; -inf is impossible."""
    values = np.asarray(log_scores, dtype=np.float64)
    best = values.max()
    if not np.isfinite(best):
        return np.full(len(values), 1.0 / len(values))
    return normalise(np.exp(values - best))


def pick_latest(belief: FloatArray, latest: Sequence[Vector]) -> tuple[Vector, ...]:
    """Last queries of the trajectories that are believed in most."""
    most = belief.max()
    return tuple(
        weights
        for weights, prob in zip(latest, belief, strict=True)
        if prob >= most * (1.0 - 1e-12)
    )


class Listener(ABC):
    """Remembers the queries and holds the last one of the trajectory it believes in most."""

    threat: ClassVar[str]

    def __init__(self, means: Means) -> None:
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """See a query."""
        self._seen.add(query)

    @abstractmethod
    def belief(self) -> FloatArray:
        """Chance of each trajectory seen so far to be the true one; sums to 1."""

    def estimate(self) -> Sequence[Vector]:
        """The last query of the trajectory believed in most; several where they tie."""
        return pick_latest(self.belief(), self._seen.latest)
