"""The multiplier of a limit: ends of its range, the mixture of Theorem 3, and the frontier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.errors import SolverFailed, SplitChain
from covertfl.evaluation.queue import QueueEvaluation, evaluate_queue_policy
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.multiplier import Mixing
from tests.support.literal_queue import LiteralQueue
from tests.support.paper_queues import (
    constant_cost_queue,
    reference_queue,
    sound_queue,
    tracking_queue,
)
from tests.support.solution_checks import limited_cost
from tests.support.strategies import find_limit_range, on_grid, place_limit, queue_problems

SHARES = on_grid(1, 19, 20)


# --- limits at the end of their range -----------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(queue_problems(), st.sampled_from((1.0 - 1e-12, 1.0, 1.0 + 1e-9, 1.0 + 1e-6, 1.001)))
def test_limits_at_the_least_reachable_value(problem: QueueProblem, factor: float) -> None:
    least, free = find_limit_range(problem)
    assume(least > 1e-6 and free > 1.01 * least)
    try:
        solution = solve_queue(problem.with_limit(factor * least))
    except SplitChain:
        assume(False)
    evaluation = LiteralQueue.of(problem).evaluate(solution.policy.table)
    assert limited_cost(problem, evaluation) <= factor * least * (1.0 + 1e-9)


@settings(max_examples=60)
@given(queue_problems(), st.sampled_from((1.0, 1.0 + 1e-9, 1.5)))
def test_limits_that_do_not_bind_have_no_price(problem: QueueProblem, factor: float) -> None:
    _, free = find_limit_range(problem)
    solution = solve_queue(problem.with_limit(factor * free))
    assert solution.multiplier == 0.0
    assert solution.mixing is None
    assert set(np.unique(solution.policy.table)) <= {0.0, 1.0}


# --- Theorem 3 ----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(queue_problems(), SHARES)
def test_the_optimum_randomises_in_at_most_one_state(problem: QueueProblem, share: float) -> None:
    try:
        solution = solve_queue(place_limit(problem, share))
    except (SplitChain, SolverFailed):
        assume(False)
    table = solution.policy.table
    mixed = [tuple(int(i) for i in place) for place in np.argwhere((table > 0.0) & (table < 1.0))]
    if solution.mixing is None:
        assert mixed == []
        return
    place = (solution.mixing.oracle, solution.mixing.arrival, solution.mixing.backlog)
    assert mixed in ([], [place])
    assert table[place] == solution.mixing.learn_prob


def take_apart(solution: QueueSolution, mixing: Mixing) -> list[QueueEvaluation]:
    """The two policies that differ in the one state: the one that learns there, the other."""
    evaluations = []
    for prob in (1.0, 0.0):
        table = np.array(solution.policy.table)
        table[mixing.oracle, mixing.arrival, mixing.backlog] = prob
        evaluations.append(evaluate_queue_policy(solution.problem, QueueTable(table)))
    return evaluations


@pytest.mark.parametrize(
    ("problem", "printed", "exact"),
    [
        (reference_queue(), 0.579, 0.515),
        (constant_cost_queue(), None, None),
        (tracking_queue(0.03, 10), None, None),
        (tracking_queue(0.1, 4), None, None),
        (sound_queue(arrival_prob=0.05, limit=3.0), None, None),
    ],
)
def test_the_printed_weight_misses_the_limit_and_ours_meets_it(
    problem: QueueProblem, printed: float | None, exact: float | None
) -> None:
    solution = solve_queue(problem)
    mixing = solution.mixing
    assert mixing is not None
    learning, other = take_apart(solution, mixing)
    # Both are optimal at the critical multiplier, on either side of the limit.
    assert learning.learning_cost < problem.limit < other.learning_cost
    price = solution.multiplier
    assert learning.privacy_cost + price * learning.learning_cost == pytest.approx(
        other.privacy_cost + price * other.learning_cost, rel=1e-9
    )
    # Equation (12) and its correction with the stationary masses (deviation D8).
    alpha = (problem.limit - other.learning_cost) / (learning.learning_cost - other.learning_cost)
    place = (mixing.oracle, mixing.arrival, mixing.backlog)
    m1, m2 = learning.mass[place], other.mass[place]
    p = alpha * m1 / (alpha * m1 + (1.0 - alpha) * m2)
    assert mixing.learn_prob == pytest.approx(p, rel=1e-8)
    if printed is not None:
        assert alpha == pytest.approx(printed, abs=5e-4)
        assert p == pytest.approx(exact, abs=5e-4)
    as_printed = np.array(solution.policy.table)
    as_printed[place] = alpha
    missed = evaluate_queue_policy(solution.problem, QueueTable(as_printed)).learning_cost
    assert abs(missed - problem.limit) > 1e-4 * problem.limit
    assert solution.evaluation.learning_cost == pytest.approx(problem.limit, rel=1e-9)


# --- the frontier -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [reference_queue(), tracking_queue(0.1, 4)])
def test_the_optimal_cost_is_convex_and_falls_with_the_limit(base: QueueProblem) -> None:
    least, free = find_limit_range(base)
    limits = least + (free - least) * np.linspace(0.002, 1.0, 30) ** 2
    solutions = [solve_queue(base.with_limit(float(limit))) for limit in limits]
    costs = np.array([solution.cost for solution in solutions])
    prices = np.array([solution.multiplier for solution in solutions])
    slopes = np.diff(costs) / np.diff(limits)
    assert np.all(slopes <= 1e-12)
    assert np.all(np.diff(slopes) >= -1e-9 * np.abs(slopes[:-1]))
    # The multiplier is the price of the limit: it lies between the slopes on either side.
    assert np.all(prices[:-1] >= -slopes * (1.0 - 1e-9))
    assert np.all(prices[1:] <= -slopes * (1.0 + 1e-9))


def mirror(solution: QueueSolution) -> QueueProblem:
    """The problem that limits what was minimised to what it came to, and minimises the other."""
    objective = "learning" if solution.problem.objective == "privacy" else "privacy"
    return replace(solution.problem, objective=objective, limit=solution.cost)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "problem",
    [
        reference_queue(),
        constant_cost_queue(),
        tracking_queue(0.03, 10),
        sound_queue(limit=25.0),
        sound_queue(arrival_prob=0.05, limit=3.0),
    ],
)
def test_the_mirrored_problem_gives_back_the_limit(problem: QueueProblem) -> None:
    solution = solve_queue(problem)
    back = solve_queue(mirror(solution))
    assert back.cost == pytest.approx(problem.limit, rel=1e-7)
    assert back.evaluation.privacy_cost == pytest.approx(solution.cost, rel=1e-9)
    assert back.multiplier == pytest.approx(1.0 / solution.multiplier, rel=1e-6)


def test_the_mirrored_problem_with_an_automatic_capacity() -> None:
    problem = sound_queue(arrival_prob=0.05, limit=3.0)
    solution = solve_queue(problem)
    back = solve_queue(replace(problem, objective="learning", limit=solution.cost))
    assert back.cost == pytest.approx(3.0, rel=1e-7)


@pytest.mark.slow
@settings(max_examples=60)
@given(queue_problems(), SHARES)
def test_mirrored_random_problems(problem: QueueProblem, share: float) -> None:
    try:
        problem = place_limit(problem, share)
        solution = solve_queue(problem)
        # Prices far from 1 turn rounding of one cost into errors of the other.
        assume(1e-4 < solution.multiplier < 1e4 and solution.cost > 1e-3 and problem.limit > 1e-3)
        back = solve_queue(mirror(solution))
    except (SplitChain, SolverFailed):
        assume(False)
    assert back.cost == pytest.approx(problem.limit, rel=1e-7)
