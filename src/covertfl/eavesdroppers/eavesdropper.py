"""The eavesdropper protocol, what an eavesdropper is given, and a base class.

An eavesdropper is given what clients were sent and nothing of the learner's own records.  It
observes queries one by one; after any of them it has a belief about which trajectory is the true
one, and an estimate of the true weights.  What it owns or knows besides (labelled data, a place
among the clients, the problem and policy) is in `Means`, and `threat` states in one line which of
these it uses.

To add one, derive it from `Listener`, implement `belief`, and enter it in `registry`:

    class FirstSeenEavesdropper(Listener):
        threat = "sees every query, guesses that the first one is true, owns no data"

        def belief(self) -> FloatArray:
            return np.eye(len(self._seen))[0]
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.decoy_rule import ONE_DECOY, DecoyRule
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
    trajectory : that the query is assigned to; 0, 1, ... in the order of their first queries
    weights : (P,) that were sent
    moved : distance from the trajectory's previous query, None at its first query
    """

    round: int
    trajectory: int
    weights: Vector
    moved: float | None


@dataclass(frozen=True, eq=False)
class Scheme:
    """The learner's problem and policy, as known to an eavesdropper that knows the scheme.

    Parameters
    ----------
    problem : oracle, costs, horizon or queue
    policy : when the learner learns
    takes_every_reply : whether a learning query always counts as an update, accepted or not
    decoys : how obfuscating queries are divided among decoys
    first : (W,) distribution of the first oracle state; None for the stationary distribution
    """

    problem: Problem
    policy: Policy
    takes_every_reply: bool = False
    decoys: DecoyRule = ONE_DECOY
    first: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class Means:
    """What an eavesdropper has besides the queries; None for what it does not have.

    Parameters
    ----------
    kernel : the model, to predict and train with
    data : its own labelled examples
    batch_size : of its own training
    scheme : problem and policy of the learner
    reply : as a client, its own job in a round, given the round and the weights it was sent
    seed : of its own randomness
    """

    kernel: LocalKernel | None = None
    data: Examples | None = None
    batch_size: int = 40
    scheme: Scheme | None = None
    reply: Callable[[int, Vector], LocalJob] | None = None
    seed: int = 0


class Eavesdropper(Protocol):
    """An estimator of the true model, fed with queries; `threat` describes it in one line."""

    threat: ClassVar[str]

    def observe(self, query: SeenQuery) -> None:
        """Take note of the next query."""
        ...

    @abstractmethod
    def belief(self) -> FloatArray:
        """Return the probability of each trajectory seen so far of being the true one."""
        ...

    def estimate(self) -> Sequence[Vector]:
        """Return the weights it would use now; several, equally likely, where it cannot choose."""
        ...


class Trajectories:
    """The queries seen so far, by trajectory.

    Attributes
    ----------
    counts : queries of each trajectory
    latest : weights last sent of each trajectory
    moved : round in which each trajectory last moved
    repeats : queries of each trajectory that repeat the previous one
    order : trajectory of each query
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.latest: list[Vector] = []
        self.moved: list[int] = []
        self.repeats: list[int] = []
        self.order: list[int] = []

    def add(self, query: SeenQuery) -> Vector | None:
        """Add a query; return the weights that its trajectory sent before, None at its first."""
        number = query.trajectory
        earlier = self.latest[number] if number < len(self) else None
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
        return earlier

    def __len__(self) -> int:
        return len(self.counts)


def normalise(scores: Sequence[float] | FloatArray) -> FloatArray:
    """Return beliefs in proportion to nonnegative scores; equal ones where all are 0."""
    values = np.asarray(scores, dtype=np.float64)
    total = values.sum()
    return values / total if total > 0.0 else np.full(len(values), 1.0 / len(values))


def softmax(log_scores: Sequence[float] | FloatArray) -> FloatArray:
    """Return beliefs in proportion to exp(log_scores); -inf means impossible."""
    values = np.asarray(log_scores, dtype=np.float64)
    best = values.max()
    if not np.isfinite(best):
        return np.full(len(values), 1.0 / len(values))
    return normalise(np.exp(values - best))


class Listener(Eavesdropper):
    """Base class that remembers the queries in `_seen` and estimates from its belief."""

    def __init__(self, means: Means) -> None:
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """Take note of the next query."""
        self._seen.add(query)

    def estimate(self) -> Sequence[Vector]:
        """Return the last query of the most probable trajectory; several where they tie."""
        belief = self.belief()
        least = belief.max() * (1.0 - 1e-12)
        pairs = zip(self._seen.latest, belief, strict=True)
        return tuple(weights for weights, prob in pairs if prob >= least)
