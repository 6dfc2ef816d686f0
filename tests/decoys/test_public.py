"""The public decoy: one job, a client's number of batches."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.decoys.public import PublicDecoy, draw_rows
from covertfl.decoys.registry import make_decoy
from covertfl.decoys.update_rule import UpdateRule
from tests.support.decoy_task import BATCH_SIZE, make_kernel, make_small_task, make_view, move_decoy


def test_one_job_on_some_batches_without_repetition() -> None:
    task = make_small_task()
    view = make_view(task, make_kernel(task))
    decoy, sizes = PublicDecoy(task.public, BATCH_SIZE, UpdateRule()), set()
    for seed in range(60):
        (job,) = decoy.plan(view, generator=np.random.default_rng(seed))
        assert job.examples is task.public
        assert job.weights is view.weights
        assert len(np.unique(job.rows)) == len(job.rows)
        sizes.add(len(job.rows))
    assert sizes == {10, 20, 30, 40, 50, 60}


def test_the_move_is_the_jobs_result() -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    view = make_view(task, kernel)
    decoy = make_decoy("public", task, batch_size=BATCH_SIZE)
    (result,) = kernel.run(decoy.plan(view, generator=np.random.default_rng([0, 0])))
    assert move_decoy(decoy, view, kernel) == pytest.approx(result, abs=1e-7)


def test_a_batch_larger_than_the_set_is_the_set() -> None:
    rows = draw_rows(7, 40, generator=np.random.default_rng(0))
    assert sorted(rows) == list(range(7))
