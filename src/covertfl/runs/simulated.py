"""The simulated engine: clients that train the model locally, the work of all runs as one batch.

The engine collects what all runs request, hands the jobs of each kernel over together, and sends
the results back.  Work that is equal in every bit, as when two runs differ only in their decoys or
their policies have not differed yet, is carried out once, and the runs share its results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from covertfl.kernels.job import LocalJob, LocalKernel, Vector
from covertfl.runs.engine import ClientWork, ScoreWork, Work, drive
from covertfl.runs.participation import (
    Acceptance,
    Attendance,
    Clients,
    SimulatedParticipation,
    count_examples,
)
from covertfl.runs.settings import FederationSection, RunSettings
from covertfl.runs.state import Federation
from covertfl.schemes.replies import ExactAverage, Reply, SiftedReplies, sift_replies
from covertfl.schemes.scheme import Jobs, Outcome, Packed, Query, Scheme
from covertfl.seeding import Stream, make_generator_and_seed
from covertfl.tasks.data import draw_rows
from covertfl.tasks.task import TrainingTask

Result = TypeVar("Result")
Asked = tuple[Federation, Work]


@dataclass(frozen=True, eq=False)
class SimulatedEngine:
    """Clients whose data are in this process.

    Parameters
    ----------
    settings : of the run
    acceptance : when a round is a success
    """

    settings: RunSettings
    acceptance: Acceptance

    @property
    def aggregator(self) -> ExactAverage:
        """Averages exactly, as FedAvg or FedSGD."""
        section = self.settings.sections.federation
        return ExactAverage(section.algorithm, section.optimizer.make())

    def observe(self, round_number: int) -> int | None:
        """Return None: oracle states are drawn."""
        return None

    def ask(self, query: Query, scheme: Scheme, clients: Clients) -> Generator[Work, Any, Outcome]:
        """Send the query to the clients that take part; skip replies that nobody needs."""
        attendance = self.draw_clients(query, clients)
        is_needed, fault = query.needs_replies, partial(scheme.fault, query)
        sifted: SiftedReplies
        sifted = yield ClientWork(
            query.round,
            query.payload,
            attendance,
            clients,
            fault,
            is_needed,
            judge=type(scheme).fault,
        )
        examples = sifted.total if is_needed else self.count_examples(attendance, clients)
        number = len(sifted.clients) if is_needed else np.count_nonzero(attendance.batches)
        has_quorum = self.acceptance.has_quorum(int(number))
        accepted = has_quorum and self.accepts(query, clients, examples)
        return Outcome(
            attendance.clients, attendance.batches, examples, sifted, accepted, has_quorum
        )

    def accepts(self, query: Query, clients: Clients, examples: int) -> bool:
        """Return whether a round with some examples is, or would be, a success."""
        state = query.oracle_state
        return self.acceptance.accepts(clients.sizes, state, query.round, examples)

    def draw_clients(self, query: Query, clients: Clients) -> Attendance:
        """Draw the clients of a round and their batches."""
        recorded = self.acceptance.recorded
        participation = SimulatedParticipation(self.settings, clients.sizes, recorded)
        return participation.draw_clients(query.oracle_state, query.round)

    def count_examples(self, attendance: Attendance, clients: Clients) -> int:
        """Return the number of examples that the clients of a round train on."""
        batch_size = self.settings.sections.federation.batch_size
        sizes = clients.sizes[attendance.clients]
        return int(count_examples(attendance.batches, sizes, batch_size).sum())

    def prepare(self, weights: Sequence[Vector], *, in_sight: bool) -> None:
        """Do nothing: nobody waits for a query."""

    def remember(self) -> Packed:
        """Return nothing: everything is drawn again."""
        return Packed()

    def describe(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


def make_client_job(
    run: RunSettings, task: TrainingTask, client: int, batches: int, weights: Vector, number: int
) -> LocalJob:
    """Return a client's job: its examples in an order of its own, cut to some batches.

    It depends on the client, the round and the weights, never on why the weights were sent.
    """
    section, most = run.sections.federation, batches * run.sections.federation.batch_size
    generator, own = make_generator_and_seed(run.seed, Stream.CLIENT, number, client)
    balance = run.sections.data.balance
    return LocalJob(
        weights=weights,
        examples=task.train,
        rows=draw_rows(task, client, most, balance=balance, generator=generator),
        batch_size=section.batch_size,
        seed=own,
        work="train" if section.algorithm == "fedavg" else "gradient",
    )


def run_together(
    runs: Sequence[tuple[Federation, Generator[Work, Any, Result]]],
    on_examples: Callable[[int], None] | None = None,
) -> list[Result]:
    """Carry all runs, at any round and not in step, to their ends; return what they return.

    `on_examples` is called with the number of examples that each batch trains on.
    """

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        # Queries wait until every run has one: runs stay in step, so that equal work meets.
        inner = {n: asked for n, asked in waiting.items() if not isinstance(asked, ClientWork)}
        chosen = inner or waiting
        work = [(runs[number][0], asked) for number, asked in chosen.items()]
        return dict(zip(chosen, carry_out(work, on_examples), strict=True))

    return drive([rounds for _, rounds in runs], answer)


def carry_out(work: Sequence[Asked], on_examples: Callable[[int], None] | None = None) -> list[Any]:
    """Return the results of each run's work, all of it carried out together and equal work once."""
    firsts = find_firsts([(_describe(*asked), _list_weights(asked[1])) for asked in work])
    distinct = {number: work[number] for number in firsts}
    scored = {n: asked for n, asked in distinct.items() if isinstance(asked[1], ScoreWork)}
    trained = {n: asked for n, asked in distinct.items() if n not in scored}
    results = _score(scored) | _train(trained, on_examples)
    return [results[number] for number in firsts]


