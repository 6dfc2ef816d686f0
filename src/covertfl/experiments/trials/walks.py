"""Trajectories of many runs, trained side by side and without files.

A walk is a generator that asks for local jobs and goes on with their results, as a training run
does, and draws from the same streams: its weights are those that `covertfl train` would send.  The
jobs of all walks that wait are carried out as one batch, and so are their ratings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.experiments.trials.schedule import Schedule, follow_estimate
from covertfl.experiments.trials.scorer import Scorer
from covertfl.kernels.job import Examples, LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientAnswers
from covertfl.runs.federation import ClientWork, Outcome, Query, ServerWork
from covertfl.runs.learner import (
    LearnerState,
    Reply,
    SiftedReplies,
    average_replies,
    move_to_average,
    sift_replies,
    start_learner,
)
from covertfl.seeding import Stream, draw_seed

Jobs = Sequence[LocalJob]


@dataclass(frozen=True, eq=False)
class ToAverage:
    """The clients' jobs of a round, of whose results a walk asks for the mean."""

    jobs: Jobs
    clients: IntArray
    most_examples: int


@dataclass(frozen=True, eq=False)
class ToChain:
    """Jobs one after the other, and after how many of them their weights are to be rated."""

    jobs: Jobs
    stops: Sequence[int]
    scorer: Scorer


@dataclass(frozen=True, eq=False)
class ToRate:
    """Weights whose accuracy a walk asks for, on all of the validation set or a part of it."""

    scorer: Scorer
    weights: Vector
    fully: bool


# A walk is sent the weights that its jobs gave, or what else it asked for.
Asked = Jobs | ToAverage | ToChain | ToRate
Walk = Generator[Asked, Any, Any]
_Kind = TypeVar("_Kind", ToAverage, ToChain, ToRate)
# Chains that are carried out between two reports of progress.
_CHAINS_AT_ONCE = 512
NO_REPLIES = SiftedReplies((), np.empty((0, 0), np.float32), np.empty(0, np.int64), ())


@runtime_checkable
class AveragesJobs(Protocol):
    """A kernel that puts the results of jobs together by itself."""

    def average_jobs(self, groups: Sequence[Jobs]) -> list[Vector]:
        """The mean of the results of each group's jobs, weighted by their rows."""
        ...


class RatedChain(Protocol):
    """Accuracies along a chain of jobs: at its stops, and more exactly at the best and the last."""

    coarse: FloatArray
    best: float
    last: float


@runtime_checkable
class RatesChains(Protocol):
    """A kernel that carries out jobs one after the other and rates their weights on the way."""

    def rate_chains(
        self,
        chains: Sequence[Jobs],
        stops: Sequence[Sequence[int]],
        *,
        coarse: Examples,
        full: Examples,
    ) -> Sequence[RatedChain]:
        """What the weights of each chain are worth after so many of its jobs."""
        ...


@dataclass(eq=False)
class Trajectory:
    """The accuracies of a trajectory, where they are needed, by how often it has moved.

    Parameters
    ----------
    coarse : on a part of the validation set
    full : on all of it
    weights : by number of moves, where they were kept
    examples : trained on, each as often as it was used
    """

    coarse: dict[int, float] = field(default_factory=dict)
    full: dict[int, float] = field(default_factory=dict)
    weights: list[Vector] = field(default_factory=list)
    examples: int = 0


class _Rating:
    """Rates a trajectory as it goes: coarsely everywhere, fully where asked for and at its best."""

    def __init__(self, scorer: Scorer, fully: Collection[int]) -> None:
        self._scorer, self._fully = scorer, fully
        self._best: tuple[int, Vector] | None = None
        self.found = Trajectory()

    def take(self, moves: int, weights: Vector) -> Generator[Asked, Any, None]:
        coarse, full = self.found.coarse, self.found.full
        coarse[moves] = yield ToRate(self._scorer, weights, False)
        if self._scorer.is_exact:
            full[moves] = coarse[moves]
        elif moves in self._fully:
            full[moves] = yield ToRate(self._scorer, weights, True)
        if self._best is None or coarse[moves] > coarse[self._best[0]]:
            self._best = moves, weights

    def close(self) -> Generator[Asked, Any, Trajectory]:
        if self._best is not None and self._best[0] not in self.found.full:
            self.found.full[self._best[0]] = yield ToRate(self._scorer, self._best[1], True)
        return self.found


