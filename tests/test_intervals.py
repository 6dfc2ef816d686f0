"""Intervals against published values, the equations that define them, and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq

import covertfl as cf
from covertfl.intervals import t_interval, wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_matches_the_worked_cases_of_newcombe_1998(
    successes: int, trials: int, low: float, high: float
) -> None:
    np.testing.assert_allclose(wilson_interval(successes, trials), [low, high], atol=5e-5)


@settings(deadline=None)
@given(
    trials=st.integers(1, 5000),
    share=st.floats(0.0, 1.0),
    confidence=st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_wilson_ends_solve_the_score_equation(trials: int, share: float, confidence: float) -> None:
    successes = round(share * trials)
    observed = successes / trials
    low, high = (float(end) for end in wilson_interval(successes, trials, confidence=confidence))

    def rejection(p: float) -> float:
        # Two-sided p-value of the score test, less the level: 0 at the ends of the interval.
        z = abs(observed - p) / math.sqrt(p * (1.0 - p) / trials)
        return math.erfc(z / math.sqrt(2.0)) - (1.0 - confidence)

    if successes == 0:
        assert low == 0.0
    else:
        assert low == pytest.approx(
            brentq(rejection, 1e-14, observed - 1e-14, xtol=1e-15), abs=1e-9
        )
    if successes == trials:
        assert high == 1.0
    else:
        assert high == pytest.approx(
            brentq(rejection, observed + 1e-14, 1.0 - 1e-14, xtol=1e-15), abs=1e-9
        )


def test_wilson_is_elementwise_and_broadcasts() -> None:
    low, high = wilson_interval([[1, 2], [3, 4]], [[5], [8]])
    assert low.shape == high.shape == (2, 2)
    for row, trials in enumerate((5, 8)):
        for column in range(2):
            alone = wilson_interval([[1, 2], [3, 4]][row][column], trials)
            assert (low[row, column], high[row, column]) == alone


def test_wilson_is_symmetric_and_narrows() -> None:
    low, high = wilson_interval([3, 7], 10)
    assert low[1] == pytest.approx(1.0 - high[0])
    assert high[1] == pytest.approx(1.0 - low[0])
    low, high = wilson_interval([3, 300], [10, 1000])
    assert low[0] < low[1] < 0.3 < high[1] < high[0]


def test_wilson_without_trials_says_nothing() -> None:
    np.testing.assert_array_equal(wilson_interval(0, 0), [0.0, 1.0])


def test_wilson_is_exact_at_the_ends() -> None:
    trials = np.arange(1, 2000)
    assert np.all(wilson_interval(0, trials)[0] == 0.0)
    assert np.all(wilson_interval(trials, trials)[1] == 1.0)


@pytest.mark.parametrize(
    ("successes", "trials", "said"),
    [(3, 2, "3 of 2"), (-1, 2, "-1 of 2"), (math.nan, 2, "nan of 2"), ([0, 9], [5, 8], "9 of 8")],
)
def test_wilson_refuses_impossible_counts(successes: float, trials: float, said: str) -> None:
    with pytest.raises(cf.InvalidInput, match=said):
        wilson_interval(successes, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5, math.nan])
def test_confidence_must_lie_between_0_and_1(confidence: float) -> None:
    with pytest.raises(cf.InvalidInput, match="confidence"):
        wilson_interval(1, 2, confidence=confidence)
    with pytest.raises(cf.InvalidInput, match="confidence"):
        t_interval([1.0, 2.0], confidence=confidence)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_t_matches_closed_forms_at_one_and_two_degrees_of_freedom(confidence: float) -> None:
    # One degree of freedom is the Cauchy law, two have an algebraic quantile.
    half = math.tan(math.pi * confidence / 2.0) * 1.5
    interval = t_interval([1.0, 4.0], confidence=confidence)
    np.testing.assert_allclose(interval, [2.5, 2.5 - half, 2.5 + half])
    half = confidence * math.sqrt(2.0 / (1.0 - confidence**2)) * math.sqrt(7.0 / 3.0)
    interval = t_interval([1.0, 2.0, 6.0], confidence=confidence)
    np.testing.assert_allclose(interval, [3.0, 3.0 - half, 3.0 + half])


def test_t_of_equal_values_is_a_point() -> None:
    assert t_interval([0.5] * 4) == (0.5, 0.5, 0.5)


def test_t_covers_the_mean_as_often_as_it_says() -> None:
    generator = np.random.default_rng(3)
    intervals = [t_interval(sample) for sample in generator.normal(7.0, 2.0, size=(1000, 4))]
    covered = sum(low <= 7.0 <= high for _, low, high in intervals)
    assert 920 <= covered <= 978  # four standard deviations around 950


@pytest.mark.parametrize(
    ("values", "said"),
    [([1.0], "at least 2 numbers, got 1"), ([], "got 0"), ([1.0, math.inf], "finite")],
)
def test_t_refuses_what_has_no_interval(values: list[float], said: str) -> None:
    with pytest.raises(cf.InvalidInput, match=said):
        t_interval(values)
