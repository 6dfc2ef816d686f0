"""The eavesdroppers `trained`, `trained-public` and `trained-listener`."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.arrays import FloatArray, IntArray
from covertfl.eavesdroppers.trained import (
    collect_figures,
    list_sources,
    make_relative,
    train_scorer,
)
from tests.support.seen_queries import Means, Rehearsed, Vector, listen, make_queries
from tests.support.small_federation import (
    make_image,
    make_means,
    send_in_turn,
    train_decoy,
    train_truth,
)

pytestmark = pytest.mark.slow

NUM_RUNS = 12


def make_pair(seed: int, kind: str) -> tuple[list[list[Vector]], int]:
    """Return the ways of a run's trajectories in random order, and which is the truth."""
    truth = train_truth(seed=seed)
    ways = [truth, train_decoy(seed=seed) if kind == "decoy" else make_image(truth)]
    place = int(np.random.default_rng(seed).integers(2))
    return ways[::-1] if place else ways, place


def rehearse(kind: str) -> Rehearsed:
    means, rows, truth = make_means(), [], []
    names: tuple[str, ...] = ()
    for seed in range(NUM_RUNS):
        ways, place = make_pair(seed, kind)
        names, figures = collect_figures(list_sources("ABC"), means, send_in_turn(*ways))
        rows.append(figures)
        truth.append(place)
    return Rehearsed(np.stack(rows), np.array(truth), names)


@pytest.fixture(scope="module")
def by_decoy() -> Rehearsed:
    return rehearse("decoy")


@pytest.fixture(scope="module")
def by_image() -> Rehearsed:
    return rehearse("image")


def name_truth(name: str, rehearsed: Rehearsed, decoy: str) -> list[float]:
    means = dataclasses.replace(make_means(), rehearsed=rehearsed)
    beliefs = []
    for seed in range(100, 106):
        ways, place = make_pair(seed, decoy)
        beliefs.append(float(listen(name, send_in_turn(*ways), means).belief()[place]))
    return beliefs


@pytest.mark.parametrize("name", ["trained-listener", "trained-public", "trained"])
def test_decoys_are_found_with_any_figures(name: str, by_decoy: Rehearsed) -> None:
    assert min(name_truth(name, by_decoy, "decoy")) > 0.5


@pytest.mark.parametrize("name", ["trained-public", "trained"])
def test_images_are_found_by_those_with_data(name: str, by_image: Rehearsed) -> None:
    """Data that tell an image from the truth: the theorem does not cover them."""
    assert sum(belief > 0.5 for belief in name_truth(name, by_image, "image")) >= 5


def test_a_listener_has_equal_beliefs_in_exact_images(by_image: Rehearsed) -> None:
    """But for who is queried first in each generation, which the order of its figures leaves."""
    kept = [
        place
        for place, name in enumerate(by_image.names)
        if name.partition(":")[0] not in ("early-stop", "change-point")
    ]
    names = tuple(by_image.names[place] for place in kept)
    rehearsed = Rehearsed(by_image.figures[:, :, kept], by_image.truth, names)
    beliefs = name_truth("trained-listener", rehearsed, "image")
    assert beliefs == [0.5] * len(beliefs)


def draw_figures(runs: int, count: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Figures of which the first is larger by 1 for the truth, with deviation 0.5 and a level."""
    generator = np.random.default_rng(seed)
    figures = 0.5 * generator.standard_normal((runs, count, 4))
    figures += 10.0 * generator.standard_normal((runs, 1, 4))
    truth = generator.integers(count, size=runs)
    figures[np.arange(runs), truth, 0] += 1.0
    return figures, truth


@pytest.mark.parametrize("count", [2, 4])
def test_it_comes_near_the_best_rule(count: int) -> None:
    """The best rule takes the trajectory with the largest first figure."""
    score = train_scorer(*draw_figures(200, count, 0))
    figures, truth = draw_figures(400, count, 1)
    named = np.mean(np.argmax(score(make_relative(figures)), axis=1) == truth)
    best = np.mean(np.argmax(figures[:, :, 0], axis=1) == truth)
    assert named > best - 0.04 and best > 0.75


def test_a_relation_that_is_not_monotone_is_left_to_the_forest() -> None:
    """The truth is the trajectory whose figure is nearest to the mean of three."""
    generator = np.random.default_rng(0)
    figures = generator.standard_normal((400, 3, 1))
    truth = np.argmin(np.abs(make_relative(figures))[:, :, 0], axis=1)
    score = train_scorer(figures[:300], truth[:300])
    named = np.argmax(score(make_relative(figures[300:])), axis=1)
    assert np.mean(named == truth[300:]) > 0.7


def test_noise_teaches_nothing_and_equal_figures_tie() -> None:
    generator = np.random.default_rng(0)
    score = train_scorer(generator.standard_normal((100, 3, 5)), generator.integers(3, size=100))
    assert len(set(score(np.ones((3, 5))).tolist())) == 1


def test_it_is_trained_once(by_decoy: Rehearsed, monkeypatch: pytest.MonkeyPatch) -> None:
    means = dataclasses.replace(make_means(), rehearsed=by_decoy)
    listen("trained", [], means)
    monkeypatch.setattr("covertfl.eavesdroppers.trained.train_scorer", None)
    listen("trained", [], means)


def test_figures_that_are_not_there_are_zero() -> None:
    """A client in the rehearsals, but not in the run: what it would know counts as zero."""
    names = ("alignment: cosine", "step-shape: length")
    figures, truth = draw_figures(40, 2, 0)
    means = Means(rehearsed=Rehearsed(figures[:, :, :2], truth, names))
    queries = make_queries([(0, (0.0, 0.0)), (1, (5.0, 0.0)), (0, (1.0, 0.0)), (1, (5.0, 3.0))])
    eavesdropper: Any = listen("trained", queries, means)
    assert eavesdropper.measure() == pytest.approx(np.array([[0.0, 0.0], [0.0, np.log(3.0)]]))
    _, found = collect_figures(list_sources("ABC"), means, queries[:1])
    assert np.all(np.isfinite(found)) and found.shape[0] == 1


def test_rehearsals_must_fit() -> None:
    figures, truth = draw_figures(5, 2, 0)
    names = tuple("abcd")
    with pytest.raises(cf.InvalidInput, match=r"figures must have shape \(runs, trajectories, 3\)"):
        Rehearsed(figures, truth, names[:3])
    with pytest.raises(cf.InvalidInput, match="the same runs"):
        Rehearsed(figures, truth[:4], names)
    with pytest.raises(cf.InvalidInput, match="between 0 and 1"):
        Rehearsed(figures, truth + 5, names)
    with pytest.raises(cf.InvalidInput, match="got none of them"):
        listen("trained", [], Means(rehearsed=Rehearsed(figures, truth, names)))


def test_without_scikit_learn_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(cf.Missing, match=r"pip install 'covertfl\[train\]'"):
        train_scorer(*draw_figures(5, 2, 0))
