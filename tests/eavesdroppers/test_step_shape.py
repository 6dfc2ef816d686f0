"""The eavesdropper `step-shape`."""

from __future__ import annotations

import math

import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.step_shape import SMOOTHNESS_ODDS, StepShapeEavesdropper
from tests.support.seen_queries import feed, make_queries

STRAIGHT = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 0.0))]


# A step of 1 to the right and one of 2 upwards: cosine 0, lengths differ by a factor of 2.
BENT = [(1, (50.0, 0.0)), (1, (51.0, 0.0)), (1, (51.0, 2.0))]


def test_smoothness_worked_by_hand() -> None:
    eavesdropper = feed(StepShapeEavesdropper(Means()), make_queries(STRAIGHT + BENT))
    assert eavesdropper.smoothness(0) == pytest.approx(1.0)
    assert eavesdropper.smoothness(1) == pytest.approx(-0.5 * math.log(2.0))
    odds = math.exp(SMOOTHNESS_ODDS * (1.0 + 0.5 * math.log(2.0)))
    assert eavesdropper.belief() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])
    (held,) = eavesdropper.estimate()
    assert held.tolist() == [2.0, 0.0]


def test_repeats_are_no_steps() -> None:
    """A query between two steps that did not move changes nothing."""
    repeated = [STRAIGHT[0], STRAIGHT[1], STRAIGHT[1], STRAIGHT[1], STRAIGHT[2]]
    eavesdropper = feed(StepShapeEavesdropper(Means()), make_queries(repeated))
    assert eavesdropper.smoothness(0) == pytest.approx(1.0)
    assert eavesdropper.belief().tolist() == [1.0]


def test_nothing_is_known_before_two_steps() -> None:
    eavesdropper = feed(
        StepShapeEavesdropper(Means()), make_queries([STRAIGHT[0], BENT[0], STRAIGHT[1], BENT[1]])
    )
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
    assert len(eavesdropper.estimate()) == 2


def test_three_trajectories() -> None:
    back = [(2, (0.0, 90.0)), (2, (0.0, 91.0)), (2, (0.0, 90.0))]
    eavesdropper = feed(StepShapeEavesdropper(Means()), make_queries(STRAIGHT + BENT + back))
    scores = [1.0, -0.5 * math.log(2.0), -1.0]
    weights = [math.exp(SMOOTHNESS_ODDS * score) for score in scores]
    expected = [weight / sum(weights) for weight in weights]
    assert eavesdropper.belief() == pytest.approx(expected, rel=1e-6)
