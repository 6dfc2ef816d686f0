"""Checks of a solution of the constrained problem (9) that share no code with the solver.

Two solvers can agree only so far: HiGHS keeps every balance of the programme to 1e-10, and an error
in a balance costs its dual value, which is of the order of the largest cost of a round.  So "within
1e-8" is relative to the optimum or to multiplier * limit, the other part of the Lagrangian,
whichever is larger, and 1e-10 of the largest cost is allowed on top.
"""

from __future__ import annotations

import pytest

from covertfl.decision.problem import QueueProblem
from covertfl.evaluation.queue import QueueEvaluation
from covertfl.solvers.constrained import QueueSolution
from tests.support.literal_queue import LiteralEvaluation, LiteralQueue


def limited_cost(problem: QueueProblem, evaluation: QueueEvaluation | LiteralEvaluation) -> float:
    """Return the average that the limit is on."""
    if problem.objective == "privacy":
        return evaluation.learning_cost
    return evaluation.privacy_cost


def minimised_cost(problem: QueueProblem, evaluation: QueueEvaluation | LiteralEvaluation) -> float:
    """Return the average that is minimised."""
    if problem.objective == "privacy":
        return evaluation.privacy_cost
    return evaluation.learning_cost


def tolerance(solution: QueueSolution) -> float:
    """Return how far two correct costs may differ."""
    literal = LiteralQueue.of(solution.problem)
    largest_cost = float(max(literal.privacy.max(), literal.learning.max()))
    scale = max(solution.cost, solution.multiplier * solution.problem.limit)
    return 1e-8 * scale + 1e-10 * largest_cost


def check_independently(solution: QueueSolution) -> None:
    """Evaluate the policy again, and prove by weak duality that none within the limit is better."""
    problem, literal = solution.problem, LiteralQueue.of(solution.problem)
    evaluation = literal.evaluate(solution.policy.table)
    assert minimised_cost(problem, evaluation) == pytest.approx(solution.cost, rel=1e-9, abs=1e-13)
    assert limited_cost(problem, evaluation) <= problem.limit * (1.0 + 1e-9) + 1e-13
    multiplier = solution.multiplier
    weights = (1.0, multiplier) if problem.objective == "privacy" else (multiplier, 1.0)
    bound = literal.bound_below(solution.policy.table, weights) - multiplier * problem.limit
    assert solution.cost - bound <= tolerance(solution)
