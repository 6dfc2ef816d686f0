"""The simulated engine: the work of all runs that wait is carried out as one batch.

The engine collects what all runs request, hands the jobs of each kernel over together, and sends
the results back.  Jobs that are equal in every bit, as when two runs differ only in their decoys,
are carried out once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from covertfl.kernels.job import LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder, make_replies
from covertfl.runs.driver import drive
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.responder import ClientWork, Work
from covertfl.runs.rounds import Rounds

Result = TypeVar("Result")


def run_together(runs: Sequence[tuple[Federation, Rounds]]) -> list[RunState]:
    """Carry all runs, at any round and not in step, to their ends; return their final states."""

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        work = [(runs[number][0].responder, asked) for number, asked in waiting.items()]
        return dict(zip(waiting, carry_out(work), strict=True))

    return drive([rounds for _, rounds in runs], answer)


def run_changing(
    rounds: Generator[Work, Any, Result], find_federation: Callable[[], Federation]
) -> Result:
    """Carry one run to its end, whose federation may change between two rounds."""

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        return {0: carry_out([(find_federation().responder, waiting[0])])[0]}

    [result] = drive([rounds], answer)
    return result


def carry_out(work: Sequence[tuple[ClientResponder, Work]]) -> list[Any]:
    """Return the results of each run's work, all jobs carried out together."""
    listed = [_list_jobs(clients, asked) for clients, asked in work]
    pairs = zip(work, listed, strict=True)
    done = iter(run_jobs([(clients.kernel, job) for (clients, _), jobs in pairs for job in jobs]))
    results = [[next(done) for _ in jobs] for jobs in listed]
    return [
        make_replies(asked.attendance, jobs, values)
        if isinstance(asked, ClientWork) and asked.needed
        else values
        for (_, asked), jobs, values in zip(work, listed, results, strict=True)
    ]


def _list_jobs(clients: ClientResponder, work: Work) -> list[LocalJob]:
    if isinstance(work, ClientWork):
        return clients.make_jobs(work) if work.needed else []
    return list(work.jobs)


def run_jobs(asked: Sequence[tuple[LocalKernel, LocalJob]]) -> list[Vector]:
    """Return the results of jobs, each kernel's carried out in one batch and equal jobs once."""
    results: dict[tuple[int, bytes], Vector] = {}
    todo: dict[int, dict[bytes, LocalJob]] = {}
    kernels = {id(kernel): kernel for kernel, _ in asked}
    # All clients of a run start from the same weights, which need to be read only once.
    distinct = {id(job.weights): job.weights for _, job in asked}
    digests = {key: hashlib.sha256(weights.tobytes()).digest() for key, weights in distinct.items()}
    names = [(id(kernel), _fingerprint(job, digests[id(job.weights)])) for kernel, job in asked]
    for (kernel, name), (_, job) in zip(names, asked, strict=True):
        todo.setdefault(kernel, {}).setdefault(name, job)
    for kernel, jobs in todo.items():
        done = kernels[kernel].run(list(jobs.values()))
        results |= {(kernel, name): values for name, values in zip(jobs, done, strict=True)}
    return [results[name] for name in names]


def _fingerprint(job: LocalJob, weights: bytes) -> bytes:
    """Return bytes that are equal for jobs equal in every bit, given the digest of the weights."""
    digest = hashlib.sha256(weights)
    digest.update(job.rows.tobytes())
    # Examples are shared between runs, so the identity of their arrays is enough.
    place = (id(job.examples.features), id(job.examples.labels), job.batch_size, job.seed, job.work)
    digest.update(repr(place).encode())
    return digest.digest()
