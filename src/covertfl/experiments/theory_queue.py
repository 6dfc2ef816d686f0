"""Theorem 3's mixture and Lemma 1's stability, exactly and by simulation.

Theorem 3: the optimum of (9) randomises in at most one state.  Mixing the two policies beside it
with the printed weight alpha misses the limit; the corrected chance p meets it (D8).

Lemma 1: as printed its condition fails on the paper's own queue, which can nevertheless be kept
stable.  F6 says which loads can be, F7 when every policy within the limit is (D9).  Queues on each
side of both lines are simulated.
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
from covertfl.evaluation.bounds import is_always_stable, least_exposure, service_capacity
from covertfl.evaluation.queue import evaluate_queue_policy, simulate_queue_policy
from covertfl.experiments.theory_structure import draw_dominated_rows
from covertfl.experiments.trials.averages import average
from covertfl.solvers.constrained import QueueSolution, solve_queue

QUEUES, QUICK_QUEUES = 300, 40
SEED = 3
# Queues on each side of the line, as shares of what can be served.
LOADS = (0.8, 0.9, 1.1, 1.2)
HUGE = 100_000  # a buffer that the simulation does not fill
ROUNDS, RUNS = 4000, 300
# F7's line: constant cost of obfuscating, and limits as shares of what F7 allows.
COST = 0.6
LIMIT_SHARES = (0.5, 0.9, 1.1, 2.0)
LOAD_BELOW = 0.5  # of the capacity, for F7


# --- Theorem 3 ----------------------------------------------------------------------------------


def make_reference() -> QueueProblem:
    """The reference queue (D17)."""
    base = read_preset("sound/queue").problem
    assert isinstance(base, QueueProblem)
    return replace(
        base,
        learning_cost=LearningCost("linear", 0.6, "when-obfuscating"),
        capacity=40,
        overflow_cost=0.0,
        limit=1.0,
    )


def draw_queue(*, generator: np.random.Generator) -> QueueProblem:
    """A random queue with a buffer and a load that can be served."""
    states = int(generator.integers(2, 5))
    oracle = Oracle(
        draw_dominated_rows(states, generator=generator),
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
    """The two policies beside an optimum, mixed by alpha and by p; None where nothing is mixed."""
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
    """The reference queue, and random ones."""
    reference = compare_mixing(solve_queue(make_reference()))
    generator = np.random.default_rng(SEED)
    compared, states, solved = [], [], 0
    while solved < queues:
        try:
            solution = solve_queue(draw_queue(generator=generator))
            found = compare_mixing(solution)
        except CovertflError:  # a limit below what can be reached, or no common average
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


# --- Lemma 1 ------------------------------------------------------------------------------------


def examine_printed_lemma() -> dict[str, Any]:
    """The printed condition on the paper's own queue, and what F6 says of it."""
    problem = read_preset("paper-text/queue").problem
    assert isinstance(problem, QueueProblem)
    least = float(problem.oracle.success.min())
    return {
        "left": round(problem.load / least, 4),
        "right": round(1.0 - problem.limit / problem.learning_cost.scale, 4),
        "load": round(problem.load, 4),
        "capacity": round(service_capacity(problem), 4),
        "least_exposure": round(least_exposure(problem), 4),
    }


def simulate_loads() -> list[dict[str, Any]]:
    """Always learning with loads on each side of F6's line: how fast the backlog grows."""
    base = make_reference()
    served = service_capacity(base)
    rows = []
    for number, share in enumerate(LOADS):
        load = share * served
        problem = replace(base, arrival_prob=load / base.arrival_size, capacity=HUGE)
        rows.append(
            {
                "share": share,
                "load": round(load, 4),
                "stable": bool(load < served),
                **_simulate_growth(problem, GreedyPolicy(), number),
                "drift": round(max(load - served, 0.0), 5),
            }
        )
    return rows


def _simulate_growth(problem: QueueProblem, policy: Any, number: int) -> dict[str, Any]:
    """Growth of the backlog a round in the second half, mean over runs."""
    ends = []
    for rounds in (ROUNDS // 2, ROUNDS):
        # The same draws again: the longer runs are the shorter ones, continued.
        generator = np.random.default_rng([SEED, 10, number])
        sample = simulate_queue_policy(
            problem, policy, rounds=1, runs=RUNS, burn_in=rounds - 1, generator=generator
        )
        ends.append(sample.mean_backlog)
    growth = (ends[1] - ends[0]) / (ROUNDS / 2)
    return {
        "backlog_half": round(float(ends[0].mean()), 2),
        "backlog_end": round(float(ends[1].mean()), 2),
        "growth": average(growth.tolist()),
    }


def simulate_limits() -> list[dict[str, Any]]:
    """The laziest policies that keep to a limit, on each side of F7's line.

    Obfuscating costs a constant whenever something is owed.  The policy obfuscates in the best
    states first, as often as the limit allows: the worst that F7 has to reckon with.
    """
    base = make_reference()
    distribution, success = compute_stationary_distribution(base.oracle), base.oracle.success
    served = float(distribution @ success)
    load = LOAD_BELOW * served
    line = _find_limit_line(distribution, success, load)
    rows = []
    for number, share in enumerate(LIMIT_SHARES):
        limit = share * line
        problem = replace(
            base,
            learning_cost=LearningCost("constant", COST, "when-obfuscating"),
            arrival_prob=load / base.arrival_size,
            limit=limit,
            capacity=HUGE,
        )
        policy = _LaziestPolicy(_spend(distribution, success, limit / COST))
        rows.append(
            {
                "share": share,
                "limit": round(limit, 5),
                "always_stable": is_always_stable(problem),
                **_simulate_growth(problem, policy, 100 + number),
            }
        )
    return rows


def _find_limit_line(distribution: Any, success: Any, load: float) -> float:
    """The limit at which F7 turns over: obfuscating so often forgoes all spare capacity."""
    spare = float(distribution @ success) - load
    limit = 0.0
    for state in np.argsort(-success, kind="stable"):
        used = min(float(distribution[state]), spare / float(success[state]))
        limit += used * COST
        spare -= used * float(success[state])
    return limit


def _spend(distribution: Any, success: Any, idle: float) -> Any:
    """Chance of obfuscating by oracle state, best states first, `idle` of all rounds."""
    probs = np.zeros(len(distribution))
    for state in np.argsort(-success, kind="stable"):
        probs[state] = min(1.0, idle / float(distribution[state]))
        idle -= probs[state] * float(distribution[state])
    return probs


class _LaziestPolicy:
    """Obfuscates with a chance that depends on the oracle state only."""

    def __init__(self, idle: Any) -> None:
        self._idle = idle

    def learn_prob(self, observation: Any) -> Any:
        return 1.0 - self._idle[observation.oracle_state]


def examine_stability() -> Mapping[str, Any]:
    """Lemma 1, F6 and F7."""
    return {
        "printed": examine_printed_lemma(),
        "loads": simulate_loads(),
        "limits": simulate_limits(),
        "rounds": ROUNDS,
        "runs": RUNS,
    }
