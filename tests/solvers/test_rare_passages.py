"""Queues with two optimal ways to run that rarely meet: solved where an average settles at all.

One way keeps the queue short, the other leaves it full, and the limit lies between them.  The
problems are 8 of the 17 among 44,100 random ones for which a path through policies that act well in
one of the ways only finds no mixture that settles, although the linear program does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import SplitChain
from covertfl.evaluation.queue import SLOWEST_SETTLING
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.occupation_lp import solve_occupation_lp
from tests.support.solution_checks import check_independently, tolerance


def make_queue(
    rows: list[list[float]],
    success: list[float],
    privacy: list[float],
    cost: LearningCost,
    capacity: int,
    limit: float,
    **others: Any,
) -> QueueProblem:
    """A queue whose oracle moves in proportion to the rows; an update arrives in 1 of 20 rounds."""
    weights = np.array(rows, dtype=float)
    oracle = Oracle(weights / weights.sum(axis=1, keepdims=True), np.array(success))
    return QueueProblem(
        oracle,
        np.array(privacy),
        cost,
        **{"arrival_prob": 0.05, "arrival_size": 1, "overflow_cost": 0.0, **others},
        capacity=capacity,
        limit=limit,
    )


def constant(scale: float) -> LearningCost:
    return LearningCost("constant", scale, "always")


SOLVED = {
    "one state": make_queue(
        [[1]], [0.25], [0.1], LearningCost("constant", 0.1, "when-obfuscating"), 9, 0.005
    ),
    "quadratic cost": make_queue(
        [[5, 1], [1, 3]],
        [0.4, 1.0],
        [0.8, 2.0],
        LearningCost("quadratic", 0.1, "always"),
        24,
        3.2274958864449412,
        arrival_prob=0.4,
    ),
    "a state without success": make_queue(
        [[4, 9, 3], [4, 2, 1], [7, 2, 1]],
        [0.0, 0.1, 0.6],
        [0.0, 0.2, 1.2],
        constant(0.6),
        16,
        0.23923655462084645,
    ),
    "two sizes": make_queue(
        [[1]],
        [1.0],
        [0.3],
        LearningCost("linear", 0.6, "always", by_state=(2.0,)),
        25,
        5.587998916590395,
        arrival_prob=None,
        arrival_size=None,
        arrival_sizes={2: 0.1, 4: 0.05},
    ),
    "an oracle that alternates": make_queue(
        [[0, 1], [1, 1]], [0.0, 0.25], [0.0, 0.5], constant(1.0), 13, 0.3293162352168221
    ),
    "lost updates cost": make_queue(
        [[3, 2, 2], [2, 3, 2], [3, 3, 1]],
        [0.1, 0.65, 0.45],
        [0.9, 0.2, 1.8],
        constant(0.6),
        11,
        0.13492195148217212,
        overflow_cost=1.0,
    ),
    # Whether to learn with a backlog of 7 as two updates arrive makes no difference to the costs,
    # but without it the queue fills up five times as often.
    "a tie that decides how often": make_queue(
        [[1]],
        [0.95],
        [1.4],
        LearningCost("triangular", 0.1, "always"),
        9,
        0.0884210415757009,
        objective="learning",
        arrival_prob=0.1,
        arrival_size=2,
        overflow_cost=1.0,
    ),
    # The limit is what one of the policies costs: rounding decides which side of it that is on.
    "a limit at a corner": make_queue(
        [[2, 1], [1, 3]],
        [0.8, 0.6],
        [1.6, 1.2],
        LearningCost(
            "table",
            charged="always",
            values=(2.4, 2.6, 3.8, 4.8, 0.1, 0.7, 4.1, 4.8, 1.2, 1.5, 4.4, 2.1, 1.3),
        ),
        12,
        0.36858345021037864,
        objective="learning",
        arrival_prob=None,
        arrival_size=None,
        arrival_sizes={5: 0.25, 1: 0.05},
        full_cost=1.0,
    ),
}


@pytest.mark.parametrize("name", SOLVED)
def test_a_mixture_that_settles_is_found(name: str) -> None:
    problem = SOLVED[name]
    solution, programme = solve_queue(problem), solve_occupation_lp(problem)
    assert abs(solution.cost - programme.cost) <= tolerance(solution)
    assert abs(solution.cost - programme.lower_bound) <= tolerance(solution)
    assert solution.constrained_cost == pytest.approx(problem.limit, rel=1e-9)
    assert solution.evaluation.settling_rounds <= SLOWEST_SETTLING
    check_independently(solution)


@pytest.mark.parametrize("capacity", [12, 15, 20])
def test_a_mixture_that_does_not_settle_names_the_two_ways(capacity: int) -> None:
    problem = make_queue(
        [[1]], [0.25], [0.1], LearningCost("constant", 0.1, "when-obfuscating"), capacity, 0.005
    )
    with pytest.raises(SplitChain) as refusal:
        solve_queue(problem)
    over, within = str(refusal.value).split("one of them ")[1].split(" and is over the limit, ")
    assert over == f"keeps the backlog at {capacity}..{capacity} (privacy 0, learning 0.1)"
    assert within.startswith("the other keeps the backlog at 0..")
    assert "(privacy 0.02, learning " in within
    assert within.endswith("a start in either has its averages, not those of a mixture")


@pytest.mark.parametrize("capacity", [3, 4])
def test_the_smallest_queue_that_is_refused(capacity: int) -> None:
    """The example of deviation D8; with capacity 4 two ways are better than any between them."""
    cost = LearningCost("linear", 1.0, "when-obfuscating")
    problem = make_queue([[1]], [1.0], [1.0], cost, capacity, 0.5, arrival_prob=0.5)
    if capacity == 3:
        assert solve_queue(problem).cost == pytest.approx(5 / 12, rel=1e-12)
        return
    for solve in (solve_queue, solve_occupation_lp):
        with pytest.raises(SplitChain) as refusal:
            solve(problem)
        assert "4..4 (privacy 0, learning 4)" in str(refusal.value)
        assert "0..1 (privacy 0.5, learning 0)" in str(refusal.value)
