"""The eavesdropper `train-alone`."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.train_alone import TrainAloneEavesdropper
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Vector
from tests.support.seen_queries import feed, make_line_means, make_queries, sigmoid


def test_a_pass_for_each_round_from_nothing() -> None:
    """A parameter of one number has no spread, so it starts at 0."""
    queries = make_queries([(0, (7.0, 2.0)), (1, (-7.0, 5.0)), (0, (7.0, 2.0))])
    eavesdropper, expected = TrainAloneEavesdropper(make_line_means(lr=0.5)), 0.0
    for query in queries:
        eavesdropper.observe(query)
        expected += 0.5 * sigmoid(-expected)
        (held,) = eavesdropper.estimate()
        assert held == pytest.approx([expected, 0.0], abs=1e-6)


def test_what_is_sent_after_the_first_query_does_not_matter() -> None:
    means = make_line_means()

    def hold(rest: list[tuple[int, tuple[float, float]]]) -> Vector:
        queries = make_queries([(0, (7.0, 2.0)), *rest])
        (held,) = feed(TrainAloneEavesdropper(means), queries).estimate()
        return held

    assert np.array_equal(hold([(1, (1.0, 1.0))]), hold([(0, (-90.0, 3.0))]))


def test_it_believes_in_nothing() -> None:
    queries = make_queries([(0, (7.0, 2.0)), (1, (9.0, 0.0)), (2, (5.0, 5.0)), (0, (7.0, 2.0))])
    belief = feed(TrainAloneEavesdropper(make_line_means()), queries).belief()
    assert belief == pytest.approx([1 / 3] * 3)


def test_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="needs labelled data"):
        TrainAloneEavesdropper(Means())
