"""The eavesdropper `rounding`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.rounding import ROUNDING_ODDS, RoundingEavesdropper
from tests.support.seen_queries import feed, make_queries

UNIT = 2.0**-23  # of 32-bit numbers in [1, 2)


def test_moves_by_a_few_units_in_the_last_place_are_counted() -> None:
    sent = [
        (0, (1.0, -1.5, 1.5, 1.0)),
        (1, (1.0, 9.0, 9.0, 1.0)),
        (0, (1.0 + 2 * UNIT, -1.5 - 4 * UNIT, 1.5 + 5 * UNIT, 1.0)),
        (1, (1.0, 9.0, 9.5, 1.1)),
    ]
    eavesdropper = feed(RoundingEavesdropper(Means()), make_queries(sent))
    figures = eavesdropper.figures()
    assert figures["rounding"].tolist() == [0.5, 0.0]
    assert figures["still"].tolist() == [0.25, 0.5]
    assert eavesdropper.belief()[1] == pytest.approx(
        math.exp(-0.5 * ROUNDING_ODDS) / (1.0 + math.exp(-0.5 * ROUNDING_ODDS))
    )


def test_the_mean_of_equal_replies_moves_by_rounding() -> None:
    """Weights that no client has changed, averaged over clients, against weights left alone."""
    generator = np.random.default_rng(0)
    first = generator.standard_normal(400).astype(np.float32)
    shares = np.full((7, 1), 1 / 7, dtype=np.float32)
    averaged, left = np.add.reduce(shares * first, axis=0, dtype=np.float32), first.copy()
    averaged[:10], left[:10] = first[:10] + 0.1, first[:10] + 0.1
    sent = [(0, first), (1, 5.0 * first), (0, averaged), (1, 5.0 * left)]
    queries = make_queries((number, weights.tolist()) for number, weights in sent)
    eavesdropper = feed(RoundingEavesdropper(Means()), queries)
    assert eavesdropper.belief()[0] > 0.99
