"""The eavesdropper `map-spectrum`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from covertfl.eavesdroppers.map_spectrum import CENTRE_ODDS, MapSpectrumEavesdropper
from tests.support.seen_queries import feed
from tests.support.small_federation import (
    INPUTS,
    LAYOUT,
    PIVOT,
    draw_weights,
    make_means,
    send_in_turn,
    train_truth,
)


def move_columns(amounts: dict[int, float]) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Weights before and after a move of some columns of the pivot."""
    first = draw_weights(0) * 0.0
    parts = {name: part.copy() for name, part in LAYOUT.split(first).items()}
    for axis, amount in amounts.items():
        parts[PIVOT][:, axis] = amount
    return [first, LAYOUT.join(parts)]


def test_the_centre_of_energy_worked_by_hand() -> None:
    """Energies of 1 and 4 on axes 1 and 2, against all on axis 4; ranks count from 1, in logs."""
    ways = [move_columns({0: 1.0, 1: -2.0}), move_columns({3: 1.0})]
    eavesdropper = feed(MapSpectrumEavesdropper(make_means()), send_in_turn(*ways))
    figures = eavesdropper.figures()
    assert figures["centre"] == pytest.approx([0.8 * math.log(2.0), math.log(4.0)])
    assert figures["centre of the way"] == pytest.approx(figures["centre"])
    entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert figures["evenness"] == pytest.approx([entropy / math.log(INPUTS), 0.0])
    odds = math.exp(CENTRE_ODDS * (math.log(4.0) - 0.8 * math.log(2.0)))
    assert eavesdropper.belief()[0] == pytest.approx(odds / (1.0 + odds))


def test_axes_are_those_of_the_map() -> None:
    """With the columns of the map reversed, a move of the last input is one of the first axis."""
    means = dataclasses.replace(make_means(), axes=np.eye(INPUTS)[:, ::-1])
    ways = [move_columns({INPUTS - 1: 1.0}), move_columns({0: 1.0})]
    eavesdropper = feed(MapSpectrumEavesdropper(means), send_in_turn(*ways))
    assert eavesdropper.figures()["centre"] == pytest.approx([0.0, math.log(INPUTS)])


def test_a_permutation_of_the_inputs_gives_an_image_away() -> None:
    truth, right = train_truth(), []
    for seed in range(1, 6):
        order, image = np.random.default_rng(seed).permutation(INPUTS), []
        for weights in truth:
            parts = dict(LAYOUT.split(weights))
            image.append(LAYOUT.join({**parts, PIVOT: parts[PIVOT][:, order]}))
        eavesdropper = feed(MapSpectrumEavesdropper(make_means()), send_in_turn(truth, image))
        right.append(eavesdropper.belief()[0] > 0.5)
    assert all(right)


def test_a_pivot_that_does_not_move_ties() -> None:
    first = draw_weights(0)
    then = first.copy()
    then[-1] += 1.0
    eavesdropper = feed(
        MapSpectrumEavesdropper(make_means()), send_in_turn([first, then], [2 * first, 2 * then])
    )
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
