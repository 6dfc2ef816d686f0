"""The linear program: its matrix, its refusals, and that no answer contradicts its policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import Action, LearningCost, QueueProblem
from covertfl.errors import Infeasible, InvalidInput, SolverFailed, SplitChain
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.occupation_lp import build_transition_matrix, solve_occupation_lp
from tests.support.literal_queue import LEARN, OBFUSCATE, LiteralQueue
from tests.support.paper_queues import (
    constant_cost_queue,
    reference_queue,
    sound_queue,
    tracking_queue,
)
from tests.support.strategies import find_limit_range, on_grid, queue_problems


@pytest.mark.slow
@given(queue_problems())
def test_the_matrix_is_the_literal_one(problem: QueueProblem) -> None:
    literal = LiteralQueue.of(problem)
    owed = np.array([y > 0 for _, _, y in literal.states])
    for action, number in ((Action.OBFUSCATE, OBFUSCATE), (Action.LEARN, LEARN)):
        rows = owed if action is Action.LEARN else np.ones_like(owed)
        matrix = build_transition_matrix(problem, action).toarray()
        np.testing.assert_allclose(matrix[rows], literal.moves[number][rows], atol=1e-15)
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0, rtol=1e-14)


@pytest.mark.parametrize(
    "problem",
    [
        reference_queue(capacity=100),
        constant_cost_queue(),
        tracking_queue(0.03, 10),
        tracking_queue(0.1, 4),
        replace(sound_queue(limit=20.0), capacity=120, overflow_cost=5.0),
        replace(reference_queue(), objective="learning", limit=0.5),
    ],
)
def test_published_queues_agree_with_the_exact_solution(problem: QueueProblem) -> None:
    exact, programme = solve_queue(problem), solve_occupation_lp(problem)
    assert programme.method == "lp"
    assert programme.multiplier == pytest.approx(exact.multiplier, rel=1e-6)
    assert programme.cost == pytest.approx(exact.cost, rel=1e-8)
    assert programme.lower_bound == pytest.approx(exact.cost, rel=1e-8)
    assert programme.evaluation.learning_cost == pytest.approx(
        exact.evaluation.learning_cost, rel=1e-8
    )


def test_the_mixture_is_that_of_the_exact_solution() -> None:
    mixing = solve_occupation_lp(reference_queue()).mixing
    assert mixing is not None
    assert mixing.learn_prob == pytest.approx(0.515, abs=5e-4)


def test_rows_written_with_ten_digits_do_not_spoil_the_balance() -> None:
    rows = np.array([[0.333333333] * 3, [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    oracle = Oracle(rows, np.array([0.1, 0.5, 0.9]))
    problem = replace(reference_queue(capacity=30, limit=1.5), oracle=oracle)
    assert solve_occupation_lp(problem).cost == pytest.approx(solve_queue(problem).cost, rel=1e-9)


# --- refusals -----------------------------------------------------------------------------------


def test_an_unreachable_limit_names_the_best_value() -> None:
    problem = replace(sound_queue(limit=5.0), capacity=120, overflow_cost=5.0)
    with pytest.raises(Infeasible, match="learning_limit = 5 cannot be met") as refusal:
        solve_occupation_lp(problem)
    with pytest.raises(Infeasible) as exact:
        solve_queue(problem)
    assert refusal.value.best == pytest.approx(exact.value.best, rel=1e-8)


def test_a_measure_that_mixes_closed_classes_is_no_answer() -> None:
    # Certain success: short queues stay short, a full one can be given up for good.  The cheapest
    # measure shares its rounds between the two, which no start state does.
    problem = QueueProblem(
        Oracle(np.array([[1.0]]), np.array([1.0])),
        np.array([1.0]),
        LearningCost("constant", 0.6, "always"),
        arrival_prob=0.3,
        arrival_size=1,
        limit=0.35,
        capacity=12,
        overflow_cost=0.0,
    )
    for solve in (solve_occupation_lp, solve_queue):
        with pytest.raises(SplitChain):
            solve(problem)


def test_an_automatic_capacity_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a numeric capacity is needed"):
        solve_occupation_lp(sound_queue())


# --- large costs --------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=40)
@given(queue_problems(max_capacity=15), on_grid(1, 19, 20), st.sampled_from((1e4, 1e6)))
def test_large_overflow_costs_agree_or_are_refused(
    problem: QueueProblem, share: float, overflow_cost: float
) -> None:
    problem = replace(problem, overflow_cost=overflow_cost)
    least, free = find_limit_range(problem)
    assume(free - least > 1e-3 * free)
    problem = problem.with_limit(least + share * (free - least))
    try:
        exact, programme = solve_queue(problem), solve_occupation_lp(problem)
    except (SolverFailed, SplitChain):
        assume(False)
    scale = max(exact.cost, exact.multiplier * problem.limit)
    assert abs(programme.cost - exact.cost) <= 1e-6 * scale + 1e-9


@pytest.mark.parametrize("overflow_cost", [1e2, 1e4, 1e6])
@pytest.mark.parametrize("capacity", [20, 40])
def test_the_reference_queue_with_dear_losses(overflow_cost: float, capacity: int) -> None:
    problem = replace(reference_queue(capacity=capacity), overflow_cost=overflow_cost)
    least, free = find_limit_range(problem)
    problem = problem.with_limit(1.2 * least)
    assert problem.limit < free
    exact = solve_queue(problem)
    try:
        programme = solve_occupation_lp(problem)
    except SolverFailed:
        return  # saying so is allowed, a wrong answer is not
    assert programme.cost == pytest.approx(exact.cost, rel=1e-6)


# --- honesty ------------------------------------------------------------------------------------


def test_an_optimum_that_its_own_multipliers_do_not_prove_is_refused() -> None:
    """Scaled by costs of 1e6, coefficients fall below what HiGHS keeps, and it solves another one.

    It ends 2% above the optimum and calls it optimal; the form without scaling finds the optimum.
    """
    transition = np.array([[0.0, 0.5, 0.5], [4 / 15, 7 / 15, 4 / 15], [0.1, 0.8, 0.1]])
    problem = QueueProblem(
        Oracle(transition, np.array([0.65, 0.75, 0.9])),
        np.array([0.9, 0.7, 1.5]),
        LearningCost("triangular", 1.0, by_state=[0.5, 0.8, 0.8]),
        limit=0.331,
        objective="learning",
        capacity=11,
        overflow_cost=1e6,
        full_cost=10.0,
        arrival_sizes={1: 0.2, 2: 0.05, 4: 0.1, 5: 0.2},
    )
    assert solve_occupation_lp(problem).cost == pytest.approx(solve_queue(problem).cost, rel=1e-9)


def test_the_errors_of_dear_columns_do_not_hide_a_proof() -> None:
    """Losses cost 3e10, and HiGHS errs in their reduced costs by hundreds; the limit is slack."""
    problem = QueueProblem(
        Oracle(np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0.3, 0.9])),
        np.array([1.0, 0.5]),
        LearningCost("linear", 0.5),
        arrival_prob=0.05,
        arrival_size=2,
        limit=3.0,
    ).with_capacity(64)
    assert solve_occupation_lp(problem).cost == pytest.approx(0.05 * 2 / 0.9 * 0.5, rel=1e-8)


@pytest.mark.slow
@settings(max_examples=60)
@given(queue_problems(max_states=2), on_grid(0, 20, 20), st.sampled_from((0.0, 1.0, 1e3, 1e6)))
def test_no_answer_contradicts_its_own_policy(
    problem: QueueProblem, share: float, overflow_cost: float
) -> None:
    problem = replace(problem, overflow_cost=overflow_cost)
    least, free = find_limit_range(problem)
    problem = problem.with_limit(least + share * (free - least))
    try:
        solution = solve_occupation_lp(problem)
    except (Infeasible, SolverFailed, SplitChain):
        assume(False)
    literal = LiteralQueue.of(problem).evaluate(solution.policy.table)
    assert solution.evaluation.privacy_cost == pytest.approx(
        literal.privacy_cost, rel=1e-8, abs=1e-9
    )
    assert solution.evaluation.learning_cost == pytest.approx(
        literal.learning_cost, rel=1e-8, abs=1e-9
    )
    minimised, limited = (
        (literal.privacy_cost, literal.learning_cost)
        if problem.objective == "privacy"
        else (literal.learning_cost, literal.privacy_cost)
    )
    # What HiGHS claims is what the policy does, up to the tolerance stated in the module.
    assert abs(solution.lower_bound - minimised) <= 2e-6 * max(minimised, 1.0)
    assert limited <= problem.limit + 2e-6 * max(problem.limit, 1.0)
