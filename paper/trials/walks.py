"""Trajectories of many runs, trained side by side and without files.

A walk is a generator that requests local jobs and is sent their results, as a training run does,
and draws from the same streams: its weights are those that `covertfl train` would send.  The
requests of all walks that wait are answered in batches (`batches`).  Runs of one seed that differ
in their policies move the same trajectory in the same rounds until their actions differ: such moves
are made once (`SharedSteps`), unless a kernel carries out all moves of a trajectory by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from covertfl.kernels.chain import Moves, RatedChain, Stops
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import start_trajectories
from covertfl.runs.learner import LearnerState, move_to_average
from covertfl.runs.participation import Attendance
from covertfl.runs.responder import ClientWork, Outcome, Query, ServerWork, Work
from paper.trials.schedule import NO_REPLIES, Schedule, follow_estimate
from paper.trials.scorer import BatchKernel, Jobs, Scorer


@dataclass(frozen=True, eq=False)
class ToAverage:
    """The clients' jobs of a round, whose mean result is requested."""

    jobs: Jobs
    attendance: Attendance
    most_examples: int


@dataclass(frozen=True, eq=False)
class ToChain:
    """Moves to be carried out one after the other, and the stops at which weights are rated."""

    moves: Moves
    stops: Stops
    scorer: Scorer

    @property
    def jobs(self) -> Jobs:
        """The jobs of all moves."""
        return [job for move in self.moves for job in move]


@dataclass(frozen=True, eq=False)
class ToRate:
    """Weights whose accuracy is requested, on all of the validation set or on a part of it."""

    scorer: Scorer
    weights: Vector
    fully: bool


Request = Work | ToAverage | ToChain | ToRate
Line = tuple[tuple[int, ...], ...]  # what led to some weights, one entry for each move
_Result = TypeVar("_Result")


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


class SharedSteps:
    """Moves and ratings that several walks have in common, made by the first that comes to them.

    The walks are of runs with the same seed, clients and decoy, and train the same trajectory.
    """

    def __init__(self) -> None:
        self._begun: dict[tuple[str, Line], object] = {}
        self._done: dict[tuple[str, Line], Any] = {}

    def take(
        self, kind: str, line: Line, step: Generator[Request, Any, _Result]
    ) -> Generator[Request, Any, _Result]:
        """Make a step, or wait until another walk has made it, and return its result."""
        place, own = (kind, line), object()
        while (found := self._done.get(place, own)) is own:
            if self._begun.setdefault(place, own) is own:
                found = self._done[place] = yield from step
                self._forget(kind, len(line) - 1)
                break
            yield ServerWork(())
        result: _Result = found
        return result

    def _forget(self, kind: str, moves: int) -> None:
        """Forget what led to fewer moves; a walk that lags behind makes these steps again."""
        for place in list(self._done):
            if place[0] == kind and len(place[1]) < moves:
                # Another thread may have forgotten it.
                self._done.pop(place, None)
                self._begun.pop(place, None)


class _Rating:
    """Accuracies of a trajectory: coarse at every move, full where asked for and at the best."""

    def __init__(self, scorer: Scorer, fully: Collection[int], shared: SharedSteps) -> None:
        self._scorer, self._fully, self._shared = scorer, fully, shared
        self._best: tuple[Line, Vector] | None = None
        self.found = Trajectory()

    def take(self, line: Line, weights: Vector) -> Generator[Request, Any, None]:
        coarse, full, moves = self.found.coarse, self.found.full, len(line)
        coarse[moves] = yield from self._rate(line, weights, fully=False)
        if self._scorer.is_exact:
            full[moves] = coarse[moves]
        elif moves in self._fully:
            full[moves] = yield from self._rate(line, weights, fully=True)
        if self._best is None or coarse[moves] > coarse[len(self._best[0])]:
            self._best = line, weights

    def close(self) -> Walk:
        if self._best is not None and len(self._best[0]) not in self.found.full:
            best = yield from self._rate(*self._best, fully=True)
            self.found.full[len(self._best[0])] = best
        return self.found

    def _rate(self, line: Line, weights: Vector, *, fully: bool) -> Generator[Request, Any, float]:
        asked = _ask(ToRate(self._scorer, weights, fully))
        return (yield from self._shared.take("full" if fully else "coarse", line, asked))


def _ask(request: ToRate) -> Generator[Request, Any, float]:
    accuracy: float = yield request
    return accuracy


