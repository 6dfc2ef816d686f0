"""Formulas F6, F7 and F8 against the linear programs they solve, and the printed numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.evaluation.bounds import (
    is_always_stable,
    least_exposure,
    privacy_cost_bound,
    service_capacity,
)
from tests.support.strategies import on_grid, oracles


@st.composite
def stable_queues(draw: st.DrawFn) -> QueueProblem:
    """A queue whose load is below what can be done."""
    oracle = draw(oracles(max_states=5))
    W = oracle.num_states
    service = float(compute_stationary_distribution(oracle) @ oracle.success)
    assume(service > 0.0)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
    prob = min(draw(on_grid(1, 19, 20)) * service / sum(sizes), 1.0 / len(sizes))
    privacy = np.array(draw(st.lists(on_grid(0, 20, 10), min_size=W, max_size=W)))
    cost = LearningCost("linear", 0.6, "always")
    by_size = dict.fromkeys(sizes, prob)
    return QueueProblem(oracle, privacy, cost, limit=1.0, arrival_sizes=by_size)


def minimise(price: FloatArray, problem: QueueProblem) -> float:
    """min price b with g b >= load and 0 <= b <= pi, by HiGHS."""
    from scipy.optimize import linprog

    distribution = compute_stationary_distribution(problem.oracle)
    outcome = linprog(
        price,
        A_ub=-problem.oracle.success[None, :],
        b_ub=[-problem.load],
        bounds=list(zip(np.zeros_like(distribution), distribution, strict=True)),
        method="highs",
    )
    assert outcome.status == 0
    return float(outcome.fun)


@pytest.mark.slow
@given(stable_queues())
@settings(max_examples=100)
def test_least_exposure_and_privacy_bound_are_the_linear_programmes(problem: QueueProblem) -> None:
    exposure = minimise(np.ones(problem.oracle.num_states), problem)
    assert least_exposure(problem) == pytest.approx(exposure, rel=1e-7, abs=1e-9)
    privacy = minimise(np.asarray(problem.privacy_cost), problem)
    assert privacy_cost_bound(problem) == pytest.approx(privacy, rel=1e-7, abs=1e-9)


def forgone_by_programme(problem: QueueProblem, least_cost: FloatArray) -> float:
    """max g a with l a <= limit and 0 <= a <= pi, by HiGHS."""
    from scipy.optimize import linprog

    distribution = compute_stationary_distribution(problem.oracle)
    outcome = linprog(
        -problem.oracle.success,
        A_ub=least_cost[None, :],
        b_ub=[problem.limit],
        bounds=list(zip(np.zeros_like(distribution), distribution, strict=True)),
        method="highs",
    )
    assert outcome.status == 0
    return -float(outcome.fun)


@pytest.mark.slow
@given(stable_queues(), st.sampled_from((0.0, 0.01, 0.05, 0.2, 1.0)), st.data())
@settings(max_examples=100)
def test_always_stable_is_the_linear_programme(
    problem: QueueProblem, limit: float, data: st.DataObject
) -> None:
    values = data.draw(st.lists(on_grid(0, 20, 10), min_size=4, max_size=4))
    W = problem.oracle.num_states
    factors = data.draw(st.lists(on_grid(0, 20, 10), min_size=W, max_size=W))
    table = (0.0, *values)
    cost = LearningCost("table", charged="when-obfuscating", values=table, by_state=factors)
    fixed = replace(problem, learning_cost=cost, capacity=4, overflow_cost=0.0, limit=limit)
    margin = (
        service_capacity(fixed)
        - forgone_by_programme(fixed, min(values) * np.array(factors))
        - fixed.load
    )
    assume(abs(margin) > 1e-6)
    assert is_always_stable(fixed) is (margin > 0.0)


def test_every_policy_is_stable_where_obfuscating_is_too_dear() -> None:
    """One state, g = 1/2, load 0.3: a share of 0.4 may obfuscate, the rest does 0.3 or more."""
    oracle = Oracle(np.ones((1, 1)), np.array([0.5]))
    cost = LearningCost("constant", 1.0, "when-obfuscating")
    problem = QueueProblem(oracle, np.ones(1), cost, 0.3, 1, limit=0.39)
    assert is_always_stable(problem) is True
    assert is_always_stable(problem.with_limit(0.41)) is False
    assert is_always_stable(problem.with_limit(0.0)) is True
    free = replace(problem, learning_cost=LearningCost("constant", 0.0, "when-obfuscating"))
    assert is_always_stable(free) is False


def test_every_policy_is_stable_where_only_cheap_states_can_be_forgone() -> None:
    """Two states, each half of the time, g = 1/2, load 0.3: at most 0.2 may be forgone.

    The first state costs 1 and the second 4: a limit of 0.39 forgoes 0.195 in the first alone.
    """
    oracle = Oracle(np.full((2, 2), 0.5), np.array([0.5, 0.5]))
    cost = LearningCost("constant", 1.0, "when-obfuscating", by_state=[1.0, 4.0])
    problem = QueueProblem(oracle, np.ones(2), cost, 0.3, 1, limit=0.39)
    assert is_always_stable(problem) is True
    assert is_always_stable(problem.with_limit(0.41)) is False
    free = replace(problem, learning_cost=replace(cost, by_state=(0.0, 4.0)))
    assert is_always_stable(free) is False  # 0.25 is forgone in the first state for nothing


def test_where_f7_does_not_apply() -> None:
    problem = queue_preset("sound/queue")
    assert is_always_stable(problem) is None
    charged = replace(problem, learning_cost=LearningCost("linear", 0.6, "when-obfuscating"))
    assert is_always_stable(charged) is not None
    mirrored: Any = replace(charged, objective="learning")
    assert is_always_stable(mirrored) is None


def queue_preset(name: str) -> QueueProblem:
    problem = read_preset(name).problem
    assert isinstance(problem, QueueProblem)
    return problem


@pytest.mark.parametrize("reading", ["sound", "paper-text", "paper-code"])
def test_printed_numbers_of_the_queue_presets(reading: str) -> None:
    problem = queue_preset(f"{reading}/queue")
    assert problem.load == pytest.approx(0.4, abs=1e-12)
    assert service_capacity(problem) == pytest.approx(0.437, abs=5e-4)
    assert least_exposure(problem) == pytest.approx(0.629, abs=5e-4)


def test_by_hand() -> None:
    """pi = (3, 2, 2) / 7: the two better states give 0.394, the worst the rest of 0.4."""
    problem = queue_preset("sound/queue")
    from_better = 2 / 7 * (0.43 + 0.95)
    worst = (0.4 - from_better) / 0.1
    assert least_exposure(problem) == pytest.approx(4 / 7 + worst, abs=1e-12)
    privacy = 2 / 7 * (0.8 + 0.3) + 1.8 * worst
    assert privacy_cost_bound(problem) == pytest.approx(privacy, abs=1e-12)
