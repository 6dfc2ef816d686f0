"""What no policy of a queue can beat: stability, exposure and privacy cost (F6, F7, F8).

In the long run a share b(o) of rounds is spent learning in oracle state o, at most its stationary
share pi(o), and a queue that keeps up needs sum(g b) >= delta * M (deviation D9: the printed
Lemma 1 bounds with the wrong end of the cost).
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.problem import QueueProblem


def _fill_cheapest(price: FloatArray, room: FloatArray, yield_: FloatArray, needed: float) -> float:
    """Least total price of shares b <= room with sum(yield * b) >= needed, greedily by price."""
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
    """F6: sum(pi g), the updates that can be done in a round if every query learns."""
    return float(compute_stationary_distribution(problem.oracle) @ problem.oracle.success)


def least_exposure(problem: QueueProblem) -> float:
    """F6: min sum(b) with sum(g b) >= load and 0 <= b <= pi; the queue must be stable."""
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    return _fill_cheapest(np.ones_like(distribution), distribution, success, problem.load)


def privacy_cost_bound(problem: QueueProblem) -> float:
    """F8: min sum(c b) under the constraints of F6."""
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    return _fill_cheapest(np.asarray(problem.privacy_cost), distribution, success, problem.load)


def is_always_stable(problem: QueueProblem) -> bool | None:
    """F7: whether every policy within the learning limit keeps the queue stable.

    The condition is load < sum(pi g) - max{sum(g a): l sum(a) <= limit, 0 <= a <= pi}, where l is
    the least cost of obfuscating with a backlog.

    Returns
    -------
    None where it does not apply: the cost is charged always, or the limit is on privacy
    """
    if problem.learning_cost.charged != "when-obfuscating" or problem.objective != "privacy":
        return None
    largest = problem.capacity or 1000
    least_cost = float(problem.learning_cost.at(np.arange(1, largest + 1)).min())
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    idle = problem.limit / least_cost if least_cost > 0.0 else np.inf
    forgone = 0.0
    for state in np.argsort(-success, kind="stable"):
        share = min(float(distribution[state]), idle)
        forgone += share * float(success[state])
        idle -= share
    return bool(problem.load < float(distribution @ success) - forgone)
