"""What a service promises of waiting, and whether rounds look like the problem it was made for.

Little's law: in the long run the mean wait of an update is the mean backlog over the updates that
arrive in a round.  A limit on a learning cost that is linear in the backlog bounds the mean backlog
and so the wait, whatever the policy does within the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from covertfl.auditing.mismatch import Mismatch, check_model
from covertfl.decision.policy import Policy, QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.errors import CovertflError
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.schemes.scheme import SeenRound

# Rounds between two comparisons, fewest rounds that are compared, and the p-value below which a
# warning is given: comparisons are many, and a warning should be rare where nothing has changed.
CHECK_EVERY, FEWEST = 100, 300
SURPRISING = 1e-4


def promise_wait(problem: QueueProblem, policy: Policy) -> float | None:
    """Return the mean wait of an update, in rounds, that a policy promises; None if none is known.

    It is the limit over scale and arrival rate where the limited cost is linear in the backlog, and
    the expected wait under the policy elsewhere.
    """
    cost = problem.learning_cost
    if problem.load <= 0.0:
        return None
    is_linear = cost.shape == "linear" and cost.charged == "always" and not cost.by_state
    if problem.objective == "privacy" and is_linear and cost.scale > 0.0:
        return problem.limit / cost.scale / problem.load
    if not isinstance(policy, QueueTable):
        return None
    try:
        found = evaluate_queue_policy(problem.with_capacity(policy.table.shape[2] - 1), policy)
    except CovertflError:
        return None
    served = problem.load - found.lost_per_round
    return found.mean_backlog / served if served > 0.0 else None


def find_drift(problem: QueueProblem, seen: Sequence[SeenRound]) -> dict[str, str]:
    """Return a sentence for each part of a problem that the latest rounds contradict.

    Parameters
    ----------
    seen : oracle state, arriving updates and acceptance of each round
    """
    found = {}
    participation = check_participation(problem, seen)
    if participation.p_value < SURPRISING:
        found["participation"] = (
            f"participation: the last {len(seen)} rounds are not those of the problem that the "
            f"policy was solved for (p = {participation.p_value:.1g}); fit it again"
        )
    p_value = judge_arrivals(problem, [arrived for _, arrived, _ in seen])
    if p_value < SURPRISING:
        rate = sum(arrived for _, arrived, _ in seen) / len(seen)
        found["arrivals"] = (
            f"arrivals: {rate:.3g} updates came per round in the last {len(seen)} rounds, and the "
            f"policy was solved for {problem.load:.3g} (p = {p_value:.1g}); fit it again"
        )
    return found


def check_participation(problem: QueueProblem, seen: Sequence[SeenRound]) -> Mismatch:
    """Compare the oracle states and the acceptance of rounds with the problem's probabilities."""
    records = [{"oracle_state": state, "accepted": accepted} for state, _, accepted in seen]
    return check_model(problem.oracle, [records])


def judge_arrivals(problem: QueueProblem, arrived: Sequence[int]) -> float:
    """Return the p-value of the number of updates that came in rounds, which must not be none.

    The total of many rounds is about normal; with few requests a Poisson total is wider, and its
    variance is taken where it is larger.
    """
    sizes = np.asarray(problem.arrival_support, dtype=np.float64)
    mean = problem.load
    variance = float(problem.arrival_probs @ sizes**2) - mean**2
    spread = math.sqrt(max(variance, mean, 1e-12) * len(arrived))
    return 2.0 * (1.0 - NormalDist().cdf(abs(sum(arrived) - mean * len(arrived)) / spread))
