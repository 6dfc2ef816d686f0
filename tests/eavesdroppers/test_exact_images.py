"""Exact images of the truth tie for all that cannot tell them apart, and decoys do not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from covertfl.arrays import FloatArray
from tests.support.seen_queries import EAVESDROPPERS, Means, SeenQuery, Vector, listen
from tests.support.small_federation import (
    FLIPPED,
    UNSEEN,
    make_image,
    make_means,
    send_in_turn,
    train_decoy,
    train_truth,
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
FOUR = (UNSEEN, FLIPPED, UNSEEN * FLIPPED)
# The rounds of a run alternate, so who moved last is not a tie.
BY_TURN = ("early-stop", "change-point")


@pytest.fixture(scope="module")
def truth() -> list[Vector]:
    return train_truth()


@pytest.fixture(scope="module")
def means() -> Means:
    others = train_truth(seed=1)
    return dataclasses.replace(make_means(), other_run=send_in_turn(others, make_image(others)))


def send_at_once(truth: list[Vector], image: list[Vector]) -> list[SeenQuery]:
    """Both in the same round: a client replies by round, and asked alike, with images."""
    queries = send_in_turn(truth, image)
    return [dataclasses.replace(each, round=2 * ((each.round - 1) // 2) + 1) for each in queries]


@pytest.mark.parametrize("signs", [(FLIPPED,), FOUR], ids=["two", "four"])
@pytest.mark.parametrize("name", [*LISTENING, "map-spectrum", "two-runs"])
def test_a_listener_cannot_tell_an_image(
    name: str, signs: tuple[FloatArray, ...], truth: list[Vector], means: Means
) -> None:
    others = train_truth(seed=1)
    copies = send_in_turn(others, *(make_image(others, each) for each in signs))
    queries = send_in_turn(truth, *(make_image(truth, each) for each in signs))
    belief = listen(name, queries, dataclasses.replace(means, other_run=copies)).belief()
    assert belief.tolist() == [1.0 / (1 + len(signs))] * (1 + len(signs))


@pytest.mark.parametrize("name", OWNING)
def test_an_owner_cannot_tell_an_image_on_an_axis_without_data(
    name: str, truth: list[Vector], means: Means
) -> None:
    image = make_image(truth, UNSEEN)
    assert any(not np.array_equal(*pair) for pair in zip(truth, image, strict=True))
    assert listen(name, send_at_once(truth, image), means).belief().tolist() == [0.5, 0.5]


@pytest.mark.parametrize("name", TOLD)
def test_decoys_of_the_public_set_are_told_from_the_truth(name: str, means: Means) -> None:
    right = []
    for seed in range(5):
        queries = send_in_turn(train_truth(seed=seed), train_decoy(seed=seed))
        right.append(listen(name, queries, means).belief()[0] > 0.5)
    assert sum(right) >= 4


@pytest.mark.parametrize("tiers", ["A", "AB", "ABC"])
def test_figures_of_images_are_equal_where_they_should_be(
    tiers: str, truth: list[Vector], means: Means
) -> None:
    queries, count = send_at_once(truth, make_image(truth, FLIPPED if tiers == "A" else UNSEEN)), 0
    for name, kind in EAVESDROPPERS.items():
        if kind.tier not in tiers or name in (*BY_TURN, "mark", "two-runs"):  # type: ignore
            continue
        if name.startswith("trained") or "scheme" in kind.needs:  # type: ignore[attr-defined]
            continue
        for figure, values in listen(name, queries, means).figures().items():
            assert values[0] == values[1], (name, figure)
            count += 1
    assert count > 15
