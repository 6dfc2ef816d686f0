"""The eavesdropper `ensemble`."""

from __future__ import annotations

import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.ensemble import EnsembleEavesdropper
from covertfl.errors import InvalidInput
from tests.support.seen_queries import feed, make_line_means, make_queries


def test_the_mean_of_two_that_err_in_opposite_ways() -> None:
    """Biases 3 and -3 cancel."""
    queries = make_queries([(0, (3.0, 3.0)), (1, (3.0, -3.0))])
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), queries)
    assert eavesdropper.belief() == pytest.approx([0.5, 0.5])
    (held,) = eavesdropper.estimate()
    assert held == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ((3.0, 0.0), (-3.0, 0.0), 1.0),
        ((-3.0, 0.0), (3.0, 0.0), 0.0),
        # The biases cancel with three quarters of the first.
        ((3.0, 1.0), (3.0, -3.0), 0.75),
        ((3.0, 3.0), (3.0, -1.0), 0.25),
    ],
)
def test_shares_of_two(
    first: tuple[float, float], second: tuple[float, float], share: float
) -> None:
    queries = make_queries([(0, first), (1, second)])
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), queries)
    assert eavesdropper.belief() == pytest.approx([share, 1.0 - share])


def test_three_trajectories_of_which_one_is_left_out() -> None:
    queries = make_queries([(0, (3.0, 3.0)), (1, (3.0, -3.0)), (2, (-9.0, 0.0))])
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), queries)
    assert eavesdropper.belief() == pytest.approx([0.5, 0.5, 0.0])
    (held,) = eavesdropper.estimate()
    assert held == pytest.approx([3.0, 0.0])


def test_one_trajectory_and_moves() -> None:
    sent = [(0, (1.0, 0.0)), (0, (2.0, 0.0)), (0, (2.0, 0.0))]
    eavesdropper = feed(EnsembleEavesdropper(make_line_means()), make_queries(sent))
    assert eavesdropper.belief().tolist() == [1.0]
    assert [weights.tolist() for weights in eavesdropper.estimate()] == [[2.0, 0.0]]


def test_it_needs_data() -> None:
    with pytest.raises(InvalidInput, match="needs labelled data"):
        EnsembleEavesdropper(Means())
