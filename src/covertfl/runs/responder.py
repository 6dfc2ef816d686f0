"""Who answers a query: the interface between a run and the clients or the function behind it.

A run sends a `Query` and gets an `Outcome`.  Whatever takes time, local training by clients or by
the server, is yielded as `Work`, so that an engine can carry it out as it likes, alone or together
with the work of other runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from covertfl.decoys.replica import Replicas
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.learner import LearnerState, SiftedReplies
from covertfl.runs.participation import Attendance


@dataclass(frozen=True, eq=False)
class ClientWork:
    """A query to the clients; what they receive depends on the action through `weights` alone.

    If the replies are not `needed`, an engine that simulates clients may skip the work, while one
    with real clients asks them all the same.  Replies of `unused` clients do not count.
    """

    round: int
    weights: Vector
    attendance: Attendance
    needed: bool = True
    unused: frozenset[int] = frozenset()


@dataclass(frozen=True, eq=False)
class ServerWork:
    """Training that the server does for a decoy."""

    jobs: tuple[LocalJob, ...]


Work = ClientWork | ServerWork


@dataclass(frozen=True, eq=False)
class Query:
    """The query of a round.

    Parameters
    ----------
    round : 1, 2, ...
    trajectory : 0 for the true trajectory, 1, 2, ... for a decoy
    weights : the weights that are sent
    decoy : the decoy that is queried, or would have been if the round did not learn
    update : number, within its task, of the update that is owed next: 1, 2, ...; 0 if none is owed
    """

    round: int
    oracle_state: int
    trajectory: int
    weights: Vector
    decoy: int = 1
    update: int = 0


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a query.

    Parameters
    ----------
    attendance : the clients that were asked
    examples : number behind the valid replies, or behind all clients if replies were not needed
    replies : the valid replies; empty if they were not needed
    accepted : whether the round is a success, or would have been one
    noise : share of wrong labels among the data of the round, None if labels are right
    has_quorum : whether it has as many valid replies as a round needs to be used at all
    """

    attendance: Attendance
    examples: int
    replies: SiftedReplies
    accepted: bool
    noise: float | None = None
    has_quorum: bool = True


@dataclass(frozen=True, eq=False)
class Remembered:
    """State of a responder that a checkpoint keeps: arrays by name, and facts as JSON values."""

    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class Responder(ABC):
    """Whoever answers queries, and how the trajectories move on the replies."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """Names and shapes of the parameters."""

    @property
    @abstractmethod
    def num_decoys(self) -> int:
        """Number of decoy trajectories."""

    @property
    def is_steady(self) -> bool:
        """Whether clients could measure how long the server works, which must then be constant."""
        return False

    @abstractmethod
    def first_weights(self, seed: int) -> Vector:
        """Draw the weights that a trajectory starts from."""

    @abstractmethod
    def score(self, weights: Vector) -> float:
        """Evaluate weights: accuracy on the validation set, or the function's value."""

    def measure_loss(self, weights: Vector) -> float:
        """Return what training makes smaller, on the validation set where there is one."""
        return self.score(weights)

    @abstractmethod
    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """Send a query and judge the replies."""

    @abstractmethod
    def move_learner(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> LearnerState | None:
        """Move the true trajectory on the replies to its query; None where that fails."""

    @abstractmethod
    def move_decoy(
        self, learner: LearnerState, query: Query, outcome: Outcome
    ) -> Generator[Work, Any, LearnerState | None]:
        """Move the decoy that was queried; None where that fails."""

    @abstractmethod
    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """Describe the final weights, for the summary of the run."""

    @property
    def replicas(self) -> Replicas | None:
        """How the trajectories of an exchangeable run are images of the true one, else None."""
        return None

    @property
    def replies_are_weights(self) -> bool:
        """Whether clients reply with weights, not with gradients."""
        return True

    def needs_replies(self, trajectory: int) -> bool:
        """Return whether replies to a query of a trajectory are used."""
        return trajectory == 0

    def average(self, learner: LearnerState, query: Query, outcome: Outcome) -> Vector | None:
        """Return the average of the replies to any replica, in the frame of the truth.

        None where there is none, or where an aggregation fails.  Nothing is moved.
        """
        raise NotImplementedError

    def settle(self, learner: LearnerState, average: Vector) -> LearnerState:
        """Move the true trajectory to, or along, an average that `average` returned."""
        raise NotImplementedError

    def observe(self, round_number: int) -> int | None:
        """Return the oracle state that a round shows, None if it must be drawn."""
        return None

    def update(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, is_moving: bool
    ) -> Generator[Work, Any, LearnerState | None]:
        """Move the trajectory that was queried, if `is_moving`; None where that fails.

        An engine that computes moves in any case returns None also for one that is not used.
        """
        if not is_moving:
            return learner
        if query.trajectory == 0:
            return self.move_learner(learner, query, outcome)
        return (yield from self.move_decoy(learner, query, outcome))

    def rescore(
        self, scores: Sequence[float], before: LearnerState, after: LearnerState
    ) -> tuple[float, ...]:
        """Return the score of each trajectory after a round; unmoved ones keep their score."""
        pairs = zip(scores, before.trajectories, after.trajectories, strict=True)
        return tuple(known if old is new else self.score(new) for known, old, new in pairs)

    def prepare(self, learner: LearnerState) -> None:  # noqa: B027 (few have anything to do)
        """Make ready what the next round sends, while the last is being sealed."""

    def remember(self) -> Remembered:
        """Return what a resumed run needs, beside its own state."""
        return Remembered()
