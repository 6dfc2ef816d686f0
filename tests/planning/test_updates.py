"""Updates needed for an accuracy (F1, F2) and the belief of proportional sampling (F3)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

import covertfl as cf
from covertfl.planning.updates import (
    bound_constant_step,
    bound_decreasing_step,
    bound_updates,
    updates_needed_constant_step,
    updates_needed_decreasing_step,
)

POSITIVE = st.floats(0.01, 3.0)


def test_unit_gap_and_noise() -> None:
    # The bound of F1 lies between 1464 and 1465: the printed 1464 is its whole part.
    assert bound_decreasing_step(1.0, 1.0, 0.25) == pytest.approx(1464.3774505552)
    assert updates_needed_decreasing_step(1.0, 1.0, 0.25) == 1465
    assert bound_constant_step(1.0, 1.0, 0.25) == 32.0
    assert updates_needed_constant_step(1.0, 1.0, 0.25) == 32


@given(POSITIVE, POSITIVE, st.floats(0.5, 3.0))
def test_smallest_number_that_satisfies_the_inequality(
    gap: float, noise: float, epsilon: float
) -> None:
    decreasing = updates_needed_decreasing_step(gap, noise, epsilon)
    goal = (gap + math.pi**2 * noise / 12.0) / epsilon
    assert math.log(decreasing + 1) >= goal - 1e-9
    assert math.log(max(decreasing, 1)) < goal + 1e-9
    constant = updates_needed_constant_step(gap, noise, epsilon)
    assert constant * epsilon**2 >= 2.0 * gap * noise * (1.0 - 1e-9)
    assert (constant - 1) * epsilon**2 < 2.0 * gap * noise * (1.0 + 1e-9)


def test_whole_bounds_are_not_rounded_up_by_a_rounding_error() -> None:
    # D = eps = k/100 and L s^2 = m/100 give 2 m / k in exact arithmetic.
    for k in range(1, 101):
        for m in range(1, 101):
            needed = updates_needed_constant_step(k / 100, m / 100, k / 100)
            assert needed == -(-2 * m // k), (k, m)


@given(POSITIVE, POSITIVE, st.floats(0.5, 1.5))
def test_step_rule_meets_the_goal(gap: float, noise: float, epsilon: float) -> None:
    # What the bounds are for: (2 D + L s^2 sum mu^2) / (2 sum mu) <= epsilon.
    m = updates_needed_decreasing_step(gap, noise, epsilon)
    if 1 <= m <= 20_000:
        first = sum(1.0 / i for i in range(1, m + 1))
        second = sum(1.0 / i**2 for i in range(1, m + 1))
        assert (2.0 * gap + noise * second) / (2.0 * first) <= epsilon + 1e-9
    m = updates_needed_constant_step(gap, noise, epsilon)
    step = math.sqrt(2.0 * gap / (noise * m))
    assert (2.0 * gap + noise * m * step**2) / (2.0 * m * step) <= epsilon + 1e-9


def test_nothing_to_do_needs_no_update() -> None:
    assert updates_needed_decreasing_step(0.0, 0.0, 0.5) == 0
    assert updates_needed_constant_step(0.0, 1.0, 0.5) == 0


def test_both_bounds_and_none_where_there_is_no_number() -> None:
    assert bound_updates(1.0, 1.0, 0.25) == (bound_decreasing_step(1.0, 1.0, 0.25), 32.0)
    assert bound_updates(1.0, 1.0, 1e-100) == (None, bound_constant_step(1.0, 1.0, 1e-100))
    assert bound_updates(1.0, 1.0, 1e-200) == (None, None)


def test_out_of_reach() -> None:
    with pytest.raises(cf.NoSolution, match=r"epsilon = 0.001 needs e\^1822 updates"):
        updates_needed_decreasing_step(1.0, 1.0, 0.001)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0, 0.5), "gap must be a finite number of at least 0, got -1"),
        ((1.0, math.nan, 0.5), "smoothness_noise must be a finite number"),
        ((1.0, 1.0, 0.0), "epsilon must be a finite number above 0, got 0"),
        ((1.0, 1.0, math.inf), "epsilon must be a finite number above 0, got inf"),
    ],
)
def test_refusals(arguments: tuple[float, float, float], message: str) -> None:
    for function in (updates_needed_decreasing_step, updates_needed_constant_step):
        with pytest.raises(cf.InvalidInput, match=message):
            function(*arguments)
