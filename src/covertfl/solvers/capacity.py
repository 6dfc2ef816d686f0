"""How much room an automatic capacity needs, and when to stop looking for it.

A capacity is large enough if the queue is full with a probability below `FULL_PROB` and what is
lost costs next to nothing.  Two policies bound the search before any problem is solved:

- With the same draws, the policy that always learns has the shortest backlog of all in every round.
  A capacity at which its queue is often full is too small for every policy.
- If the oracle states with the least privacy cost of an update can do all the work, the policy that
  learns in these alone attains the lower bound on the privacy cost of a stable queue.  Where it
  keeps the limit it is optimal, with the capacity that its own backlog needs.

Backlogs grow while the oracle stays in a bad state.  One that hardly ever changes its state needs
more room than any other, and policies for it take many steps to find; `MOST_WORK` bounds them.
"""

from __future__ import annotations

import numpy as np

from covertfl.arrays import BoolArray
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.errors import SplitChain, Unstable
from covertfl.evaluation.bounds import privacy_cost_bound
from covertfl.evaluation.queue import QueueEvaluation, evaluate_queue_policy, require_settling
from covertfl.solvers.average_cost import always_learn
from covertfl.solvers.multiplier import FLOOR_TOLERANCE

# An automatic capacity is large enough if the queue is full less often than this.
FULL_PROB = 1e-9
NOTHING_PAID = 1e-10
AUTO_STATES = 1_000_008
# States of all policies evaluated, over all capacities tried.
MOST_WORK = 60_000_000


def largest_capacity(problem: QueueProblem) -> int:
    """Return the largest automatic capacity, at which the queue has `AUTO_STATES` states."""
    return AUTO_STATES // (problem.oracle.num_states * len(problem.arrival_support)) - 1


def is_large_enough(problem: QueueProblem, evaluation: QueueEvaluation) -> bool:
    """Return whether the capacity is negligible: rarely full, and losses cost next to nothing."""
    assert problem.overflow_cost is not None
    paid = problem.overflow_cost * evaluation.lost_per_round
    return evaluation.full_prob < FULL_PROB and paid <= NOTHING_PAID * evaluation.learning_cost


def grow(capacity: int, full_prob: float, largest: int) -> int:
    """Return a capacity at which a geometric tail is negligible, at most four times as large."""
    factor = np.clip(np.log(1e-5 * FULL_PROB) / np.log(min(max(full_prob, 1e-300), 0.5)), 1.5, 4.0)
    return min(int(capacity * factor), largest)


def find_first_capacity(problem: QueueProblem) -> int:
    """Return a capacity from which to search: the queue is rarely full if every query learns.

    Raises `Unstable` if there is none, so that none is large enough for any policy.
    """
    largest = largest_capacity(problem)
    capacity = min(max(64, 16 * problem.largest_arrival), largest)
    while True:
        bounded = problem.with_capacity(capacity)
        evaluation = evaluate_queue_policy(bounded, _tabulate(always_learn(bounded)))
        if evaluation.full_prob < FULL_PROB:
            return capacity
        if capacity >= largest:
            raise Unstable(
                f"no capacity can be chosen: even if every query learns, a queue with room for "
                f"{capacity:,} updates, the largest that is tried, is full in a share of "
                f"{evaluation.full_prob:.3g} of rounds; {describe_stay(problem)}, and backlogs "
                "grow as long; set capacity and overflow_cost, or lower the arrivals"
            )
        capacity = grow(capacity, evaluation.full_prob, largest)


def find_cheapest(problem: QueueProblem) -> tuple[QueueProblem, QueueTable, QueueEvaluation] | None:
    """Find a policy within the learning limit that attains the bound on the privacy cost.

    Returns the problem with a capacity that is large enough, the policy and its averages, or None
    if no such policy was found.
    """
    states = _find_cheapest_states(problem)
    if problem.objective != "privacy" or states is None:
        return None
    largest, bound = largest_capacity(problem), privacy_cost_bound(problem)
    capacity = min(max(64, 16 * problem.largest_arrival), largest)
    while True:
        bounded = problem.with_capacity(capacity)
        policy = _tabulate(always_learn(bounded) & states[:, None, None])
        try:
            evaluation = evaluate_queue_policy(bounded, policy)
        except SplitChain:
            return None
        if is_large_enough(bounded, evaluation):
            break
        # With more room the backlog is longer, and costs more than it does without the losses.
        if capacity >= largest or _cost_without_losses(bounded, evaluation) > problem.limit:
            return None
        capacity = grow(capacity, evaluation.full_prob, largest)
    attained = evaluation.privacy_cost <= bound * (1.0 + FLOOR_TOLERANCE)
    if not attained or evaluation.learning_cost > problem.limit:
        return None
    try:
        require_settling(evaluation)
    except SplitChain:
        return None
    return bounded, policy, evaluation


def _cost_without_losses(problem: QueueProblem, evaluation: QueueEvaluation) -> float:
    assert problem.overflow_cost is not None
    return evaluation.learning_cost - problem.overflow_cost * evaluation.lost_per_round


def _find_cheapest_states(problem: QueueProblem) -> BoolArray | None:
    """Return the oracle states in which an update costs least, None if they cannot do all of it."""
    distribution, success = compute_stationary_distribution(problem.oracle), problem.oracle.success
    price = np.full(len(success), np.inf)
    useful = (success > 0.0) & (distribution > 0.0)
    price[useful] = problem.privacy_cost[useful] / success[useful]
    cheapest = price <= price.min() * (1.0 + 1e-12)
    service = float(distribution[cheapest] @ success[cheapest])
    return np.asarray(cheapest) if service > problem.load else None


def find_longest_stay(problem: QueueProblem) -> tuple[int, float]:
    """Return the oracle state that is left least often, and the mean rounds of a stay in it.

    States that are never left or never entered do not count; without others a stay is one round.
    """
    transition = problem.oracle.transition
    moves = transition - np.diag(transition.diagonal())
    leaving = moves.sum(axis=1)
    leaving[(leaving <= 0.0) | (compute_stationary_distribution(problem.oracle) <= 0.0)] = 1.0
    state = int(np.argmin(leaving))
    return state, 1.0 / float(leaving[state])


def describe_stay(problem: QueueProblem) -> str:
    """Describe how long the oracle stays in the state that it leaves least often."""
    state, rounds = find_longest_stay(problem)
    return f"the oracle stays in state {state} for {rounds:.3g} rounds on average"


def _tabulate(learn: BoolArray) -> QueueTable:
    return QueueTable(learn.astype(np.float64))
