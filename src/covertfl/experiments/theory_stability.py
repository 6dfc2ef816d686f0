"""Lemma 1: loads that a queue can serve, and limits under which every policy keeps it stable.

The printed condition fails on the paper's own queue, which can nevertheless be kept stable.
Formula F6 of docs/paper_map.md states which loads can be served, formula F7 when every policy
within the limit is stable (D9 of docs/deviations.md).  Queues on both sides of each condition are
simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.policy import GreedyPolicy, Observation, Policy
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.evaluation.bounds import is_always_stable, least_exposure, service_capacity
from covertfl.evaluation.queue import simulate_queue_policy
from covertfl.experiments.theory_mixture import SEED, make_reference
from covertfl.experiments.trials.averages import average

# Loads on both sides of the condition F6, as shares of the capacity.
LOADS = (0.8, 0.9, 1.1, 1.2)
HUGE = 100_000  # a buffer that no simulation fills
ROUNDS, RUNS = 4000, 300
# Condition F7: constant cost of obfuscating, and limits as shares of the largest by F7.
COST = 0.6
LIMIT_SHARES = (0.5, 0.9, 1.1, 2.0)
LOAD_BELOW = 0.5  # share of the capacity, for F7


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
    """Simulate always learning with loads on both sides of the stability condition F6."""
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
            arrival_prob=load / base.arrival_size,
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


class _LeastLearning:
    """A policy that obfuscates with a probability that depends on the oracle state only."""

    def __init__(self, idle: FloatArray) -> None:
        self._idle = idle

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probability of learning in the oracle state."""
        return np.asarray(1.0 - self._idle[observation.oracle_state])
