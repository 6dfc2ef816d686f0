"""The simulated engine: all waiting work as one batch, equal jobs once, the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covertfl.kernels.job import Examples, Layout, LocalJob, Vector
from covertfl.runs.engine import ClientWork, ScoreWork
from covertfl.runs.participation import Attendance, Clients
from covertfl.runs.simulated import carry_out, run_jobs
from covertfl.runs.train import KernelCache, build_federation
from covertfl.training import train_all
from tests.support.small_runs import DRAWN_QUEUE, HORIZON, QUEUE, make_run, read_folder

EXAMPLES = Examples(np.zeros((9, 2), dtype=np.float32), np.zeros(9, dtype=np.float32))
LAYOUT = Layout(("w",), ((3,),))


@dataclass
class CountingKernel:
    """Adds the rows to the weights, and keeps count and the jobs."""

    batches: list[int] = field(default_factory=list)
    jobs: list[list[LocalJob]] = field(default_factory=list)
    layout: Layout = LAYOUT

    def run(self, jobs: Sequence[LocalJob]) -> list[Vector]:
        self.batches.append(len(jobs))
        self.jobs.append(list(jobs))
        return [job.weights + np.float32(job.rows.sum() + job.seed) for job in jobs]

    def predict(
        self, weights: Vector, features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        raise NotImplementedError


def make_job(
    value: float = 0.0, rows: Sequence[int] = (1, 2), seed: int = 0, **changes: Any
) -> LocalJob:
    weights = np.full(3, value, dtype=np.float32)
    return replace(LocalJob(weights, EXAMPLES, np.array(rows), 2, seed), **changes)


def test_each_kernel_gets_one_batch_and_results_come_in_order() -> None:
    first, second = CountingKernel(), CountingKernel()
    asked = [
        (kernel, make_job(float(number)))
        for number, kernel in enumerate([first, second, first, second, first])
    ]
    results = run_jobs(asked)
    assert [float(values[0]) for values in results] == [3.0, 4.0, 5.0, 6.0, 7.0]
    assert (first.batches, second.batches) == ([3], [2])


def test_equal_jobs_are_done_once() -> None:
    kernel = CountingKernel()
    results = run_jobs([(kernel, make_job()), (kernel, make_job(1.0)), (kernel, make_job())])
    assert kernel.batches == [2]
    np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize(
    "other",
    [
        make_job(0.5),
        make_job(-0.0),  # not the same bits
        make_job(rows=(2, 1)),
        make_job(rows=(1, 2, 3)),
        make_job(seed=1),
        make_job(batch_size=3),
        make_job(work="gradient"),
        make_job(examples=replace(EXAMPLES, features=EXAMPLES.features.copy())),
        make_job(examples=replace(EXAMPLES, labels=EXAMPLES.labels.copy())),
    ],
)
def test_jobs_that_differ_in_anything_are_both_done(other: LocalJob) -> None:
    kernel = CountingKernel()
    run_jobs([(kernel, make_job()), (kernel, other)])
    assert kernel.batches == [2]


def test_the_same_job_on_two_kernels_is_done_by_both() -> None:
    first, second = CountingKernel(), CountingKernel()
    run_jobs([(first, make_job()), (second, make_job())])
    assert (first.batches, second.batches) == ([1], [1])


def test_nothing_asked_is_nothing_done() -> None:
    assert run_jobs([]) == []


def test_absent_clients_have_no_job_and_the_reason_for_a_query_does_not_matter() -> None:
    federation, kernel = build_federation(make_run(), KernelCache()), CountingKernel()
    task, watched = federation.task, replace(federation, kernel=kernel)
    attendance = Attendance(np.array([0, 2, 5]), np.array([3, 0, 1]))

    def list_jobs(number: int, weights: Vector) -> list[LocalJob]:
        clients = federation.clients
        carry_out([(watched, ClientWork(number, weights, attendance, clients, lambda _: None))])
        return kernel.jobs.pop()

    true, decoy = (task.draw_weights(seed) for seed in (1, 2))
    jobs = list_jobs(7, true)
    assert [len(job.rows) for job in jobs] == [60, 20]
    for client, job in zip((0, 5), jobs, strict=True):
        assert set(job.rows) <= set(task.clients[client].tolist())
        assert len(set(job.rows.tolist())) == len(job.rows)
    others = list_jobs(7, decoy)
    assert [job.rows.tolist() for job in others] == [job.rows.tolist() for job in jobs]
    assert [job.seed for job in others] == [job.seed for job in jobs]
    later = list_jobs(8, true)
    assert [job.seed for job in later] != [job.seed for job in jobs]


RUNS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (HORIZON, {"policy": {"kind": "greedy"}}),
    (HORIZON, {"policy": {"kind": "greedy"}, "decoy": {"kind": "random"}}),
    (HORIZON, {"policy": {"kind": "always-learn"}, "rounds": 5}),
    (HORIZON, {"seed": 8, "data": {"model": "mlp"}, "decoy": {"kind": "mirrored"}}),
    (HORIZON, {"federation": {"algorithm": "fedsgd"}}),
    (QUEUE, {"rounds": 20}),
    (DRAWN_QUEUE, {"rounds": 20}),
    # Dropout, and clients of many batches.
    ({"task": "toxicity"}, {"rounds": 4, "updates": 2, "policy": {"kind": "greedy"}}),
]


@pytest.mark.slow
def test_runs_do_not_depend_on_what_runs_beside_them(tmp_path: Path) -> None:
    settings = [make_run(base, **changes) for base, changes in RUNS]
    together = [tmp_path / "together" / str(number) for number in range(len(RUNS))]
    train_all(list(zip(settings, together, strict=True)))
    backwards = [tmp_path / "backwards" / str(number) for number in range(len(RUNS))]
    train_all(list(zip(settings, backwards, strict=True))[::-1])
    for number, run in enumerate(settings):
        train_all([(run, tmp_path / "alone" / str(number))])
        alone = read_folder(tmp_path / "alone" / str(number))
        assert read_folder(together[number]) == alone
        assert read_folder(backwards[number]) == alone


def test_equal_weights_are_scored_on_the_validation_set_of_each_run() -> None:
    one = build_federation(make_run(), KernelCache())
    labels = np.roll(one.task.validation.labels, 1)
    task = replace(one.task, validation=Examples(one.task.validation.features, labels))
    other, weights = replace(one, clients=Clients(task)), one.task.draw_weights(3)
    scores = [run.validation.score(weights) for run in (one, other, one)]
    assert scores[0] != scores[1]
    found = carry_out([(run, ScoreWork(weights)) for run in (one, other, one)])
    assert found == scores
