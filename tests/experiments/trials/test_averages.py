"""Means and shares over seeds with their intervals."""

from __future__ import annotations

from covertfl.experiments.trials.averages import average, share


def test_intervals_stay_within_their_range() -> None:
    assert average([0.9, 1.0, 1.0], most=1.0)["interval"][1] == 1.0
    assert average([0.9, 1.0, 1.0])["interval"][1] > 1.0
    assert average([0.25]) == {"mean": 0.25, "interval": None}
    low, high = share([1.0, 0.5, 0.0, 0.0])["interval"]
    assert 0.0 < low < 0.375 < high < 1.0
