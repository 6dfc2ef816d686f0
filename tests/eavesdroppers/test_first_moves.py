"""The eavesdropper `first-moves`."""

from __future__ import annotations

import dataclasses
import math

import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.first_moves import FIRST_ODDS, FirstMovesEavesdropper
from covertfl.errors import InvalidInput
from tests.support.seen_queries import feed, make_line_means, make_queries

# Its replies pull the weight up and leave the bias alone.
THREE_ALONG = [(0, (float(number), 0.0)) for number in range(4)]
THREE_ASIDE = [(1, (0.0, 10.0 + number)) for number in range(4)]


def test_only_the_first_three_moves_count() -> None:
    """Later moves, against its replies and with them, change nothing."""
    later = [(0, (-5.0, 0.0)), (1, (5.0, 13.0)), (1, (9.0, 13.0))]
    for sent in ([*THREE_ALONG, *THREE_ASIDE], [*THREE_ALONG, *THREE_ASIDE, *later]):
        eavesdropper = feed(FirstMovesEavesdropper(make_line_means()), make_queries(sent))
        assert eavesdropper.figures()["cosine"][0] == pytest.approx(1.0, abs=1e-6)
        odds = eavesdropper.belief()[0] / eavesdropper.belief()[1]
        aside = eavesdropper.figures()["cosine"][1]
        assert odds == pytest.approx(math.exp(FIRST_ODDS * (1.0 - aside)), rel=1e-4)


def test_moves_from_queries_that_it_was_not_asked_do_not_count() -> None:
    """Of the moves up, up and down it was asked before the third, which goes against its reply."""
    sent = [(0, (0.0, 0.0)), (0, (1.0, 0.0)), (0, (2.0, 0.0)), (0, (-3.0, 0.0))]
    means = dataclasses.replace(make_line_means(), attended=frozenset({3}))
    eavesdropper = feed(FirstMovesEavesdropper(means), make_queries(sent))
    assert eavesdropper.figures()["cosine"].tolist() == pytest.approx([-1.0], abs=1e-6)
    assert eavesdropper.figures()["cosine of the first"] == pytest.approx([-1.0], abs=1e-6)


def test_never_asked_it_cannot_tell() -> None:
    means = dataclasses.replace(make_line_means(), attended=frozenset())
    eavesdropper = feed(FirstMovesEavesdropper(means), make_queries([*THREE_ALONG, *THREE_ASIDE]))
    assert eavesdropper.belief().tolist() == [0.5, 0.5]


def test_it_must_be_a_client() -> None:
    with pytest.raises(InvalidInput, match="needs to be a client"):
        FirstMovesEavesdropper(Means())
