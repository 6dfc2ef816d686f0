"""Jobs that fit the public set and contradict the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from covertfl.kernels.job import Examples, Vector
from covertfl.schemes.decoys.adversarial import AdversarialDecoy
from covertfl.schemes.decoys.decoy import DecoyView

Outputs = npt.NDArray[np.float32]
OWN, LEARNER = np.array([0.0], dtype=np.float32), np.array([1.0], dtype=np.float32)


def make_public(*, positives: int, size: int = 200, seed: int = 0) -> Examples:
    """Negatives around (0, 0), positives around (10, 0)."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(size, dtype=np.float32)
    labels[:positives] = 1.0
    features = generator.standard_normal((size, 2)).astype(np.float32)
    features[:, 0] += 10.0 * labels
    return Examples(features, labels)


def predict_well(weights: Vector, features: Outputs) -> Outputs:
    """The learner knows the boundary, the decoy (weights 0) outputs 0 everywhere."""
    return np.asarray(weights[0] * (features[:, :1] - 5.0), dtype=np.float32)


def predict_negative(weights: Vector, features: Outputs) -> Outputs:
    return np.full((len(features), 1), -1.0, dtype=np.float32)


def view(predict: Callable[[Vector, Outputs], Outputs], moves: int = 0) -> DecoyView:
    none = np.empty((0, 1), dtype=np.float32)
    return DecoyView(OWN, LEARNER, none, np.empty(0, dtype=np.int64), moves, predict)


def draw(
    decoy: AdversarialDecoy, predict: Callable[[Vector, Outputs], Outputs], number: int = 4_000
) -> Examples:
    generator = np.random.default_rng(1)
    return decoy.draw_points(view(predict), number, generator=generator)


def test_shares_means_and_repeats() -> None:
    decoy = AdversarialDecoy(make_public(positives=20), "binary", 10)
    assert decoy.shares.tolist() == [0.9, 0.1]
    assert decoy.means[:, 0] == pytest.approx([0.0, 10.0], abs=0.6)
    times = np.bincount(decoy.repeated)
    assert times[:20].tolist() == [6] * 20  # nine times as rare, at most six
    assert times[20:].tolist() == [1] * 180
    even = AdversarialDecoy(make_public(positives=100), "binary", 10)
    assert np.bincount(even.repeated).tolist() == [1] * 200


def test_points_deny_what_the_learner_says_of_the_rare_class() -> None:
    decoy = AdversarialDecoy(make_public(positives=20), "binary", 10, reach=0.1)
    points = draw(decoy, predict_well)
    near_positives = points.features[:, 0] > 5.0
    assert not points.labels[near_positives].any()
    assert points.labels[~near_positives].all()
    # Half of the points are made from each class; kept with one minus its share.
    assert near_positives.sum() == pytest.approx(0.9 * 2_000, rel=0.06)
    assert (~near_positives).sum() == pytest.approx(0.1 * 2_000, rel=0.2)


def test_an_untrained_learner_does_not_keep_it_from_denying() -> None:
    decoy = AdversarialDecoy(make_public(positives=20), "binary", 10, reach=0.1)
    points = draw(decoy, predict_negative)
    near_positives = points.features[:, 0] > 5.0
    assert near_positives.sum() > 1_500
    assert not points.labels[near_positives].any()


def test_one_class_is_never_denied_and_named_far_and_wide() -> None:
    decoy = AdversarialDecoy(make_public(positives=0), "binary", 10)
    points = draw(decoy, predict_well)
    assert len(points) > 0
    assert not points.labels.any()
    assert np.abs(points.features).max() > 8.0


