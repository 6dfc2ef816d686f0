"""The random walk: no direction, the length of training."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

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
