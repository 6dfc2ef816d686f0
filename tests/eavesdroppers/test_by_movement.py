"""Beliefs from how the weights of each trajectory move."""

from __future__ import annotations

import math

import pytest

from covertfl.eavesdroppers.by_movement import (
    ALIGNMENT_ODDS,
    SMOOTHNESS_ODDS,
    AlignmentEavesdropper,
    EarlyStopEavesdropper,
    RepeatEavesdropper,
    StepShapeEavesdropper,
)
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Work
from tests.support.seen_queries import feed, make_line_means, make_queries


@pytest.mark.parametrize(
    ("sent", "belief"),
    [
        ([(0, (1.0,))], [1.0]),
        ([(0, (1.0,)), (0, (1.0,))], [1.0]),
        # 0 moved last in round 2, 1 in round 5; the repeat in round 4 is no movement.
        ([(0, (1.0,)), (0, (2.0,)), (1, (9.0,)), (0, (2.0,)), (1, (8.0,))], [1.0, 0.0]),
        # A trajectory's first query counts as movement; 1 repeats it for ever.
        ([(0, (1.0,)), (1, (9.0,)), (0, (2.0,)), (1, (9.0,)), (1, (9.0,))], [0.0, 1.0]),
        # Three: 0 in round 4, 1 in round 2, 2 in round 5.
        (
            [(0, (1.0,)), (1, (5.0,)), (2, (9.0,)), (0, (2.0,)), (2, (8.0,))],
            [0.0, 1.0, 0.0],
        ),
    ],
)
def test_early_stop_worked_by_hand(
    sent: list[tuple[int, tuple[float]]], belief: list[float]
) -> None:
    eavesdropper = feed(EarlyStopEavesdropper(Means()), make_queries(sent))
    assert eavesdropper.belief().tolist() == belief
    (held,) = eavesdropper.estimate()
    favourite = belief.index(1.0)
    assert held[0] == [numbers[0] for number, numbers in sent if number == favourite][-1]


@pytest.mark.parametrize(
    ("sent", "belief", "held"),
    [
        ([(0, 1.0)], [1.0], [1.0]),
        ([(0, 1.0), (0, 1.0)], [1.0], [1.0]),
        ([(0, 1.0), (1, 9.0), (0, 2.0), (1, 8.0)], [0.5, 0.5], [2.0, 8.0]),
        # 0 repeats in rounds 3 and 4 with a query of 1 between; 1 repeats in round 6.
        (
            [(0, 1.0), (1, 9.0), (0, 1.0), (0, 1.0), (1, 8.0), (1, 8.0), (0, 2.0)],
            [2 / 3, 1 / 3],
            [2.0],
        ),
        # What returns after a move is no repeat of the last query.
        ([(0, 1.0), (1, 9.0), (0, 2.0), (0, 1.0), (1, 9.0)], [0.0, 1.0], [9.0]),
        ([(0, 1.0), (1, 5.0), (2, 9.0), (2, 9.0), (1, 5.0), (0, 2.0)], [0, 0.5, 0.5], [5.0, 9.0]),
    ],
)
def test_repeat_worked_by_hand(
    sent: list[tuple[int, float]], belief: list[float], held: list[float]
) -> None:
    queries = make_queries([(trajectory, (number,)) for trajectory, number in sent])
    eavesdropper = feed(RepeatEavesdropper(Means()), queries)
    assert eavesdropper.belief() == pytest.approx(belief, abs=1e-15)
    assert [float(weights[0]) for weights in eavesdropper.estimate()] == held


STRAIGHT = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 0.0))]
# A step of 1 to the right and one of 2 upwards: cosine 0, lengths differ by a factor of 2.
BENT = [(1, (50.0, 0.0)), (1, (51.0, 0.0)), (1, (51.0, 2.0))]


def test_step_shape_smoothness_worked_by_hand() -> None:
    eavesdropper = feed(StepShapeEavesdropper(Means()), make_queries(STRAIGHT + BENT))
    assert eavesdropper.smoothness(0) == pytest.approx(1.0)
    assert eavesdropper.smoothness(1) == pytest.approx(-0.5 * math.log(2.0))
    odds = math.exp(SMOOTHNESS_ODDS * (1.0 + 0.5 * math.log(2.0)))
    assert eavesdropper.belief() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])
    (held,) = eavesdropper.estimate()
    assert held.tolist() == [2.0, 0.0]