def _describe(run: Federation, work: Work) -> Hashable:
    """Return what determines the results of work, beside the weights; itself where it is unique."""
    kernel, sections = id(run.kernel), run.settings.sections
    if isinstance(work, ScoreWork):
        examples = run.task.validation
        return (kernel, id(examples.features), id(examples.labels), run.task.loss)
    if isinstance(work, Jobs):
        return (kernel, work.origin) if work.weights else work
    here, section, task = work.attendance, sections.federation, work.clients.task
    return (
        *(kernel, id(task.train), id(task.clients), run.settings.seed, sections.data.balance),
        *(section.batch_size, section.algorithm, section.mark, work.round, work.needed, work.judge),
        *(here.clients.tobytes(), here.batches.tobytes()),
    )


def _list_weights(work: Work) -> Sequence[Vector]:
    return work.weights if isinstance(work, Jobs) else (work.weights,)


def find_firsts(asked: Sequence[tuple[Hashable, Sequence[Vector]]]) -> list[int]:
    """Return, for each key with its weights, the place of the first that equals it in every bit."""
    known: dict[Hashable, list[int]] = {}
    firsts = []
    for place, (key, weights) in enumerate(asked):
        alike = known.setdefault(key, [])
        same = (other for other in alike if all(map(_is_same, asked[other][1], weights)))
        first = next(same, place)
        if first == place:
            alike.append(place)
        firsts.append(first)
    return firsts


def _is_same(one: Vector, other: Vector) -> bool:
    """Return whether weights are equal in every bit."""
    if one is other:
        return True
    if one[0] != other[0]:  # as nearly always where they differ
        return False
    return np.array_equal(one.view(np.int32), other.view(np.int32))


