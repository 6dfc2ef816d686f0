"""The eavesdropper `anti-validation`."""

from __future__ import annotations

import pytest

from covertfl.eavesdroppers.anti_validation import AntiValidationEavesdropper
from covertfl.eavesdroppers.validation import ValidationEavesdropper
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid


def test_it_believes_the_reverse_of_validation() -> None:
    queries = make_queries([(0, (2.0, 0.0)), (1, (-1.0, 0.0))])
    right, wrong = sigmoid(2.0) ** 2, sigmoid(-1.0) ** 2
    eavesdropper = feed(AntiValidationEavesdropper(make_line_means()), queries)
    expected = [wrong / (right + wrong), right / (right + wrong)]
    assert eavesdropper.belief() == pytest.approx(expected, rel=1e-5)
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[-1.0, 0.0]]
    other = feed(ValidationEavesdropper(make_line_means()), queries)
    assert other.belief()[::-1] == pytest.approx(eavesdropper.belief())
