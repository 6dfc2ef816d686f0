"""Bounds that hold for every policy of a queue: stability, exposure and privacy cost.

In the long run a share b(o) of rounds is spent learning in oracle state o, at most its stationary
probability pi(o), and a stable queue needs sum(g b) >= load.  This corrects Lemma 1, which as
printed uses the largest cost where the smallest is needed (deviation D9).  The formulas F6, F7 and
F8 are listed in docs/paper_map.md.
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.problem import QueueProblem


def _fill_cheapest(price: FloatArray, room: FloatArray, yield_: FloatArray, needed: float) -> float:
    """Return the least sum(price * b) over 0 <= b <= room with sum(yield * b) >= needed."""
    total = 0.0
    useful = np.flatnonzero(yield_ > 0.0)
    for state in useful[np.argsort(price[useful] / yield_[useful], kind="stable")]:
        share = min(float(room[state]), needed / float(yield_[state]))
        total += share * float(price[state])
        needed -= share * float(yield_[state])
        if needed <= 0.0:
            break
    return total


def service_capacity(problem: QueueProblem) -> float:
    """Return sum(pi g), the updates done in a round if every query learns (formula F6)."""
    return float(compute_stationary_distribution(problem.oracle) @ problem.oracle.success)


def least_exposure(problem: QueueProblem) -> float:
    """Return the least share of learning queries of a stable queue (formula F6).

    It is min sum(b) over 0 <= b <= pi with sum(g b) >= load.
    """
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    return _fill_cheapest(np.ones_like(distribution), distribution, success, problem.load)


def privacy_cost_bound(problem: QueueProblem) -> float:
    """Return a lower bound on the privacy cost of a stable queue (formula F8).

    It is min sum(c b) over 0 <= b <= pi with sum(g b) >= load.
    """
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    return _fill_cheapest(np.asarray(problem.privacy_cost), distribution, success, problem.load)


def is_always_stable(problem: QueueProblem) -> bool | None:
    """Return whether every policy within the learning limit is stable (Lemma 1, formula F7).

    The condition is load < sum(pi g) - max{sum(g a): sum(l a) <= limit, 0 <= a <= pi}, where l(o)
    is the least cost of obfuscating with a backlog in oracle state o.

    Returns
    -------
    None if it does not apply: the cost is always charged, or the limit is on privacy
    """
    if problem.learning_cost.charged != "when-obfuscating" or problem.objective != "privacy":
        return None
    backlogs = np.arange(1, (problem.capacity or 1000) + 1)
    least_cost = problem.state_factors * problem.learning_cost.at(backlogs).min()
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    free = least_cost <= 0.0
    forgone, left = float(distribution[free] @ success[free]), problem.limit
    worth = np.divide(success, least_cost, out=np.zeros_like(success), where=~free)
    for state in np.argsort(-worth, kind="stable"):
        if not free[state]:
            share = min(float(distribution[state]), left / float(least_cost[state]))
            forgone += share * float(success[state])
            left -= share * float(least_cost[state])
    return bool(problem.load < float(distribution @ success) - forgone)
