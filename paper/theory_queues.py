"""Theorem 3 and Lemma 1: how the optimum of a queue randomises, and when a queue is stable.

Theorem 3: the optimum of the constrained problem (9) randomises in at most one state.  Mixing the
two neighbouring policies with the printed weight alpha misses the limit; the corrected probability
p meets it (D8 of docs/deviations.md).

Lemma 1: the printed condition fails on the paper's own queue, which can nevertheless be kept
stable.  Formula F6 of docs/paper_map.md states which loads can be served, formula F7 when every
policy within the limit is stable (D9).  Queues on both sides of each condition are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import GreedyPolicy, Observation, Policy, QueueTable
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.errors import CovertflError
from covertfl.evaluation.bounds import is_always_stable, least_exposure, service_capacity
from covertfl.evaluation.queue import evaluate_queue_policy, simulate_queue_policy
from covertfl.solvers.constrained import QueueSolution, solve_queue
from paper.averages import average
from paper.experiment import load_queue
from paper.theory_structure import sample_dominated_rows

QUEUES, QUICK_QUEUES = 300, 40
SEED = 3
# Loads on both sides of the condition F6, as shares of the capacity.
LOADS = (0.8, 0.9, 1.1, 1.2)
HUGE = 100_000  # a buffer that no simulation fills
ROUNDS, RUNS = 4000, 300
# Condition F7: constant cost of obfuscating, and limits as shares of the largest by F7.
COST = 0.6
LIMIT_SHARES = (0.5, 0.9, 1.1, 2.0)
LOAD_BELOW = 0.5  # share of the capacity, for F7


def make_reference() -> QueueProblem:
    """Return the reference queue (D17 of docs/deviations.md)."""
    return replace(
        load_queue("sound/queue"),
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

    def find_cost(prob: float) -> float:
        table = np.array(solution.policy.table)
        table[mixing.oracle, mixing.arrival, mixing.backlog] = prob
        return evaluate_queue_policy(problem, QueueTable(table)).learning_cost

    # The policy that learns more has the smaller learning cost: alpha is its weight.
    never, always = find_cost(0.0), find_cost(1.0)
    alpha = (problem.limit - never) / (always - never)
    return {
        "alpha": float(alpha),
        "p": mixing.learn_prob,
        "printed_miss": find_cost(alpha) / problem.limit - 1.0,
        "corrected_miss": solution.evaluation.learning_cost / problem.limit - 1.0,
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


def examine_stability() -> Mapping[str, Any]:
    """Examine Lemma 1 and the corrected conditions, formulas F6 and F7."""
    return {
        "printed": examine_printed_lemma(),
        "loads": simulate_loads(),
        "limits": simulate_limits(),
        "rounds": ROUNDS,
        "runs": RUNS,
    }


def examine_printed_lemma() -> dict[str, Any]:
    """Evaluate the printed condition of Lemma 1, and formula F6, on the paper's own queue."""
    problem = load_queue("paper-text/queue")
    least = float(problem.oracle.success.min())
    return {
        "left": round(problem.load / least, 4),
        "right": round(1.0 - problem.limit / problem.learning_cost.scale, 4),
        "load": round(problem.load, 4),
        "capacity": round(service_capacity(problem), 4),
        "least_exposure": round(least_exposure(problem), 4),
    }


def simulate_loads() -> list[dict[str, Any]]:
    """Simulate always learning with loads on both sides of the stability condition F6."""
    base = make_reference()
    served = service_capacity(base)
    rows = []
    for number, share in enumerate(LOADS):
        load = share * served
        problem = replace(base, arrival_prob=load / base.largest_arrival, capacity=HUGE)
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


def _simulate_growth(problem: QueueProblem, policy: Policy, number: int) -> dict[str, Any]:
    """Return the growth of the backlog per round in the second half, averaged over runs."""
    ends = []
    for rounds in (ROUNDS // 2, ROUNDS):
        # The same seed again: the longer runs continue the shorter ones.
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
    """Simulate the policies that learn least within limits on both sides of the condition F7.

    Obfuscating costs a constant whenever the backlog is not empty.  The policy obfuscates in the
    best states first, as often as the limit allows: the extreme case of formula F7.
    """
    base = make_reference()
    distribution, success = compute_stationary_distribution(base.oracle), base.oracle.success
    served = float(distribution @ success)
    load = LOAD_BELOW * served
    largest = _find_largest_limit(distribution, success, load)
    rows = []
    for number, share in enumerate(LIMIT_SHARES):
        limit = share * largest
        problem = replace(
            base,
            learning_cost=LearningCost("constant", COST, "when-obfuscating"),
            arrival_prob=load / base.largest_arrival,
            limit=limit,
            capacity=HUGE,
        )
        policy = _LeastLearning(_assign_idle(distribution, success, limit / COST))
        rows.append(
            {
                "share": share,
                "limit": round(limit, 5),
                "always_stable": is_always_stable(problem),
                **_simulate_growth(problem, policy, 100 + number),
            }
        )
    return rows


def _find_largest_limit(distribution: FloatArray, success: FloatArray, load: float) -> float:
    """Return the largest limit of formula F7, at which obfuscating uses up all spare capacity."""
    spare = float(distribution @ success) - load
    limit = 0.0
    for state in np.argsort(-success, kind="stable"):
        used = min(float(distribution[state]), spare / float(success[state]))
        limit += used * COST
        spare -= used * float(success[state])
    return limit


def _assign_idle(distribution: FloatArray, success: FloatArray, idle: float) -> FloatArray:
    """Return obfuscation probabilities by oracle state, best states first, `idle` of all rounds."""
    probs = np.zeros(len(distribution))
    for state in np.argsort(-success, kind="stable"):
        probs[state] = min(1.0, idle / float(distribution[state]))
        idle -= probs[state] * float(distribution[state])
    return probs


@dataclass(frozen=True, eq=False)
class _LeastLearning:
    """A policy that obfuscates with a probability that depends on the oracle state only."""

    idle: FloatArray

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probability of learning in the oracle state."""
        return np.asarray(1.0 - self.idle[observation.oracle_state])
