"""Theorem 3: the optimum of the constrained problem (9) randomises in at most one state.

Mixing the two neighbouring policies with the printed weight alpha misses the limit; the corrected
probability p meets it (D8 of docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import GreedyPolicy, QueueTable
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.errors import CovertflError
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.experiments.theory_structure import sample_dominated_rows
from covertfl.solvers.constrained import QueueSolution, solve_queue

QUEUES, QUICK_QUEUES = 300, 40
SEED = 3


def make_reference() -> QueueProblem:
    """Return the reference queue (D17 of docs/deviations.md)."""
    base = read_preset("sound/queue").problem
    assert isinstance(base, QueueProblem)
    return replace(
        base,
        learning_cost=LearningCost("linear", 0.6, "when-obfuscating"),
        capacity=40,
        overflow_cost=0.0,
        limit=1.0,
    )


def sample_queue(*, generator: np.random.Generator) -> QueueProblem:
    """Sample a queue with a buffer and a load below its capacity."""
    states = int(generator.integers(2, 5))
    oracle = Oracle(
        sample_dominated_rows(states, generator=generator),
        np.sort(generator.uniform(0.05, 1, states)),
    )
    size = int(generator.integers(1, 6))
    served = float(compute_stationary_distribution(oracle) @ oracle.success)
    problem = QueueProblem(
        oracle=oracle,
        privacy_cost=np.sort(generator.exponential(size=states) + 0.05)[::-1],
        learning_cost=LearningCost("linear", 1.0, "always"),
        arrival_prob=min(0.9, float(generator.uniform(0.3, 0.9)) * served / size),
        arrival_size=size,
        limit=1.0,
        capacity=30,
        overflow_cost=30.0,
    )
    greedy = evaluate_queue_policy(problem, GreedyPolicy()).learning_cost
    return problem.with_limit(greedy * float(generator.uniform(1.2, 3.0)))


def compare_mixing(solution: QueueSolution) -> dict[str, float] | None:
    """Compare mixtures by alpha and by p of an optimum's two policies, None if it mixes none."""
    mixing, problem = solution.mixing, solution.problem
    if mixing is None:
        return None
    place = (mixing.oracle, mixing.arrival, mixing.backlog)
    costs = {}
    for prob in (0.0, 1.0):
        table = np.array(solution.policy.table)
        table[place] = prob
        costs[prob] = evaluate_queue_policy(problem, QueueTable(table)).learning_cost
    # The policy that learns more has the smaller learning cost: alpha is its weight.
    alpha = (problem.limit - costs[0.0]) / (costs[1.0] - costs[0.0])
    table = np.array(solution.policy.table)
    table[place] = alpha
    printed = evaluate_queue_policy(problem, QueueTable(table)).learning_cost
    exact = solution.evaluation.learning_cost
    return {
        "alpha": float(alpha),
        "p": mixing.learn_prob,
        "printed_miss": printed / problem.limit - 1.0,
        "corrected_miss": exact / problem.limit - 1.0,
    }


def examine_mixtures(queues: int) -> Mapping[str, Any]:
    """Examine the reference queue and random ones (Theorem 3)."""
    reference = compare_mixing(solve_queue(make_reference()))
    generator = np.random.default_rng(SEED)
    compared, states, solved = [], [], 0
    while solved < queues:
        try:
            solution = solve_queue(sample_queue(generator=generator))
            found = compare_mixing(solution)
        except CovertflError:  # an infeasible limit, or no common average
            continue
        solved += 1
        table = solution.policy.table
        visited = solution.evaluation.mass > 1e-9
        states.append(int(np.count_nonzero((table > 0.0) & (table < 1.0) & visited)))
        if found is not None:
            compared.append(found)
    printed = np.array([entry["printed_miss"] for entry in compared])
    corrected = np.array([entry["corrected_miss"] for entry in compared])
    return {
        "reference": reference,
        "queues": queues,
        "mixing": len(compared),
        "most_states_mixed": max(states),
        "printed_over_limit": int(np.count_nonzero(printed > 1e-6)),
        "printed_largest_miss": float(f"{np.abs(printed).max():.4g}"),
        "corrected_largest_miss": float(f"{np.abs(corrected).max():.2g}"),
    }