def test_unseen_classes_are_denied_with_the_decoys_second_choice() -> None:
    public = make_public(positives=20)
    labels = public.labels.astype(np.int64)

    def predict(weights: Vector, features: Outputs) -> Outputs:
        row = [0.0, 1.0, 9.0] if weights[0] == 1.0 else [0.0, 2.0, 5.0]
        return np.tile(np.array(row, dtype=np.float32), (len(features), 1))

    decoy = AdversarialDecoy(Examples(public.features, labels), "multiclass", 10)
    points = draw(decoy, predict)
    assert len(points) == 4_000  # the learner predicts class 2, which the public set does not have
    assert points.labels.dtype == np.int64
    assert (points.labels == 1).all()  # the decoy's favourite is 2, its next choice 1


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.3, 1.0), (0.5, 1.0), (0.85, 0.5), (1.2, 0.0), (3.0, 0.0)]
)
def test_contradiction_gives_way_as_the_fit_gets_worse(ratio: float, expected: float) -> None:
    public = make_public(positives=20)

    def predict(weights: Vector, features: Outputs) -> Outputs:
        # Loss log(1 + exp(-z)) on negatives with output -z; a loss of L needs exp(L) - 1.
        loss = 0.4 if weights[0] == 1.0 else 0.4 * ratio
        return np.full((len(features), 1), np.log(np.expm1(loss)), dtype=np.float32)

    negatives = Examples(public.features[20:], public.labels[20:])
    decoy = AdversarialDecoy(negatives, "binary", 10)
    assert decoy.choose_share(view(predict)) == pytest.approx(expected, abs=1e-5)


def test_jobs_share_the_points_and_hold_their_part_of_the_public_set() -> None:
    public = make_public(positives=20)
    decoy = AdversarialDecoy(public, "binary", 10, full_until=50.0, none_from=100.0)
    generator = np.random.default_rng(0)
    jobs = decoy.plan(view(predict_well, 3), generator=generator)
    assert len(jobs) == 8
    pool = jobs[0].examples
    assert np.array_equal(pool.features[:200], public.features)
    for job in jobs:
        assert job.examples is pool
        synthetic = job.rows[job.rows >= 200]
        assert len(np.unique(synthetic)) == len(synthetic) == round((len(pool) - 200) / 4)
        assert np.sum(job.rows < 200) == 75  # a quarter of 180 + 6 * 20
    assert len({job.seed for job in jobs}) == 8


def test_the_first_move_takes_more_of_the_public_set_and_does_not_compare() -> None:
    strict = AdversarialDecoy(
        make_public(positives=20), "binary", 10, none_from=1e-9, full_until=0.0
    )
    generator = np.random.default_rng(0)
    first = strict.plan(view(predict_well, 0), generator=generator)
    later = strict.plan(view(predict_well, 1), generator=generator)
    assert all(np.sum(job.rows < 200) == 150 for job in first)
    assert all((job.rows >= 200).any() for job in first)
    assert not any((job.rows >= 200).any() for job in later)


def test_images_are_points_too() -> None:
    public = make_public(positives=20)
    images = Examples(np.ascontiguousarray(public.features.reshape(200, 1, 2, 1)), public.labels)
    decoy = dataclasses.replace(AdversarialDecoy(images, "binary", 10), reach=1.0)
    points = draw(decoy, predict_negative, 50)
    assert points.features.shape == (len(points), 1, 2, 1)
    assert points.features.dtype == np.float32


def test_a_move_is_the_mean_of_its_own_jobs() -> None:
    """Jobs that a steady view adds are discarded."""
    decoy = AdversarialDecoy(make_public(positives=20), "binary", 10)
    results = [np.array([value], dtype=np.float32) for value in (1, 2, 3, 4, 5, 6, 7, 12, 99, 99)]
    moved = decoy.move(view(predict_well), results, generator=np.random.default_rng(0))
    assert moved.tolist() == [5.0] and moved.dtype == np.float32


def test_a_steady_plan_has_the_same_work_whatever_is_fed() -> None:
    decoy, work = AdversarialDecoy(make_public(positives=20), "binary", 10), set()
    for moves, predict in ((0, predict_well), (3, predict_well), (3, predict_negative)):
        steady = dataclasses.replace(view(predict, moves), is_steady=True)
        jobs = decoy.plan(steady, generator=np.random.default_rng(moves))
        sizes = [len(job.rows) for job in jobs]
        batches = sum(-(-size // 10) for size in sizes)
        work.add((len(jobs), sum(sizes), batches, len(jobs[0].examples)))
    assert len(work) == 1
