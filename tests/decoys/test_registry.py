"""Properties that every decoy has."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.decoys.registry import DECOYS, make_decoy
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Loss
from tests import ROOT
from tests.support.decoy_task import BATCH_SIZE, make_kernel, make_small_task, make_view, move_decoy

Algorithm = Literal["fedavg", "fedsgd"]
CASES = [
    (kind, loss, algorithm)
    for kind in DECOYS
    for loss in ("binary", "multiclass")
    for algorithm in ("fedavg", "fedsgd")
]


@pytest.mark.parametrize(("kind", "loss", "algorithm"), CASES)
def test_a_move_is_a_new_vector_and_repeats(kind: str, loss: Loss, algorithm: Algorithm) -> None:
    task = make_small_task(loss)
    kernel = make_kernel(task)
    decoy = make_decoy(kind, task, batch_size=BATCH_SIZE, algorithm=algorithm)
    work: Literal["train", "gradient"] = "train" if algorithm == "fedavg" else "gradient"
    for moves in (0, 3):
        view = make_view(task, kernel, moves=moves, work=work)
        before = [view.weights.copy(), view.learner.copy(), view.replies.copy()]
        features = task.public.features.copy()
        after = move_decoy(decoy, view, kernel)
        assert after.dtype == np.float32
        assert after.shape == view.weights.shape
        assert np.isfinite(after).all()
        assert not np.array_equal(after, view.weights)
        assert not np.shares_memory(after, view.weights)
        for kept, now in zip(before, (view.weights, view.learner, view.replies), strict=True):
            assert np.array_equal(kept, now)
        assert np.array_equal(features, task.public.features)
        assert after.tobytes() == move_decoy(decoy, view, kernel).tobytes()
        again = make_decoy(kind, task, batch_size=BATCH_SIZE, algorithm=algorithm)
        assert after.tobytes() == move_decoy(again, view, kernel).tobytes()


@pytest.mark.parametrize("kind", sorted(set(DECOYS) - {"mirrored"}))
def test_another_generator_gives_another_move(kind: str) -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy(kind, task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel)
    first, second = (move_decoy(decoy, view, kernel, seed=seed) for seed in (0, 1))
    assert first.tobytes() != second.tobytes()


@pytest.mark.parametrize("kind", DECOYS)
def test_a_decoy_keeps_nothing_between_moves(kind: str) -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy(kind, task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel, moves=1)
    expected = move_decoy(decoy, view, kernel)
    other = make_view(task, kernel, moves=5, weights=-view.weights)
    move_decoy(decoy, other, kernel, seed=9)
    assert move_decoy(decoy, view, kernel).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", DECOYS)
def test_only_the_mirrored_decoy_asks_for_replies(kind: str) -> None:
    decoy = make_decoy(kind, make_small_task(), batch_size=BATCH_SIZE)
    assert decoy.needs_replies == (kind == "mirrored")


@pytest.mark.parametrize("kind", sorted(set(DECOYS) - {"mirrored"}))
def test_the_others_do_not_look_at_replies(kind: str) -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy(kind, task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel)
    without = dataclasses.replace(view, replies=view.replies[:0], examples=view.examples[:0])
    assert np.array_equal(move_decoy(decoy, view, kernel), move_decoy(decoy, without, kernel))


@pytest.mark.parametrize("kind", DECOYS)
def test_jobs_use_rows_that_exist(kind: str) -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy(kind, task, batch_size=BATCH_SIZE)
    for job in decoy.plan(make_view(task, kernel), generator=np.random.default_rng(0)):
        assert job.batch_size == BATCH_SIZE
        assert job.rows.dtype == np.int64
        assert len(job.rows) > 0
        assert 0 <= job.rows.min() <= job.rows.max() < len(job.examples)
        assert job.examples.features.dtype == np.float32
        assert job.examples.labels.dtype == task.public.labels.dtype


def test_refuses_what_it_cannot_make() -> None:
    task = make_small_task()
    with pytest.raises(InvalidInput, match="random, mirrored, public, adversarial"):
        make_decoy("shadow", task, batch_size=BATCH_SIZE)
    with pytest.raises(InvalidInput, match="batch_size must be at least 1, got 0"):
        make_decoy("public", task, batch_size=0)
    nothing = Examples(task.public.features[:0], task.public.labels[:0])
    empty = dataclasses.replace(task, public=nothing)
    with pytest.raises(InvalidInput, match="needs a public set"):
        make_decoy("public", empty, batch_size=BATCH_SIZE)
    assert make_decoy("mirrored", empty, batch_size=BATCH_SIZE).needs_replies


def test_the_document_describes_and_measures_every_decoy() -> None:
    text = (ROOT / "docs" / "decoys.md").read_text("utf-8")
    described, measured = text.split("<!-- measured: begin -->")
    for kind in DECOYS:
        assert f"**`{kind}`.**" in described
        assert f"\n| {kind} | " in measured
