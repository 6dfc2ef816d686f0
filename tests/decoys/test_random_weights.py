"""The random walk: no direction, the length of training."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.decoys.random_weights import (
    AGREED_DECAY,
    EQUIVALENT_SHARE,
    estimate_length,
    sample_labels,
)
from covertfl.decoys.registry import make_decoy
from tests.support.decoy_task import BATCH_SIZE, make_kernel, make_small_task, make_view, move_decoy


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
