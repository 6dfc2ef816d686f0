"""Exact images of the truth tie for all that cannot tell them apart, and decoys do not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.eavesdroppers.trained import collect_figures, list_sources
from covertfl.kernels.weights import Vector
from tests.support.seen_queries import feed
from tests.support.small_federation import (
    FLIPPED,
    UNSEEN,
    make_image,
    make_means,
    send_in_turn,
    train_decoy,
    train_truth,
    with_other_run,
)

# What sign flips do not change, given that all are queried equally often.
LISTENING = ("majority", "minority", "repeat", "step-shape", "last-layer", "rounding")
OWNING = (
    "validation",
    "anti-validation",
    "alignment",
    "first-moves",
    "reply-length",
    "fresh-labels",
    "fresh-labels-5",
    "fresh-labels-100",
    "unlabelled",
)
# Those who tell the truth from what a server trains on its public set.
TOLD = (*(name for name in OWNING if name != "validation"), "map-spectrum")
# The rounds of a run alternate, so who moved last is not a tie.
BY_TURN = ("early-stop", "change-point")


@pytest.fixture(scope="module")
def truth() -> list[Vector]:
    return train_truth()


@pytest.fixture(scope="module")
def means() -> Means:
    others = train_truth(seed=1)
    return with_other_run(make_means(), send_in_turn(others, make_image(others)))


@pytest.mark.parametrize("name", [*LISTENING, "map-spectrum", "two-runs"])
def test_a_listener_cannot_tell_an_image(name: str, truth: list[Vector], means: Means) -> None:
    four = [make_image(truth, signs) for signs in (UNSEEN, FLIPPED, UNSEEN * FLIPPED)]
    for images in (four[1:2], four):
        queries = send_in_turn(truth, *images)
        if name == "two-runs" and len(images) > 1:
            others = train_truth(seed=1)
            signs = (UNSEEN, FLIPPED, UNSEEN * FLIPPED)
            copies = [make_image(others, each) for each in signs]
            means = with_other_run(means, send_in_turn(others, *copies))
        belief = feed(EAVESDROPPERS[name](means), queries).belief()
        assert set(belief.tolist()) == {1.0 / len(belief)}


@pytest.mark.parametrize("name", OWNING)
def test_an_owner_cannot_tell_an_image_on_an_axis_without_data(
    name: str, truth: list[Vector], means: Means
) -> None:
    image = make_image(truth, UNSEEN)
    assert any(not np.array_equal(*pair) for pair in zip(truth, image, strict=True))
    # A client replies by round; asked alike, it replies with images.
    queries = [
        dataclasses.replace(query, round=2 * ((query.round - 1) // 2) + 1)
        for query in send_in_turn(truth, image)
    ]
    assert feed(EAVESDROPPERS[name](means), queries).belief().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", TOLD)
def test_decoys_of_the_public_set_are_told_from_the_truth(name: str, means: Means) -> None:
    right = []
    for seed in range(5):
        queries = send_in_turn(train_truth(seed=seed), train_decoy(seed=seed))
        right.append(feed(EAVESDROPPERS[name](means), queries).belief()[0] > 0.5)
    assert sum(right) >= 4


@pytest.mark.parametrize("tiers", ["A", "AB", "ABC"])
def test_figures_of_images_are_equal_where_they_should_be(
    tiers: str, truth: list[Vector], means: Means
) -> None:
    sources = [name for name in list_sources(tiers) if name not in BY_TURN]
    signs = FLIPPED if tiers == "A" else UNSEEN
    means = dataclasses.replace(means, mark=None, other_run=None)
    queries = [
        dataclasses.replace(query, round=2 * ((query.round - 1) // 2) + 1)
        for query in send_in_turn(truth, make_image(truth, signs))
    ]
    names, figures = collect_figures(sources, means, queries)
    assert len(names) == figures.shape[1] > 15
    for name, values in zip(names, figures.T, strict=True):
        assert values[0] == values[1], name
