"""Means and shares over seeds with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from paper.averages import (
    FEWEST_RESAMPLED,
    average,
    average_estimate,
    average_levels,
    band,
    resampled_interval,
    share,
)

TRUTH, DECOY = 0.82, 0.5


def test_intervals_stay_within_their_range() -> None:
    assert average([0.9, 1.0, 1.0], most=1.0)["interval"][1] == 1.0
    assert average([0.9, 1.0, 1.0])["interval"][1] > 1.0
    assert average([0.25]) == {"mean": 0.25, "interval": None}
    low, high = share([1.0, 0.5, 0.0, 0.0])["interval"]
    assert 0.0 < low < 0.375 < high < 1.0


def test_both_levels_are_weighted_by_the_exact_probability() -> None:
    named, accuracies = [1.0, 0.0, 0.0, 0.0, 0.0], [0.8, 0.5, 0.6, 0.5, 0.6]
    found = average_estimate(accuracies, named, [0.1] * 5, [0.8, 0.9, 0.7, 0.8, 0.8])
    assert found["measured"] == 0.6
    assert found["mean"] == pytest.approx(0.1 * 0.8 + 0.9 * 0.55)
    variance = 0.1**2 * 0.005 / 1.0 + 0.9**2 * (0.01 / 3.0) / 4.0
    quantile = 3.182446  # of Student's t with three degrees of freedom
    half = quantile * np.sqrt(variance)
    assert found["interval"] == pytest.approx([0.575 - half, 0.575 + half], abs=1e-5)


def test_a_tie_lies_between_the_levels() -> None:
    accuracies, named = [0.9, 0.7, 0.5, 0.5], [1.0, 0.5, 0.0, 0.0]
    found = average_estimate(accuracies, named, [0.25] * 4, [0.9] * 4)
    assert found["mean"] == pytest.approx(0.25 * 0.9 + 0.75 * 0.5)


def test_a_level_that_no_run_shows() -> None:
    lucky = average_estimate([0.5] * 10, [0.0] * 10, [0.1] * 10, [0.7, 0.9] * 5)
    assert lucky["measured"] == 0.5
    assert lucky["mean"] == pytest.approx(0.9 * 0.5 + 0.1 * 0.8)
    assert lucky["interval"][0] < lucky["mean"] < lucky["interval"][1]
    always = average_estimate([0.8] * 10, [1.0] * 10, [0.9] * 10, [0.8] * 10)
    assert (always["mean"], always["interval"]) == (0.8, [0.72, 0.8])
    short = average_estimate([0.5, 0.5], [0.0, 0.0], [0.1, 0.1], [0.7, 0.9])
    assert short["mean"] == lucky["mean"] and short["interval"][1] > lucky["interval"][1]
    certain = average_estimate([0.5] * 10, [0.0] * 10, [0.0] * 10, [0.8] * 10)
    assert (certain["mean"], certain["interval"]) == (0.5, [0.5, 0.5])


@pytest.mark.parametrize("prob", [0.03, 0.105, 0.5])
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("seeds", [10, 100])
def test_expected_accuracy_is_covered_as_often_as_it_says(
    seeds: int, noise: float, prob: float
) -> None:
    """Two levels, with and without noise in the decoy's.

    Student's t of the plain mean covers it in a quarter of the cases with 10 seeds and 3%.
    """
    generator, covered, trials = np.random.default_rng(5), 0, 400
    for _ in range(trials):
        named = (generator.random(seeds) < prob).astype(float)
        learner = generator.normal(TRUTH, 0.01, seeds)
        accuracies = np.where(named == 1.0, learner, generator.normal(DECOY, noise, seeds))
        low, high = average_estimate(accuracies, named, [prob] * seeds, learner)["interval"]
        covered += low - 1e-5 <= prob * TRUTH + (1.0 - prob) * DECOY <= high + 1e-5
    assert 0.91 <= covered / trials <= 0.995


def test_two_levels_are_resampled() -> None:
    """Skewed, as the values are, and the same in every call."""
    values = [DECOY] * 95 + [TRUTH] * 5
    found = average_levels(values, most=1.0)
    low, high = found["interval"]
    assert found == average_levels(values, most=1.0)
    assert found["mean"] == 0.516 and 0.5 <= low < 0.516 < high
    assert high - 0.516 > 0.516 - low
    few = values[-FEWEST_RESAMPLED + 1 :]
    assert average_levels(few) == average(few)
    curve = band([[value, 0.25] for value in values], two_levels=True)
    assert (curve["mean"], curve["low"][0], curve["high"][0]) == ([0.516, 0.25], low, high)
    assert curve["low"][1] == curve["high"][1] == 0.25


def test_resampling_covers_two_levels_as_often_as_it_says() -> None:
    generator, covered = np.random.default_rng(8), 0
    for _ in range(150):
        values = 0.5 + 0.32 * (generator.random(100) < 0.1)
        low, high = resampled_interval(values, generator=generator, resamples=400)
        covered += bool(low - 1e-9 <= 0.532 <= high + 1e-9)
    assert 133 <= covered <= 149


def test_resampling_by_hand() -> None:
    """Two runs have the mean of both in half of the resamples, and one of them in a quarter."""
    values = np.array([[0.0, 5.0], [1.0, 5.0]])
    for confidence, ends in ((0.4, (0.5, 0.5)), (0.6, (0.0, 1.0))):
        generator = np.random.default_rng(2)
        low, high = resampled_interval(values, generator=generator, confidence=confidence)
        assert (low.tolist(), high.tolist()) == ([ends[0], 5.0], [ends[1], 5.0])