def test_step_shape_repeats_are_no_steps() -> None:
    """A query between two steps that did not move changes nothing."""
    repeated = [STRAIGHT[0], STRAIGHT[1], STRAIGHT[1], STRAIGHT[1], STRAIGHT[2]]
    eavesdropper = feed(StepShapeEavesdropper(Means()), make_queries(repeated))
    assert eavesdropper.smoothness(0) == pytest.approx(1.0)
    assert eavesdropper.belief().tolist() == [1.0]


def test_step_shape_nothing_is_known_before_two_steps() -> None:
    eavesdropper = feed(
        StepShapeEavesdropper(Means()),
        make_queries([STRAIGHT[0], BENT[0], STRAIGHT[1], BENT[1]]),
    )
    assert eavesdropper.belief().tolist() == [0.5, 0.5]
    assert len(eavesdropper.estimate()) == 2


def test_step_shape_three_trajectories() -> None:
    back = [(2, (0.0, 90.0)), (2, (0.0, 91.0)), (2, (0.0, 90.0))]
    eavesdropper = feed(StepShapeEavesdropper(Means()), make_queries(STRAIGHT + BENT + back))
    scores = [1.0, -0.5 * math.log(2.0), -1.0]
    weights = [math.exp(SMOOTHNESS_ODDS * score) for score in scores]
    expected = [weight / sum(weights) for weight in weights]
    assert eavesdropper.belief() == pytest.approx(expected, rel=1e-6)


# Its replies pull the weight up and leave the bias alone.
ALONG = [(0, (0.0, 0.0)), (0, (1.0, 0.0))]
AGAINST = [(1, (0.5, 0.0)), (1, (-2.0, 0.0))]
ASLANT = [(1, (-1.0, 0.0)), (1, (0.0, 1.0))]


@pytest.mark.parametrize("work", ["train", "gradient"])
def test_alignment_cosines_worked_by_hand(work: Work) -> None:
    means = make_line_means(lr=0.1, work=work)
    eavesdropper = feed(AlignmentEavesdropper(means), make_queries(ALONG + AGAINST))
    assert eavesdropper.alignment(0) == pytest.approx(1.0, abs=1e-6)
    assert eavesdropper.alignment(1) == pytest.approx(-1.0, abs=1e-6)
    assert eavesdropper.belief()[0] == pytest.approx(1.0 / (1.0 + math.exp(-2.0 * ALIGNMENT_ODDS)))
    (held,) = eavesdropper.estimate()
    assert held.tolist() == [1.0, 0.0]


def test_alignment_a_move_aslant_has_the_cosine_of_its_angle() -> None:
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(ALONG + ASLANT))
    assert eavesdropper.alignment(1) == pytest.approx(math.sqrt(0.5), abs=1e-6)
    odds = math.exp(ALIGNMENT_ODDS * (1.0 - math.sqrt(0.5)))
    assert eavesdropper.belief() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)], rel=1e-4)


def test_alignment_the_mean_is_over_moves_and_repeats_count_for_nothing() -> None:
    sent = [(0, (0.0, 0.0)), (0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (1.0, 3.0))]
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.alignment(0) == pytest.approx(0.5, abs=1e-6)
    assert eavesdropper.belief().tolist() == [1.0]


def test_alignment_ties_and_three_trajectories() -> None:
    first = [(0, (0.0, 0.0)), (1, (5.0, 0.0)), (2, (9.0, 0.0))]
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(first))
    assert eavesdropper.belief() == pytest.approx([1 / 3] * 3)
    assert len(eavesdropper.estimate()) == 3
    moved = make_queries([*first, (2, (9.5, 0.0))])
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), moved)
    e = math.exp(ALIGNMENT_ODDS)
    assert eavesdropper.belief() == pytest.approx([1 / (2 + e), 1 / (2 + e), e / (2 + e)], rel=1e-4)


def test_alignment_it_must_be_a_client() -> None:
    with pytest.raises(InvalidInput, match="needs to be a client"):
        AlignmentEavesdropper(Means())
