"""The eavesdropper `early-stop`."""

from __future__ import annotations

import pytest

from covertfl.eavesdroppers.early_stop import EarlyStopEavesdropper
from covertfl.eavesdroppers.eavesdropper import Means
from tests.support.seen_queries import feed, make_queries


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
        ([(0, (1.0,)), (1, (5.0,)), (2, (9.0,)), (0, (2.0,)), (2, (8.0,))], [0.0, 1.0, 0.0]),
    ],
)
def test_worked_by_hand(sent: list[tuple[int, tuple[float]]], belief: list[float]) -> None:
    eavesdropper = feed(EarlyStopEavesdropper(Means()), make_queries(sent))
    assert eavesdropper.belief().tolist() == belief
    (held,) = eavesdropper.estimate()
    favourite = belief.index(1.0)
    assert held[0] == [numbers[0] for number, numbers in sent if number == favourite][-1]