def count_rows(jobs: Jobs) -> int:
    """Examples in some jobs."""
    return sum(len(job.rows) for job in jobs)


def start_trajectories(answers: ClientAnswers) -> LearnerState:
    """Both trajectories at their beginning, as `federation.start_run` has them."""
    settings = answers.settings
    seed, algorithm = settings.hidden_seed, settings.sections.federation.algorithm
    true, *decoys = (
        answers.first_weights(draw_seed(seed, Stream.INITIAL, number))
        for number in range(1 + answers.num_decoys)
    )
    return start_learner(true, decoys, algorithm)


def walk_truth(
    answers: ClientAnswers, schedule: Schedule, scorer: Scorer, *, keeps_weights: bool = False
) -> Walk:
    """Train the true trajectory: only rounds that move it are worked out."""
    learner = start_trajectories(answers)
    queries = _list_queries(schedule, learns=True)
    last_held = follow_estimate(schedule)[-1].true
    rating = _Rating(scorer, {len(queries), last_held or 0})
    yield from rating.take(0, learner.true)
    kept = [learner.true]
    for moves, (number, _) in enumerate(queries, start=1):
        attendance = schedule.attendances[number - 1]
        jobs = answers.make_jobs(ClientWork(number, learner.true, attendance))
        rating.found.examples += count_rows(jobs)
        present = attendance.clients[attendance.batches > 0]
        average = yield ToAverage(jobs, present, int(answers.sizes.max()))
        learner = move_to_average(learner, average, answers.optimizer)
        yield from rating.take(moves, learner.true)
        if keeps_weights:
            kept.append(learner.true)
    found = yield from rating.close()
    found.weights = kept if keeps_weights else []
    return found


def walk_decoy(
    answers: ClientAnswers,
    schedule: Schedule,
    needed: Sequence[int],
    scorer: Scorer,
    truth: Sequence[Vector] = (),
) -> Walk:
    """Train the decoy up to the last number of moves that is needed, and score it where it is.

    Parameters
    ----------
    needed : numbers of moves whose weights are to be scored, rising
    truth : true weights by number of updates, for decoys that look at them
    """
    learner = start_trajectories(answers)
    rating = _Rating(scorer, set(needed[-1:]))
    queries = iter(_list_queries(schedule, learns=False))
    updates = np.cumsum(np.array(schedule.learns) & np.array(schedule.moves))
    wanted = set(needed)
    for moves in range(needed[-1] + 1 if needed else 0):
        if moves in wanted:
            yield from rating.take(moves, learner.decoys[0])
        if moves == needed[-1]:
            break
        number, oracle_state = next(queries)
        if truth:
            learner = replace(learner, true=truth[int(updates[number - 1])])
        sent = Query(number, oracle_state, 1, learner.decoys[0])
        outcome = Outcome(schedule.attendances[number - 1], 0, NO_REPLIES, True)
        learner = yield from _deceive(answers, learner, sent, outcome, rating.found)
    return (yield from rating.close())


