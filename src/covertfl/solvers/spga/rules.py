"""What the search knows of a problem: costs, limit, capacity, sizes, and no probability."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem

# With an unbounded queue the simulated backlog stops at this multiple of the typical threshold.
HEADROOM = 50
# Without a capacity, thresholds are searched up to a backlog that costs this multiple of the limit.
LIMITS_SEARCHED = 4.0
# A cost that is charged in some rounds only allows larger backlogs.
PARTIAL_CHARGE = 10.0
LARGEST_THRESHOLD = 200.0


class Rules(NamedTuple):
    """Costs of a round and dynamics of the backlog, as the compiled loops take them.

    Parameters
    ----------
    privacy_cost : (W,) cost of a learning query
    learning_cost : (W, 2, capacity + 1) learning cost of a round by oracle state, action, backlog
    arrival_support : (A,) updates that may arrive in a round, ascending from 0; an arrival has the
        index of the first that is at least as large, or of the last
    overflow_cost : cost of each lost update
    capacity : largest backlog
    limit : limit on the constrained average
    minimises_privacy : whether privacy is minimised and learning constrained, or the reverse
    rounds : length of an episode, 0 for an endless queue
    end_cost : (capacity + 1,) cost of the backlog left when an episode ends; each episode starts
        at capacity
    """

    privacy_cost: FloatArray
    learning_cost: FloatArray
    arrival_support: IntArray
    overflow_cost: float
    capacity: int
    limit: float
    minimises_privacy: bool
    rounds: int
    end_cost: FloatArray


def extract_rules(problem: Problem) -> Rules:
    """Return the costs and the limit of a problem; no probability is read.

    A finite horizon becomes episodes that start at full backlog and end with the cost l(y).
    """
    privacy_cost = np.array(problem.privacy_cost)
    if isinstance(problem, FiniteHorizon):
        return Rules(
            privacy_cost=privacy_cost,
            learning_cost=np.zeros((len(privacy_cost), 2, problem.updates + 1)),
            arrival_support=np.arange(2),  # nothing arrives
            overflow_cost=0.0,
            capacity=problem.updates,
            limit=0.0,
            minimises_privacy=True,
            rounds=problem.rounds,
            end_cost=problem.terminal_cost(),
        )
    capacity = problem.capacity
    if capacity is None:
        capacity = int(HEADROOM * find_typical_threshold(problem))
    held = problem.state_factors[:, None] * problem.learning_cost.at(np.arange(capacity + 1))
    learning = held if problem.learning_cost.charged == "always" else np.zeros_like(held)
    obfuscating = held.copy()
    obfuscating[:, capacity] += problem.full_cost
    return Rules(
        privacy_cost=privacy_cost,
        learning_cost=np.stack([obfuscating, learning], axis=1),
        arrival_support=np.array(problem.arrival_support),
        overflow_cost=float(problem.overflow_cost or 0.0),
        capacity=capacity,
        limit=float(problem.limit),
        minimises_privacy=problem.objective == "privacy",
        rounds=0,
        end_cost=np.zeros(capacity + 1),
    )


def find_typical_threshold(problem: QueueProblem) -> float:
    """Return the scale on which thresholds are searched, derived from costs and limit alone."""
    if problem.objective == "learning":
        scale = LARGEST_THRESHOLD
    else:
        is_partial = problem.learning_cost.charged == "when-obfuscating"
        worth = LIMITS_SEARCHED * (PARTIAL_CHARGE if is_partial else 1.0) * problem.limit
        backlog = np.arange(1, int(LARGEST_THRESHOLD) * 10)
        if problem.capacity is not None:
            backlog = backlog[: problem.capacity]
        typical = problem.state_factors.mean() * problem.learning_cost.at(backlog)
        costly = np.flatnonzero(typical >= worth)
        scale = float(backlog[costly[0]]) if len(costly) else LARGEST_THRESHOLD
    scale = max(scale, 2.0 * problem.largest_arrival, 8.0)
    return scale if problem.capacity is None else min(scale, float(problem.capacity))
