"""Trajectories of many runs, trained side by side and without files.

A walk is a generator that requests local jobs and is sent their results, as a training run does,
and draws from the same streams: its weights are those that `covertfl train` would send.  The
requests of all walks that wait are answered in batches (`batches`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.experiments.trials.schedule import NO_REPLIES, Schedule, follow_estimate
from covertfl.experiments.trials.scorer import Jobs, Scorer
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import start_trajectories
from covertfl.runs.learner import LearnerState, move_to_average
from covertfl.runs.participation import Attendance
from covertfl.runs.responder import ClientWork, Outcome, Query, Work

if TYPE_CHECKING:
    from covertfl.kernels.cnn.ratings import RatedChain


@dataclass(frozen=True, eq=False)
class ToAverage:
    """The clients' jobs of a round, whose mean result is requested."""

    jobs: Jobs
    attendance: Attendance
    most_examples: int


@dataclass(frozen=True, eq=False)
class ToChain:
    """Jobs to be carried out one after the other, and the stops at which weights are rated."""

    jobs: Jobs
    stops: Sequence[int]
    scorer: Scorer


@dataclass(frozen=True, eq=False)
class ToRate:
    """Weights whose accuracy is requested, on all of the validation set or on a part of it."""

    scorer: Scorer
    weights: Vector
    fully: bool


Request = Work | ToAverage | ToChain | ToRate


@dataclass(eq=False)
class Trajectory:
    """The accuracies of a trajectory where they are needed, by its number of moves.

    `coarse` are those on a part of the validation set, `full` those on all of it.
    """

    coarse: dict[int, float] = field(default_factory=dict)
    full: dict[int, float] = field(default_factory=dict)
    weights: list[Vector] = field(default_factory=list)  # by number of moves, where kept
    examples: int = 0  # trained on, each counted as often as it was used


Walk = Generator[Request, Any, Trajectory]


class _Rating:
    """Accuracies of a trajectory: coarse at every move, full where asked for and at the best."""

    def __init__(self, scorer: Scorer, fully: Collection[int]) -> None:
        self._scorer, self._fully = scorer, fully
        self._best: tuple[int, Vector] | None = None
        self.found = Trajectory()

    def take(self, moves: int, weights: Vector) -> Generator[Request, Any, None]:
        coarse, full = self.found.coarse, self.found.full
        coarse[moves] = yield ToRate(self._scorer, weights, False)
        if self._scorer.is_exact:
            full[moves] = coarse[moves]
        elif moves in self._fully:
            full[moves] = yield ToRate(self._scorer, weights, True)
        if self._best is None or coarse[moves] > coarse[self._best[0]]:
            self._best = moves, weights

    def close(self) -> Walk:
        if self._best is not None and self._best[0] not in self.found.full:
            self.found.full[self._best[0]] = yield ToRate(self._scorer, self._best[1], True)
        return self.found


def walk_truth(
    clients: ClientResponder, schedule: Schedule, scorer: Scorer, *, keeps_weights: bool = False
) -> Walk:
    """Train the true trajectory, in the rounds that move it.

    Which rounds do is in the schedule, decided by `runs.rounds.update_trajectories` (equation (1));
    how a round moves it is `runs.learner.move_to_average`, as in a training run.
    """
    learner = start_trajectories(clients.settings, clients)
    queries = schedule.list_queries(learns=True)
    last_held = follow_estimate(schedule)[-1].true
    rating = _Rating(scorer, {len(queries), last_held or 0})
    yield from rating.take(0, learner.true)
    kept = [learner.true]
    for moves, (number, _) in enumerate(queries, start=1):
        attendance = schedule.attendances[number - 1]
        jobs = clients.make_jobs(ClientWork(number, learner.true, attendance))
        average = yield ToAverage(jobs, attendance, int(clients.sizes.max()))
        learner = move_to_average(learner, average, clients.optimizer)
        yield from rating.take(moves, learner.true)
        if keeps_weights:
            kept.append(learner.true)
    found = yield from rating.close()
    found.weights = kept if keeps_weights else []
    return found


def walk_decoy(
    clients: ClientResponder,
    schedule: Schedule,
    needed: Sequence[int],
    scorer: Scorer,
    truth: Sequence[Vector] = (),
) -> Walk:
    """Train the decoy up to the last number of moves that is needed.

    The rounds that move it are those of the schedule, decided by `runs.rounds.update_trajectories`
    (equation (1)); the move is `ClientResponder.move_decoy`, as in a training run.

    Parameters
    ----------
    needed : numbers of moves after which the weights are rated, in increasing order, at least one
    truth : true weights by number of updates, for decoys that use them
    """
    learner = start_trajectories(clients.settings, clients)
    rating = _Rating(scorer, set(needed[-1:]))
    updates = np.cumsum(np.array(schedule.learns) & np.array(schedule.moves))
    if 0 in needed:
        yield from rating.take(0, learner.decoys[0])
    queries = schedule.list_queries(learns=False)[: needed[-1]]
    for moves, (number, oracle_state) in enumerate(queries, start=1):
        if truth:
            learner = replace(learner, true=truth[int(updates[number - 1])])
        sent, outcome = _query_decoy(schedule, learner, number, oracle_state)
        learner = yield from clients.move_decoy(learner, sent, outcome)
        if moves in needed:
            yield from rating.take(moves, learner.decoys[0])
    return (yield from rating.close())


def walk_chain(
    clients: ClientResponder, schedule: Schedule, needed: Sequence[int], scorer: Scorer
) -> Walk:
    """Train a decoy whose jobs are known beforehand, as one chain; otherwise as `walk_decoy`.

    Parameters
    ----------
    clients : with a decoy whose jobs do not depend on its weights, and whose move is their result
    needed : as for `walk_decoy`, with a number above zero
    """
    learner = start_trajectories(clients.settings, clients)
    jobs: list[LocalJob] = []
    for number, oracle_state in schedule.list_queries(learns=False)[: needed[-1]]:
        sent, outcome = _query_decoy(schedule, learner, number, oracle_state)
        jobs += clients.plan_decoy(learner, sent, outcome)[1]
    rated: RatedChain = yield ToChain(jobs, needed, scorer)
    return Trajectory(
        dict(zip(needed, rated.coarse.tolist(), strict=True)),
        {needed[-1]: rated.last, needed[int(rated.coarse.argmax())]: rated.best},
    )


def _query_decoy(
    schedule: Schedule, learner: LearnerState, number: int, oracle_state: int
) -> tuple[Query, Outcome]:
    """Return a query of the decoy, and an outcome without replies, on which it moves."""
    query = Query(number, oracle_state, 1, learner.decoys[0])
    return query, Outcome(schedule.attendances[number - 1], 0, NO_REPLIES, True)