def walk_chain(
    answers: ClientAnswers, schedule: Schedule, needed: Sequence[int], scorer: Scorer
) -> Walk:
    """As `walk_decoy` for decoys that train on and on, whose jobs are known beforehand.

    Parameters
    ----------
    answers : with a decoy whose jobs do not depend on its weights, and whose move is their result
    needed : as for `walk_decoy`, not only the beginning
    """
    learner, found = start_trajectories(answers), Trajectory()
    jobs: list[LocalJob] = []
    for number, oracle_state in _list_queries(schedule, learns=False)[: needed[-1]]:
        sent = Query(number, oracle_state, 1, learner.decoys[0])
        outcome = Outcome(schedule.attendances[number - 1], 0, NO_REPLIES, True)
        jobs += answers.plan_decoy(learner, sent, outcome)[1]
    found.examples = count_rows(jobs)
    rated: RatedChain = yield ToChain(jobs, needed, scorer)
    found.coarse = dict(zip(needed, rated.coarse.tolist(), strict=True))
    found.full = {needed[-1]: rated.last, needed[int(rated.coarse.argmax())]: rated.best}
    return found


def _list_queries(schedule: Schedule, *, learns: bool) -> list[tuple[int, int]]:
    """Number and oracle state of the rounds that move one of the trajectories."""
    rounds = zip(schedule.oracle_states, schedule.learns, schedule.moves, strict=True)
    return [
        (number, state)
        for number, (state, is_true, moves) in enumerate(rounds, start=1)
        if is_true == learns and moves
    ]


def _deceive(
    answers: ClientAnswers,
    learner: LearnerState,
    query: Query,
    outcome: Outcome,
    found: Trajectory,
) -> Generator[Asked, Any, LearnerState]:
    """`ClientAnswers.move_decoy`, which asks for the server's work only; its examples are counted."""
    asking, results = answers.move_decoy(learner, query, outcome), None
    while True:
        try:
            work = asking.send(results)
        except StopIteration as stop:
            moved: LearnerState = stop.value
            return moved
        assert isinstance(work, ServerWork)
        found.examples += count_rows(work.jobs)
        results = yield work.jobs


def drive(
    walks: Sequence[tuple[LocalKernel, Walk]],
    *,
    on_batch: Callable[[int], None] | None = None,
    ended: Callable[[Mapping[int, Any]], None] | None = None,
    threads: int = 1,
) -> list[Any]:
    """Carry all walks to their ends, the jobs of those that wait as one batch.

    Parameters
    ----------
    walks : each with the kernel that carries out its jobs
    threads : walks that go on side by side; a GPU must not wait for one core to average replies
    tell : told how many examples were trained on, after every batch
    ended : told the outcomes of walks that have come to their ends, by number
    """
    outcomes: dict[int, Any] = {}
    reported: set[int] = set()
    waiting: dict[int, Asked] = {}

    def go_on(number: int, results: Any) -> None:
        try:
            waiting[number] = walks[number][1].send(results)
        except StopIteration as stop:
            waiting.pop(number, None)
            outcomes[number] = stop.value

    def all_go_on(answers: Mapping[int, Any]) -> None:
        if threads == 1:
            for number, answer in answers.items():
                go_on(number, answer)
            return
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(go_on, answers.keys(), answers.values()))

    def report_ends() -> None:
        new = {number: outcome for number, outcome in outcomes.items() if number not in reported}
        reported.update(new)
        if new and ended is not None:
            ended(new)

    # One after the other: first weights are drawn from torch's global generator.
    for number in range(len(walks)):
        go_on(number, None)
    report_ends()
    while waiting:
        # Jobs wait until all have been rated, so that walks stay in step and batches large.
        rates = _choose(waiting, ToRate)
        chains = _choose(waiting, ToChain)
        if rates:
            all_go_on(_rate(rates))
            report_ends()
            continue
        asked = _take_part(chains) if chains else dict(waiting)
        trained = sum(count_rows(_list_jobs(ask)) for ask in asked.values())
        all_go_on(_carry_out(walks, asked))
        report_ends()
        if on_batch is not None:
            on_batch(trained)
    return [outcomes[number] for number in range(len(walks))]


def _choose(waiting: Mapping[int, Asked], kind: type[_Kind]) -> dict[int, _Kind]:
    """Requests of one kind."""
    return {number: ask for number, ask in waiting.items() if isinstance(ask, kind)}


