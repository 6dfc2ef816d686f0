"""The eavesdropper `majority`."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from tests.support.seen_queries import feed, follow_schedule


@pytest.mark.parametrize(
    ("order", "belief", "held"),
    [
        ([0], [1.0], [(0.0, 0.0)]),
        ([0, 1, 1], [1 / 3, 2 / 3], [(100.0, 1.0)]),
        ([0, 1, 1, 0], [0.5, 0.5], [(0.0, 1.0), (100.0, 1.0)]),
        ([0, 1, 2, 2, 0, 2], [2 / 6, 1 / 6, 3 / 6], [(200.0, 2.0)]),
        ([0, 1, 2, 2, 0], [0.4, 0.2, 0.4], [(0.0, 1.0), (200.0, 1.0)]),
    ],
)
def test_worked_by_hand(
    order: list[int], belief: list[float], held: list[tuple[float, float]]
) -> None:
    eavesdropper = feed(MajorityEavesdropper(Means()), follow_schedule(order))
    assert eavesdropper.belief() == pytest.approx(belief, abs=1e-15)
    assert [tuple(weights.tolist()) for weights in eavesdropper.estimate()] == held


def test_the_estimate_follows_the_lead_round_by_round() -> None:
    eavesdropper, leads = MajorityEavesdropper(Means()), []
    for query in follow_schedule([0, 1, 1, 0, 0]):
        eavesdropper.observe(query)
        leads.append([int(weights[0]) // 100 for weights in eavesdropper.estimate()])
    assert leads == [[0], [0, 1], [1], [0, 1], [0]]


def test_beliefs_are_probabilities_after_every_round() -> None:
    eavesdropper = MajorityEavesdropper(Means())
    for query in follow_schedule([0, 0, 1, 2, 1, 1, 0, 2, 2]):
        eavesdropper.observe(query)
        assert np.sum(eavesdropper.belief()) == pytest.approx(1.0, abs=1e-12)
