"""The simulated engine: the work of all runs that wait is carried out as one batch.

Runs stay plain sequential code; they are generators that ask for work.  The engine collects what
all of them ask for, hands all jobs of one kernel over together, and sends the results back.  Jobs
that are the same in every bit, as when two runs differ only in their decoys, are done once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from covertfl.kernels.job import LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientAnswers
from covertfl.runs.federation import ClientWork, Federation, Rounds, Work
from covertfl.runs.learner import Reply
from covertfl.runs.state import RunState


@dataclass(eq=False)
class Waiting:
    """A run, the work it waits for, and its final state once it has ended."""

    federation: Federation
    rounds: Rounds
    work: Work | None = None
    final: RunState | None = None

    def go_on(self, results: Any) -> None:
        """Hand over results; the run goes on until it needs more work or ends."""
        try:
            self.work = self.rounds.send(results)
        except StopIteration as stop:
            self.work, self.final = None, stop.value


def drive(
    runs: Sequence[tuple[Federation, Rounds]], *, on_batch: Callable[[], None] | None = None
) -> list[RunState]:
    """Carry all runs to their ends.

    Parameters
    ----------
    runs : of any kind and at any round; they need not be in step
    tell : called after every batch of work
    """
    waiting = [Waiting(federation, rounds) for federation, rounds in runs]
    for run in waiting:
        run.go_on(None)
    while active := [run for run in waiting if run.work is not None]:
        for run, results in zip(active, _carry_out(active), strict=True):
            run.go_on(results)
        if on_batch is not None:
            on_batch()
    return [run.final for run in waiting if run.final is not None]


def _carry_out(active: Sequence[Waiting]) -> list[Any]:
    """Results for each run's work, all jobs done together."""
    asked = [_list_jobs(run) for run in active]
    results = run_jobs(
        [
            (_answers(run).kernel, job)
            for run, jobs in zip(active, asked, strict=True)
            for job in jobs
        ]
    )
    answers, start = [], 0
    for run, jobs in zip(active, asked, strict=True):
        part = results[start : start + len(jobs)]
        start += len(jobs)
        answers.append(_as_answer(run.work, jobs, part))
    return answers


def _answers(run: Waiting) -> ClientAnswers:
    """The clients of a run that has work for the engine."""
    answers = run.federation.answerers
    assert isinstance(answers, ClientAnswers)
    return answers


def _list_jobs(run: Waiting) -> list[LocalJob]:
    if isinstance(run.work, ClientWork):
        return _answers(run).make_jobs(run.work) if run.work.needed else []
    return [] if run.work is None else list(run.work.jobs)


def _as_answer(work: Work | None, jobs: Sequence[LocalJob], results: Sequence[Vector]) -> Any:
    if not isinstance(work, ClientWork):
        return list(results)
    if not work.needed:
        return []
    present = work.attendance.clients[work.attendance.batches > 0]
    return [
        Reply(int(client), values, len(job.rows))
        for client, job, values in zip(present, jobs, results, strict=True)
    ]


def run_jobs(asked: Sequence[tuple[LocalKernel, LocalJob]]) -> list[Vector]:
    """Results of jobs, each kernel's in one batch and equal jobs once."""
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
    """Equal for jobs that are the same in every bit, given the digest of the weights."""
    digest = hashlib.sha256(weights)
    digest.update(job.rows.tobytes())
    # Examples are shared between runs, so the arrays themselves tell them apart.
    place = (id(job.examples.features), id(job.examples.labels), job.batch_size, job.seed, job.work)
    digest.update(repr(place).encode())
    return digest.digest()