def _take_part(chains: Mapping[int, ToChain]) -> dict[int, Asked]:
    """The longest chains, so many that all are done in a few portions of one size."""
    portions = -(-len(chains) // _CHAINS_AT_ONCE)
    longest = sorted(chains, key=lambda number: -count_rows(chains[number].jobs))
    return {number: chains[number] for number in longest[: -(-len(chains) // portions)]}


def _list_jobs(ask: Asked) -> Jobs:
    """The jobs of a request."""
    if isinstance(ask, ToRate):
        return ()
    return ask.jobs if isinstance(ask, ToAverage | ToChain) else ask


def _rate(asked: Mapping[int, ToRate]) -> dict[int, float]:
    """The accuracies that walks ask for, those on the same examples together."""
    groups: dict[tuple[int, bool], list[int]] = {}
    for number, ask in asked.items():
        groups.setdefault((id(ask.scorer), ask.fully), []).append(number)
    found: dict[int, float] = {}
    for members in groups.values():
        first = asked[members[0]]
        weights = [asked[number].weights for number in members]
        rated = first.scorer.rate(weights, fully=first.fully)
        found.update(zip(members, rated, strict=True))
    return found


def _carry_out(
    walks: Sequence[tuple[LocalKernel, Walk]], waiting: Mapping[int, Asked]
) -> dict[int, Any]:
    """What walks asked for, that of each kernel and kind together."""
    kernels = {id(walks[number][0]): walks[number][0] for number in waiting}
    done: dict[int, Any] = {}
    for key, kernel in kernels.items():
        members = {number: ask for number, ask in waiting.items() if id(walks[number][0]) == key}
        done |= _rate_chains(kernel, _choose(members, ToChain))
        done |= _average_there(kernel, _choose(members, ToAverage))
        rest = {n: ask for n, ask in members.items() if n not in done}
        results = _run(kernel, {n: _list_jobs(ask) for n, ask in rest.items()})
        for number, ask in rest.items():
            found = results[number]
            done[number] = _average_here(ask, found) if isinstance(ask, ToAverage) else found
    return done


def _rate_chains(kernel: LocalKernel, asked: Mapping[int, ToChain]) -> dict[int, RatedChain]:
    """Chains, those with the same examples for rating together."""
    done: dict[int, RatedChain] = {}
    for scorer in {id(ask.scorer): ask.scorer for ask in asked.values()}.values():
        members = [number for number, ask in asked.items() if ask.scorer is scorer]
        chains = [asked[number].jobs for number in members]
        stops = [asked[number].stops for number in members]
        assert isinstance(kernel, RatesChains)
        rated = kernel.rate_chains(chains, stops, coarse=scorer.coarse, full=scorer.full)
        done |= dict(zip(members, rated, strict=True))
    return done


def _average_there(kernel: LocalKernel, asked: Mapping[int, ToAverage]) -> dict[int, Vector]:
    """Means that the kernel works out by itself, if it can."""
    if not asked or not isinstance(kernel, AveragesJobs):
        return {}
    means = kernel.average_jobs([ask.jobs for ask in asked.values()])
    # One reply that is not finite spoils a mean: then replies are looked at one by one.
    pairs = zip(asked, means, strict=True)
    return {number: mean for number, mean in pairs if np.isfinite(mean).all()}


def _average_here(ask: ToAverage, results: Sequence[Vector]) -> Vector:
    """The mean of those results that a server would take."""
    replies = [
        Reply(int(client), values, len(job.rows))
        for client, job, values in zip(ask.clients, ask.jobs, results, strict=True)
    ]
    return average_replies(sift_replies(replies, len(results[0]), ask.most_examples))


def _run(kernel: LocalKernel, asked: Mapping[int, Jobs]) -> dict[int, list[Vector]]:
    """The results of all jobs, done together."""
    if not asked:
        return {}
    results = iter(kernel.run([job for jobs in asked.values() for job in jobs]))
    return {number: [next(results) for _ in jobs] for number, jobs in asked.items()}
