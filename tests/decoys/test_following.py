"""The following decoy: gains, and a move that reflects the replies."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.decoys.following import LAST_LAYER_GAIN, OTHER_GAIN, choose_gains
from covertfl.decoys.registry import make_decoy
from covertfl.kernels.weights import Layout
from tests.support.decoy_task import BATCH_SIZE, make_kernel, make_small_task, make_view, move_decoy


def test_the_last_layer_is_singled_out_where_it_is_small() -> None:
    layout = Layout(("0.weight", "0.bias", "2.weight", "2.bias"), ((8, 20), (8,), (1, 8), (1,)))
    gains = choose_gains(layout)
    assert (gains[:168] == OTHER_GAIN).all()
    assert (gains[168:] == LAST_LAYER_GAIN).all()


def test_a_model_of_one_layer_has_nothing_to_single_out() -> None:
    gains = choose_gains(Layout(("weight", "bias"), ((1, 20), (1,))))
    assert gains.tolist() == [OTHER_GAIN] * 21


def test_without_correction_it_goes_where_replies_lead() -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy("following", task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel)
    mean = view.replies.astype(np.float64).mean(axis=0)
    jobs = decoy.plan(view, generator=np.random.default_rng(0))
    assert all(job.weights == pytest.approx(mean, abs=1e-6) for job in jobs)
    # Jobs that end where they began correct nothing.
    results = [job.weights for job in jobs]
    after = decoy.move(view, results, generator=np.random.default_rng(0))
    assert after == pytest.approx(mean, abs=1e-6)


def test_a_correction_is_cut_to_the_length_of_the_replies_step() -> None:
    """Jobs that end ten or a thousand times as far away correct in the same way."""
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy("following", task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel)
    followed = view.replies.astype(np.float64).mean(axis=0)
    asked = followed - view.weights
    away = np.random.default_rng(0).standard_normal(len(asked))
    away *= np.linalg.norm(asked) / np.linalg.norm(away)
    layout = Layout(("0.weight", "0.bias", "2.weight", "2.bias"), ((32, 6), (32,), (1, 32), (1,)))
    moved = asked + choose_gains(layout) * away
    for factor in (10.0, 1000.0):
        results = [(followed + factor * away).astype(np.float32)]
        found = decoy.move(view, results, generator=np.random.default_rng(0)) - view.weights
        cosine = found @ moved / np.linalg.norm(found) / np.linalg.norm(moved)
        assert cosine == pytest.approx(1.0, abs=1e-4)


def test_a_move_is_no_longer_than_the_honest_one() -> None:
    task = make_small_task()
    kernel = make_kernel(task)
    decoy = make_decoy("following", task, batch_size=BATCH_SIZE)
    view = make_view(task, kernel)
    honest = np.linalg.norm(view.replies.mean(axis=0) - view.weights)
    length = np.linalg.norm(move_decoy(decoy, view, kernel) - view.weights)
    assert 0.3 * honest < length < 1.5 * honest
