"""The simulated engine: the work of all runs that wait is carried out as one batch.

The engine collects what all runs request, hands the jobs of each kernel over together, and sends
the results back.  Work that is equal in every bit, as when two runs differ only in their decoys or
their policies have not differed yet, is carried out once, and the runs share its results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from covertfl.kernels.job import LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.learner import Reply, SiftedReplies
from covertfl.runs.responder import ClientWork, ScoreWork, ServerWork, Work
from covertfl.runs.rounds import Rounds, drive

Result = TypeVar("Result")

Asked = tuple[ClientResponder, Work]


def run_together(
    runs: Sequence[tuple[Federation, Rounds]], on_examples: Callable[[int], None] | None = None
) -> list[RunState]:
    """Carry all runs, at any round and not in step, to their ends; return their final states.

    `on_examples` is called with the number of examples that each batch trains on.
    """

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        # Queries wait until every run has one: runs stay in step, so that equal work meets.
        inner = {n: asked for n, asked in waiting.items() if not isinstance(asked, ClientWork)}
        chosen = inner or waiting
        work = [(runs[number][0].responder, asked) for number, asked in chosen.items()]
        return dict(zip(chosen, carry_out(work, on_examples), strict=True))

    return drive([rounds for _, rounds in runs], answer)


def run_changing(
    rounds: Generator[Work, Any, Result], find_federation: Callable[[], Federation]
) -> Result:
    """Carry one run to its end, whose federation may change between two rounds."""

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        return {0: carry_out([(find_federation().responder, waiting[0])])[0]}

    [result] = drive([rounds], answer)
    return result


def carry_out(work: Sequence[Asked], on_examples: Callable[[int], None] | None = None) -> list[Any]:
    """Return the results of each run's work, all of it carried out together and equal work once."""
    firsts = find_firsts([(_describe(*asked), _list_weights(asked[1])) for asked in work])
    distinct = {number: work[number] for number in firsts}
    scored = {n: asked for n, asked in distinct.items() if isinstance(asked[1], ScoreWork)}
    trained = {n: asked for n, asked in distinct.items() if n not in scored}
    results = _score(scored) | _train(trained, on_examples)
    return [results[number] for number in firsts]


def _describe(clients: ClientResponder, work: Work) -> Hashable:
    """Return what determines the results of work, beside the weights; itself where it is unique."""
    kernel, task, sections = id(clients.kernel), clients.task, clients.settings.sections
    if isinstance(work, ScoreWork):
        return (kernel, id(task.validation.features), id(task.validation.labels), task.loss)
    if isinstance(work, ServerWork):
        return (kernel, work.origin) if work.weights else work
    here, section = work.attendance, sections.federation
    return (
        *(kernel, id(task.train), id(task.clients), clients.settings.seed, sections.data.balance),
        *(section.batch_size, section.algorithm, section.mark, work.round, work.needed),
        *(here.clients.tobytes(), here.batches.tobytes()),
    )


def _list_weights(work: Work) -> Sequence[Vector]:
    return work.weights if isinstance(work, ServerWork) else (work.weights,)


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
    for number, (clients, work) in scored.items():
        assert isinstance(work, ScoreWork)
        groups.setdefault(_describe(clients, work), {})[number] = work.weights
    found: dict[int, float] = {}
    for group in groups.values():
        clients = scored[next(iter(group))][0]
        found |= zip(group, clients.score_all(list(group.values())), strict=True)
    return found


def _train(
    trained: Mapping[int, Asked], on_examples: Callable[[int], None] | None
) -> dict[int, Any]:
    """Return the valid replies to queries, and the results of other jobs, by number."""
    listed = {number: _list_jobs(*asked) for number, asked in trained.items()}
    kernels = {number: clients.kernel for number, (clients, _) in trained.items()}
    asked = [(kernels[number], job) for number, jobs in listed.items() for job in jobs]
    done = iter(run_jobs(asked, on_examples))
    found: dict[int, Any] = {}
    for number, (clients, work) in trained.items():
        jobs = listed[number]
        values = [next(done) for _ in jobs]
        if isinstance(work, ClientWork):
            found[number] = gather(clients, work, jobs, values)
        else:
            found[number] = values
    return found


def gather(
    clients: ClientResponder, work: ClientWork, jobs: Sequence[LocalJob], values: Sequence[Vector]
) -> SiftedReplies:
    """Return the valid replies of the clients that took part, from the results of their jobs."""
    here = work.attendance
    present = here.clients[here.batches > 0] if work.needed else here.clients[:0]
    results = zip(present.tolist(), values, jobs, strict=True)
    return clients.sift(work, [Reply(client, one, len(job.rows)) for client, one, job in results])


def _list_jobs(clients: ClientResponder, work: Work) -> list[LocalJob]:
    if isinstance(work, ServerWork):
        return list(work.plan())
    assert isinstance(work, ClientWork)
    return clients.make_jobs(work) if work.needed else []


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
