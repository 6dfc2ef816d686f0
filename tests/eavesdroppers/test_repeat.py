"""The eavesdropper `repeat`."""

from __future__ import annotations

import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.repeat import RepeatEavesdropper
from tests.support.seen_queries import feed, make_queries


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
def test_worked_by_hand(
    sent: list[tuple[int, float]], belief: list[float], held: list[float]
) -> None:
    queries = make_queries([(trajectory, (number,)) for trajectory, number in sent])
    eavesdropper = feed(RepeatEavesdropper(Means()), queries)
    assert eavesdropper.belief() == pytest.approx(belief, abs=1e-15)
    assert [float(weights[0]) for weights in eavesdropper.estimate()] == held