def _score(scored: Mapping[int, Asked]) -> dict[int, float]:
    """Return scores by number, those of the same kernel and validation set found together."""
    groups: dict[Hashable, dict[int, Vector]] = {}
    for number, (run, work) in scored.items():
        assert isinstance(work, ScoreWork)
        groups.setdefault(_describe(run, work), {})[number] = work.weights
    found: dict[int, float] = {}
    for group in groups.values():
        validation = scored[next(iter(group))][0].validation
        found |= zip(group, validation.score_all(list(group.values())), strict=True)
    return found


def _train(
    trained: Mapping[int, Asked], on_examples: Callable[[int], None] | None
) -> dict[int, Any]:
    """Return the valid replies to queries, and the results of other jobs, by number."""
    listed = {number: _list_jobs(*asked) for number, asked in trained.items()}
    kernels = {number: run.kernel for number, (run, _) in trained.items()}
    asked = [(kernels[number], job) for number, jobs in listed.items() for job in jobs]
    done = iter(run_jobs(asked, on_examples))
    found: dict[int, Any] = {}
    for number, (run, work) in trained.items():
        jobs = listed[number]
        values = [next(done) for _ in jobs]
        if isinstance(work, ClientWork):
            found[number] = gather(run.settings, work, jobs, values)
        else:
            found[number] = values
    return found


def gather(
    settings: RunSettings, work: ClientWork, jobs: Sequence[LocalJob], values: Sequence[Vector]
) -> SiftedReplies:
    """Return the valid replies of the clients that took part, from the results of their jobs."""
    here = work.attendance
    present = here.clients[here.batches > 0] if work.needed else here.clients[:0]
    results = zip(present.tolist(), values, jobs, strict=True)
    replies = [Reply(client, one, len(job.rows)) for client, one, job in results]
    if settings.sections.federation.mark:
        replies = _mark(settings.sections.federation, work.weights, replies)
    return sift_replies(replies, work.fault, int(work.clients.sizes.max()))


def _mark(section: FederationSection, weights: Vector, replies: list[Reply]) -> list[Reply]:
    """Return the replies with the pattern that an active eavesdropper adds to its own."""
    from covertfl.eavesdroppers.clients import SPY, add_mark

    start = weights if section.algorithm == "fedavg" else np.zeros_like(weights)
    return [
        replace(reply, values=add_mark(reply.values, start, section.mark))
        if reply.client == SPY
        else reply
        for reply in replies
    ]


def _list_jobs(run: Federation, work: Work) -> list[LocalJob]:
    """Return the jobs of the server, or of all clients that are not absent."""
    if isinstance(work, Jobs):
        return list(work.plan())
    assert isinstance(work, ClientWork)
    here = work.attendance
    return [
        make_client_job(
            run.settings, work.clients.task, int(client), int(batches), work.weights, work.round
        )
        for client, batches in zip(here.clients, here.batches, strict=True)
        if batches > 0 and work.needed
    ]


def run_jobs(
    asked: Sequence[tuple[LocalKernel, LocalJob]], on_examples: Callable[[int], None] | None = None
) -> list[Vector]:
    """Return the results of jobs, each kernel's carried out in one batch and equal jobs once."""
    firsts = find_firsts([(_describe_job(kernel, job), [job.weights]) for kernel, job in asked])
    todo: dict[int, list[int]] = {}
    for number in dict.fromkeys(firsts):
        todo.setdefault(id(asked[number][0]), []).append(number)
    results: dict[int, Vector] = {}
    for numbers in todo.values():
        done = asked[numbers[0]][0].run([asked[number][1] for number in numbers])
        results |= zip(numbers, done, strict=True)
    if on_examples is not None:
        on_examples(sum(len(asked[number][1].rows) for number in results))
    return [results[number] for number in firsts]


def _describe_job(kernel: LocalKernel, job: LocalJob) -> Hashable:
    """Return what determines a job's result, beside its weights."""
    # Examples are shared between runs, so the identity of their arrays is enough.
    examples = (id(job.examples.features), id(job.examples.labels))
    return (id(kernel), *examples, job.rows.tobytes(), job.batch_size, job.seed, job.work)
