"""The eavesdropper `last-layer`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.eavesdroppers.last_layer import SHARE_ODDS, LastLayerEavesdropper
from covertfl.eavesdroppers.moves import find_last_layer
from tests.support.seen_queries import feed, make_line_means, make_queries
from tests.support.small_federation import HIDDEN, LAYOUT, draw_weights, make_means, send_in_turn


def test_shares_worked_by_hand() -> None:
    """Two trajectories move by 3 in one first weight and by 4, or 1, in the last bias."""
    first = draw_weights(0) * 0.0
    ways = []
    for bias in (4.0, 1.0):
        then = first.copy()
        then[0], then[-1] = 3.0, bias
        ways.append([first, then])
    eavesdropper = feed(LastLayerEavesdropper(make_means()), send_in_turn(*ways))
    figures = eavesdropper.figures()
    assert np.exp(figures["share"]) == pytest.approx([16.0 / 25.0, 1.0 / 10.0])
    assert figures["bias"] == pytest.approx([0.8, 1.0 / math.sqrt(10.0)])
    assert np.exp(figures["length"]) == pytest.approx([4.0, 1.0])
    odds = (16.0 / 25.0 / 0.1) ** SHARE_ODDS
    assert eavesdropper.belief()[1] == pytest.approx(odds / (1.0 + odds))


def test_the_last_layer_has_weights_and_bias() -> None:
    assert find_last_layer(LAYOUT) == slice(LAYOUT.size - HIDDEN - 1, LAYOUT.size)


def test_with_a_single_layer_all_tie() -> None:
    sent = [(0, (0.0, 0.0)), (1, (5.0, 0.0)), (0, (0.0, 1.0)), (1, (7.0, 1.0))]
    eavesdropper = feed(LastLayerEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