def walk_truth(
    clients: ClientResponder,
    schedule: Schedule,
    scorer: Scorer,
    *,
    keeps_weights: bool = False,
    shared: SharedSteps | None = None,
    start: LearnerState | None = None,
) -> Walk:
    """Train the true trajectory, in the rounds that move it.

    Which rounds do is in the schedule, decided by `runs.rounds.update_trajectories` (equation (1));
    how a round moves it is `runs.learner.move_to_average`, as in a training run.  Steps that walks
    of other policies make too are in `shared`.  `start` are the trajectories before the first
    round, None to draw them.
    """
    shared, line = shared or SharedSteps(), Line()
    learner = start or start_trajectories(clients.settings, clients)
    queries = schedule.list_queries(learns=True)
    last_held = follow_estimate(schedule)[-1].true
    fully = {len(queries), last_held or 0}
    if queries and not keeps_weights and can_chain(clients):
        works = (ClientWork(n, learner.true, schedule.attendances[n - 1]) for n, _ in queries)
        moves = [clients.make_jobs(work) for work in works]
        found = yield from _follow_chain(moves, Stops(range(len(queries) + 1), fully), scorer)
        if found is not None:
            return found
    rating = _Rating(scorer, fully, shared)
    yield from rating.take(line, learner.true)
    kept = [learner.true]
    for number, _ in queries:
        line += ((number,),)
        move = _move_truth(clients, learner, number, schedule.attendances[number - 1])
        learner = yield from shared.take("move", line, move)
        yield from rating.take(line, learner.true)
        if keeps_weights:
            kept.append(learner.true)
    found = yield from rating.close()
    found.weights = kept if keeps_weights else []
    return found


def _move_truth(
    clients: ClientResponder, learner: LearnerState, number: int, attendance: Attendance
) -> Generator[Request, Any, LearnerState]:
    jobs = clients.make_jobs(ClientWork(number, learner.true, attendance))
    average = yield ToAverage(jobs, attendance, int(clients.sizes.max()))
    return move_to_average(learner, average, clients.optimizer)


def walk_decoy(
    clients: ClientResponder,
    schedule: Schedule,
    needed: Sequence[int],
    scorer: Scorer,
    truth: Sequence[Vector] = (),
    *,
    is_chain: bool = False,
    shared: SharedSteps | None = None,
    start: LearnerState | None = None,
) -> Walk:
    """Train the decoy up to the last number of moves that is needed.

    The rounds that move it are those of the schedule, decided by `runs.rounds.update_trajectories`
    (equation (1)); the move is `ClientResponder.move_decoy`, as in a training run.

    Parameters
    ----------
    needed : numbers of moves after which the weights are rated, in increasing order, at least one
    is_chain : whether the decoy's jobs do not depend on its weights, and its move is their result
    truth : true weights by number of updates, for decoys that use them
    shared : steps that walks of other policies make too
    start : trajectories before the first round, None to draw them
    """
    shared, line = shared or SharedSteps(), Line()
    learner = start or start_trajectories(clients.settings, clients)
    queries = schedule.list_queries(learns=False)[: needed[-1]]
    if queries and is_chain and can_chain(clients):
        asked = [_query_decoy(schedule, learner, *query) for query in queries]
        moves = [clients.plan_decoy(learner, sent, outcome)[1] for sent, outcome in asked]
        found = yield from _follow_chain(moves, Stops(needed, needed[-1:]), scorer)
        if found is not None:
            return found
    rating = _Rating(scorer, set(needed[-1:]), shared)
    updates = [number for number, _ in schedule.list_queries(learns=True)]
    if 0 in needed:
        yield from rating.take(line, learner.decoys[0])
    for number, oracle_state in queries:
        # A decoy that uses the true weights depends on the rounds that led to them.
        made = [update for update in updates if update < number] if truth else []
        if truth:
            learner = replace(learner, true=truth[len(made)])
        line += ((number, *made),)
        sent, outcome = _query_decoy(schedule, learner, number, oracle_state)
        moved = yield from shared.take("move", line, clients.move_decoy(learner, sent, outcome))
        learner = moved or learner
        if len(line) in needed:
            yield from rating.take(line, learner.decoys[0])
    return (yield from rating.close())


def can_chain(clients: ClientResponder) -> bool:
    """Return whether the kernel can carry out all moves of a trajectory by itself."""
    return clients.replies_are_weights and isinstance(clients.kernel, BatchKernel)


def _follow_chain(
    moves: Moves, stops: Stops, scorer: Scorer
) -> Generator[Request, Any, Trajectory | None]:
    """Train a trajectory whose jobs are known beforehand.

    None if its weights do not stay finite: then replies have to be sifted, move by move.
    """
    rated: RatedChain = yield ToChain(moves, stops, scorer)
    if not rated.is_finite:
        return None
    return Trajectory(dict(zip(stops.coarse, rated.coarse.tolist(), strict=True)), dict(rated.full))


def _query_decoy(
    schedule: Schedule, learner: LearnerState, number: int, oracle_state: int
) -> tuple[Query, Outcome]:
    """Return a query of the decoy, and an outcome without replies, on which it moves."""
    query = Query(number, oracle_state, 1, learner.decoys[0])
    return query, Outcome(schedule.attendances[number - 1], 0, NO_REPLIES, True)
