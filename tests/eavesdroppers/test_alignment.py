"""The eavesdropper `alignment`."""

from __future__ import annotations

import math

import pytest

from covertfl.eavesdroppers.alignment import ALIGNMENT_ODDS, AlignmentEavesdropper
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Work
from tests.support.seen_queries import feed, make_line_means, make_queries

# Its replies pull the weight up and leave the bias alone.
ALONG = [(0, (0.0, 0.0)), (0, (1.0, 0.0))]


AGAINST = [(1, (0.5, 0.0)), (1, (-2.0, 0.0))]


ASLANT = [(1, (-1.0, 0.0)), (1, (0.0, 1.0))]


@pytest.mark.parametrize("work", ["train", "gradient"])
def test_cosines_worked_by_hand(work: Work) -> None:
    means = make_line_means(lr=0.1, work=work)
    eavesdropper = feed(AlignmentEavesdropper(means), make_queries(ALONG + AGAINST))
    assert eavesdropper.alignment(0) == pytest.approx(1.0, abs=1e-6)
    assert eavesdropper.alignment(1) == pytest.approx(-1.0, abs=1e-6)
    assert eavesdropper.belief()[0] == pytest.approx(1.0 / (1.0 + math.exp(-2.0 * ALIGNMENT_ODDS)))
    (held,) = eavesdropper.estimate()
    assert held.tolist() == [1.0, 0.0]


def test_a_move_aslant_has_the_cosine_of_its_angle() -> None:
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(ALONG + ASLANT))
    assert eavesdropper.alignment(1) == pytest.approx(math.sqrt(0.5), abs=1e-6)
    odds = math.exp(ALIGNMENT_ODDS * (1.0 - math.sqrt(0.5)))
    assert eavesdropper.belief() == pytest.approx([odds / (1 + odds), 1 / (1 + odds)], rel=1e-4)


def test_the_mean_is_over_moves_and_repeats_count_for_nothing() -> None:
    sent = [(0, (0.0, 0.0)), (0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (1.0, 3.0))]
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.alignment(0) == pytest.approx(0.5, abs=1e-6)
    assert eavesdropper.belief().tolist() == [1.0]


def test_ties_and_three_trajectories() -> None:
    first = [(0, (0.0, 0.0)), (1, (5.0, 0.0)), (2, (9.0, 0.0))]
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), make_queries(first))
    assert eavesdropper.belief() == pytest.approx([1 / 3] * 3)
    assert len(eavesdropper.estimate()) == 3
    moved = make_queries([*first, (2, (9.5, 0.0))])
    eavesdropper = feed(AlignmentEavesdropper(make_line_means()), moved)
    e = math.exp(ALIGNMENT_ODDS)
    assert eavesdropper.belief() == pytest.approx([1 / (2 + e), 1 / (2 + e), e / (2 + e)], rel=1e-4)


def test_it_must_be_a_client() -> None:
    with pytest.raises(InvalidInput, match="needs to be a client"):
        AlignmentEavesdropper(Means())
