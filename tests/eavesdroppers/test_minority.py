"""The eavesdropper `minority`."""

from __future__ import annotations

import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.minority import MinorityEavesdropper
from tests.support.seen_queries import feed, follow_schedule


@pytest.mark.parametrize(
    ("order", "belief", "held"),
    [
        ([0], [1.0], [0]),
        ([0, 0, 0], [1.0], [0]),
        ([0, 1, 1], [2 / 3, 1 / 3], [0]),
        ([0, 1, 1, 0], [0.5, 0.5], [0, 1]),
        # Of six queries 4, 5 and 3 were not of the trajectory.
        ([0, 1, 2, 2, 0, 2], [4 / 12, 5 / 12, 3 / 12], [1]),
        ([0, 1, 2, 0], [2 / 8, 3 / 8, 3 / 8], [1, 2]),
    ],
)
def test_worked_by_hand(order: list[int], belief: list[float], held: list[int]) -> None:
    eavesdropper = feed(MinorityEavesdropper(Means()), follow_schedule(order))
    assert eavesdropper.belief() == pytest.approx(belief, abs=1e-15)
    assert [int(weights[0]) // 100 for weights in eavesdropper.estimate()] == held
