"""The eavesdropper protocol, what an eavesdropper is given, and a base class.

An eavesdropper is given what clients were sent and nothing of the learner's own records.  It
observes queries one by one; after any of them it has a belief about which trajectory is the true
one, and an estimate of the true weights.  What it owns or knows besides (labelled data, a place
among the clients, the problem and policy, the public map) is in `Means`; `needs` lists which of
these it cannot do without, `threat` states them in one line, and `tier` sorts eavesdroppers by what
they have: A listens only, B has the public set, C is a client, D has data that the learner does not
know.  `figures` are the numbers that its belief rests on; the eavesdropper `trained` learns from
those of all others.

Trajectories that nothing tells apart get beliefs that are equal to the bit.  Numbers are therefore
summed in the order of the weights: a change of sign leaves every square, and so every sum of them,
as it was.

To add one, derive it from `Listener`, implement `belief`, and enter it in `kinds`:

    class FirstSeenEavesdropper(Listener):
        threat = "sees every query, guesses that the first one is true, owns no data"

        def belief(self) -> FloatArray:
            return np.eye(len(self._seen))[0]
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.policy import Policy
from covertfl.decision.problem import Problem
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Float32Array, LocalJob, LocalKernel, Vector

# Bytes that a memory keeps; what does not fit is computed again.
MOST_BYTES = 2**29
# What an eavesdropper lacks, in the words of the error message, by field of `Means`.
NEEDED = {
    "kernel": "a model",
    "data": "labelled data",
    "scheme": "the scheme",
    "reply": "to be a client",
    "pivot": "the name of the first linear layer",
    "axes": "the axes of the public map",
    "fresh": "examples that the learner does not know",
    "mark": "a pattern that it adds to its replies",
    "other_run": "the queries of another run",
    "rehearsed": "figures of runs with known answers",
}


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
class KnownScheme:
    """The learner's problem and policy, as known to an eavesdropper that knows the scheme.

    Parameters
    ----------
    problem : oracle, costs, horizon or queue
    policy : when the learner learns
    takes_every_reply : whether a learning query always counts as an update, accepted or not
    first : (W,) distribution of the first oracle state; None for the stationary distribution
    is_symmetric : whether the schedule has the same distribution whichever trajectory is true
    """

    problem: Problem
    policy: Policy
    takes_every_reply: bool = False
    first: FloatArray | None = None
    is_symmetric: bool = False


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """Figures of runs whose true trajectory is known, for the eavesdropper `trained`.

    Parameters
    ----------
    figures : (runs, K, F) of each trajectory of each run
    truth : (runs,) index of the true trajectory
    names : (F,) of the figures, as `trained.collect_figures` returns them
    """

    figures: FloatArray
    truth: IntArray
    names: tuple[str, ...]
    memory: dict[str, Callable[[FloatArray], FloatArray]] = field(
        init=False, default_factory=dict, repr=False
    )

    def __post_init__(self) -> None:
        if self.figures.ndim != 3 or self.figures.shape[2] != len(self.names):
            raise InvalidInput(
                f"figures must have shape (runs, trajectories, {len(self.names)}), "
                f"got {self.figures.shape}"
            )
        num_runs, num_trajectories, _ = self.figures.shape
        if num_runs < 2 or self.truth.shape != (num_runs,):
            raise InvalidInput(
                f"figures and truth must be of the same runs, at least 2, "
                f"got {num_runs} and shape {self.truth.shape}"
            )
        if not 0 <= self.truth.min() <= self.truth.max() < num_trajectories:
            raise InvalidInput(
                f"truth must lie between 0 and {num_trajectories - 1}, "
                f"got {self.truth.min()} to {self.truth.max()}"
            )


class Memory:
    """Arrays computed from sent weights: a client's replies, and outputs on its data."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], tuple[Vector, Float32Array]] = {}
        self._bytes = 0

    def recall(
        self, kind: str, round_number: int, weights: Vector, compute: Callable[[], Float32Array]
    ) -> Float32Array:
        """Return what was computed for these weights, in this round, or compute it now.

        The weights are recognised as an object, which is kept: its identity is not used again.
        """
        key = (kind, round_number, id(weights))
        if key in self._known:
            return self._known[key][1]
        result = compute()
        size = weights.nbytes + result.nbytes
        if self._bytes + size <= MOST_BYTES:
            self._known[key] = (weights, result)
            self._bytes += size
        return result


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
    trajectories : number K of trajectories
    pivot : name of the weights (out, d) of the first linear layer
    axes : (d, d); a step of the pivot times `axes` is the step by axis of the public map, the axis
        with the largest variance first
    fresh : labelled examples of its own that the learner does not know
    attended : rounds in which it was asked itself, None for all
    mark : (P,) unit pattern that it adds to its replies
    other_run : queries of another run over the same clients
    rehearsed : labelled figures of other runs
    memory : what has been computed with these means
    """

    kernel: LocalKernel | None = None
    data: Examples | None = None
    batch_size: int = 40
    scheme: KnownScheme | None = None
    reply: Callable[[int, Vector], LocalJob] | None = None
    seed: int = 0
    trajectories: int | None = None
    pivot: str | None = None
    axes: FloatArray | None = None
    fresh: Examples | None = None
    attended: frozenset[int] | None = None
    mark: Vector | None = None
    other_run: Sequence[SeenQuery] | None = None
    rehearsed: Rehearsed | None = None
    memory: Memory = field(init=False, default_factory=Memory, repr=False)


class Eavesdropper(Protocol):
    """An estimator of the true model, fed with queries; `threat` describes it in one line."""

    threat: ClassVar[str]
    tier: ClassVar[str]

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
    total : queries of all
    order : trajectory of each query, the latest at least
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.latest: list[Vector] = []
        self.moved: list[int] = []
        self.repeats: list[int] = []
        self.total = 0
        self.order: list[int] = []

    def add(self, query: SeenQuery) -> Vector | None:
        """Add a query; return the weights that its trajectory sent before, None at its first."""
        number = query.trajectory
        earlier = self.latest[number] if number < len(self) else None
        self.total += 1
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
    """Base class that remembers the queries in `_seen` and estimates from its belief.

    Raises
    ------
    InvalidInput
        if the means lack something that it needs
    """

    tier: ClassVar[str] = "A"
    needs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, means: Means) -> None:
        missing = [NEEDED[need] for need in self.needs if getattr(means, need) is None]
        if missing:
            name = type(self).__name__.removesuffix("Eavesdropper")
            raise InvalidInput(f"{name} needs {' and '.join(missing)}, got none")
        self._seen = Trajectories()

    def observe(self, query: SeenQuery) -> None:
        """Take note of the next query."""
        self._seen.add(query)

    def forget_order(self) -> None:
        """Forget in which order queries came, which grows for as long as one listens."""
        self._seen.order.clear()

    def figures(self) -> dict[str, FloatArray]:
        """Return named evidence, each with one number for each trajectory seen so far."""
        return {}

    def estimate(self) -> Sequence[Vector]:
        """Return the last query of the most probable trajectory; several where they tie."""
        belief = self.belief()
        least = belief.max() * (1.0 - 1e-12)
        pairs = zip(self._seen.latest, belief, strict=True)
        return tuple(weights for weights, prob in pairs if prob >= least)
