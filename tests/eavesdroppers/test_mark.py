"""The eavesdropper `mark`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.mark import MARK_ODDS, MarkEavesdropper
from tests.support.seen_queries import feed, make_queries, vector
from tests.support.small_federation import make_image, make_means, send_in_turn, train_truth

MEANS = Means(mark=vector(0.6, 0.8, 0.0, 0.0))


def test_products_worked_by_hand() -> None:
    """Two moves with products 0.6 and 0.8; each length squared, 1, is spread over 4 weights."""
    sent = [
        (0, (0.0, 0.0, 0.0, 0.0)),
        (0, (1.0, 0.0, 0.0, 0.0)),
        (0, (1.0, 1.0, 0.0, 0.0)),
        (1, (9.0, 9.0, 9.0, 9.0)),
        (1, (9.0, 9.0, 9.0, 8.0)),
    ]
    eavesdropper = feed(MarkEavesdropper(MEANS), make_queries(sent))
    expected = 1.4 / math.sqrt(2 / 4)
    assert eavesdropper.measure_mark() == pytest.approx([expected, 0.0])
    odds = math.exp(MARK_ODDS * expected)
    assert eavesdropper.belief()[0] == pytest.approx(odds / (1.0 + odds))
    asked = dataclasses.replace(MEANS, attended=frozenset({2, 4}))
    eavesdropper = feed(MarkEavesdropper(asked), make_queries(sent))
    assert eavesdropper.measure_mark() == pytest.approx([0.8 / math.sqrt(1 / 4), 0.0])


def test_a_marked_reply_is_found_in_the_truth() -> None:
    means, right = make_means(), []
    for seed in range(6):
        truth = train_truth(seed=seed, mark=means.mark)
        queries = send_in_turn(truth, make_image(truth))
        right.append(feed(MarkEavesdropper(means), queries).belief()[0] > 0.5)
    assert all(right)


def test_where_flips_leave_the_pattern_an_image_ties() -> None:
    """A pattern in weights that are not the pivot's is in every image alike."""
    mark = np.zeros_like(make_means().mark)
    mark[-1] = 1.0
    truth = train_truth(mark=mark)
    means = dataclasses.replace(make_means(), mark=mark)
    queries = send_in_turn(truth, make_image(truth))
    assert feed(MarkEavesdropper(means), queries).belief().tolist() == [0.5, 0.5]
