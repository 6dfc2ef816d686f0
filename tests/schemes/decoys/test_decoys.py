"""The decoys, made by name: what all have in common, and what each does, worked by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

import torch

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalOptimizer, Loss, Vector
from covertfl.schemes.decoys.decoy import DecoyView
from covertfl.schemes.decoys.random_weights import (
    AGREED_DECAY,
    EQUIVALENT_SHARE,
    estimate_length,
    sample_labels,
)
from covertfl.schemes.decoys.registry import DECOYS, make_decoy
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


# --- public -----------------------------------------------------------------------------------


def test_public_trains_one_job_on_some_batches_without_repetition() -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    view = make_view(task, kernel)
    decoy, sizes = make_decoy("public", task, batch_size=BATCH_SIZE), set()
    for seed in range(60):
        (job,) = decoy.plan(view, generator=np.random.default_rng([seed, 0]))
        assert job.examples is task.public
        assert job.weights is view.weights
        assert len(np.unique(job.rows)) == len(job.rows)
        sizes.add(len(job.rows))
    assert sizes == {10, 20, 30, 40, 50, 60}
    (result,) = kernel.run([job])
    assert move_decoy(decoy, view, kernel, seed=59) == pytest.approx(result, abs=1e-7)


def test_a_batch_larger_than_the_public_set_is_the_set() -> None:
    task = make_small_task()
    decoy = make_decoy("public", task, batch_size=100)
    (job,) = decoy.plan(make_view(task, make_kernel(task)), generator=np.random.default_rng(0))
    assert sorted(job.rows) == list(range(60))


# --- mirrored ---------------------------------------------------------------------------------


def no_outputs(weights: Vector, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    raise AssertionError("the mirrored decoy asks for no outputs")


VIEW = DecoyView(
    weights=np.array([1.0, -2.0], dtype=np.float32),
    learner=np.zeros(2, dtype=np.float32),
    replies=np.array([[2.0, -2.0], [5.0, 2.0]], dtype=np.float32),
    examples=np.array([30, 10]),
    moves=4,
    predict=no_outputs,
)
MEAN = [2.75, -1.0]  # of the replies, weighted by their examples


def mirror(**options: Any) -> Vector:
    decoy = make_decoy("mirrored", make_small_task(), batch_size=BATCH_SIZE, **options)
    assert decoy.plan(VIEW, generator=np.random.default_rng(0)) == []
    return decoy.move(VIEW, [], generator=np.random.default_rng(0))


def test_mirrored_moves_away_from_the_mean_reply() -> None:
    assert mirror().tolist() == [1.0 - 1.75, -2.0 - 1.0]
    decoy = make_decoy("mirrored", make_small_task(), batch_size=BATCH_SIZE)
    nothing = dataclasses.replace(VIEW, replies=VIEW.replies[:0], examples=VIEW.examples[:0])
    with pytest.raises(InvalidInput, match="at least one result"):
        decoy.move(nothing, [], generator=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_mirrored_goes_against_the_first_step_of_the_server_s_optimizer(
    name: Any, kind: type[torch.optim.Optimizer]
) -> None:
    """With FedSGD replies are gradients, and a decoy has no optimizer state of its own."""
    optimizer = LocalOptimizer(name, lr=0.25, weight_decay=0.3)
    parameter = torch.nn.Parameter(torch.tensor(VIEW.weights, dtype=torch.float64))
    parameter.grad = torch.tensor(MEAN, dtype=torch.float64)
    kind([parameter], lr=0.25, weight_decay=0.3).step()  # type: ignore[call-arg]
    moved = mirror(algorithm="fedsgd", optimizer=optimizer)
    assert VIEW.weights - moved == pytest.approx(parameter.detach().numpy() - VIEW.weights)


# --- random -----------------------------------------------------------------------------------


def test_moves_are_as_long_as_true_ones_and_at_right_angles() -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy("random", task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel)
    honest = view.replies.mean(axis=0) - view.weights
    steps = np.stack([move_decoy(decoy, view, kernel, seed=s) - view.weights for s in range(20)])
    lengths = np.linalg.norm(steps, axis=1)
    assert lengths == pytest.approx(np.linalg.norm(honest), rel=0.35)
    directions = steps / lengths[:, None]
    cosines = (directions @ directions.T)[np.triu_indices(20, 1)]
    assert abs(cosines.mean()) < 0.05
    assert abs(directions @ honest / np.linalg.norm(honest)).mean() < 0.15


def test_moves_get_shorter_as_training_would() -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy("random", task, batch_size=BATCH_SIZE)
    lengths = []
    for moves in (0, 10, 1_000):
        view = make_view(task, kernel, moves=moves)
        lengths.append(float(np.linalg.norm(move_decoy(decoy, view, kernel) - view.weights)))
    assert lengths[0] > lengths[1] > lengths[2] > 0.1 * lengths[0]


def test_a_length_puts_both_parts_together() -> None:
    assert estimate_length(3.0, 4.0, 0) == 5.0
    assert estimate_length(2.0, 0.0, 3) == pytest.approx(2.0 * AGREED_DECAY**3)
    assert estimate_length(1.0, 0.5, 10_000) == pytest.approx(0.5)


def test_equivalent_clients_match_the_variance_of_a_weighted_mean() -> None:
    batches = np.random.default_rng(0).integers(0, 39, size=(4_000, 20)).astype(float)
    noise = np.mean(np.sum(batches**2, axis=1) / batches.sum(axis=1) ** 2)
    assert pytest.approx(1.0 / noise, rel=0.06) == EQUIVALENT_SHARE * 20


def test_labels_have_the_distribution_of_the_outputs() -> None:
    generator = np.random.default_rng(0)
    binary = np.full((20_000, 1), math.log(3.0), dtype=np.float32)
    labels = sample_labels(binary, "binary", generator=generator)
    assert labels.dtype == np.float32
    assert labels.mean() == pytest.approx(0.75, abs=0.015)
    logits = np.log(np.array([[0.2, 0.5, 0.3]], dtype=np.float32)).repeat(20_000, axis=0)
    shares = np.bincount(sample_labels(logits, "multiclass", generator=generator)) / 20_000
    assert shares == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
