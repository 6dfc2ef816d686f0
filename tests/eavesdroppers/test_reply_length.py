"""The eavesdropper `reply-length`."""

from __future__ import annotations

import dataclasses
import math

import pytest

from covertfl.eavesdroppers.reply_length import LENGTH_ODDS, ReplyLengthEavesdropper
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid


def test_lengths_worked_by_hand() -> None:
    """A pass moves weight w by 1 / (1 + exp(w)): the trained weight is moved least."""
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    eavesdropper = feed(ReplyLengthEavesdropper(make_line_means()), queries)
    lengths = [sigmoid(-2.0), sigmoid(1.0)]
    figures = eavesdropper.figures()
    assert figures["length"] == pytest.approx([math.log(length) for length in lengths], rel=1e-5)
    assert figures["bias"] == pytest.approx([0.0, 0.0], abs=1e-6)
    odds = (lengths[1] / lengths[0]) ** LENGTH_ODDS
    assert eavesdropper.belief()[0] == pytest.approx(odds / (1.0 + odds), rel=1e-4)
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[2.0, 0.0]]


def test_replies_grow_shorter_where_it_is_trained() -> None:
    sent = [(0, (float(number), 0.0)) for number in range(6)]
    eavesdropper = feed(ReplyLengthEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.figures()["trend of length"][0] < -1.0


def test_only_its_own_replies_count() -> None:
    means = dataclasses.replace(make_line_means(), attended=frozenset({1}))
    queries = make_queries([(0, (2.0, 0.0)), (0, (-5.0, 0.0)), (1, (3.0, 0.0))])
    eavesdropper = feed(ReplyLengthEavesdropper(means), queries)
    assert eavesdropper.figures()["length"] == pytest.approx([math.log(sigmoid(-2.0)), 0.0])
