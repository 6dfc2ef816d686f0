"""The inverse question: which setting leads to a wanted exposure, the share of learning queries.

For a queue the setting is the limit on the constrained cost; for a horizon it is the scale of the
terminal cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.errors import InvalidInput, NoSolution
from covertfl.evaluation.bounds import least_exposure, service_capacity
from covertfl.evaluation.horizon import HorizonEvaluation, evaluate_horizon_policy
from covertfl.planning.queue import find_least_limit, solve_within
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue

EXPOSURE_TOLERANCE = 1e-6
MAX_LIMIT_STEPS = 8  # fourfold changes of the limit before the search gives up
BISECTION_STEPS = 60
MAX_SCALE = 1e9


@dataclass(frozen=True)
class ExposurePlan:
    """A setting that leads to a wanted share of learning queries.

    Parameters
    ----------
    target : the wanted share
    setting : the key of the problem file, `learning_limit`, `privacy_limit` or `scale`, or
        `factor of values` where a table is to be multiplied
    value : value of the setting
    exposure : the share reached; a horizon's share moves in steps and never exceeds the target
    privacy_cost : average per round (queue) or expected total (horizon)
    """

    target: float
    setting: str
    value: float
    exposure: float
    privacy_cost: float


def _require_share(target: float) -> None:
    if not 0.0 < target < 1.0:
        raise InvalidInput(f"exposure must lie strictly between 0 and 1, got {target:g}")


def find_limit_for_exposure(problem: QueueProblem, target: float) -> ExposurePlan:
    """Return the limit under which the optimal policy sends a share of learning queries.

    The share lies strictly between 0 and 1; the search starts at the problem's own limit.

    Raises
    ------
    NoSolution
        if there is no such limit, naming the shares that can be reached
    """
    _require_share(target)
    if problem.capacity is None:
        _require_stable(problem, target)
    least = find_least_limit(problem)
    if least is None:
        raise NoSolution(f"no {problem.limit_name} can be met, so none gives {target:.1%}")
    step = max(problem.limit - least, 0.1 * least, 1e-6)
    start = solve_queue(problem.with_limit(least + step))
    shares = [_share(start)]
    # A looser limit on the learning cost usually means fewer learning queries, one on the privacy
    # cost more.  Where bad rounds cost little privacy it is the reverse: both ways are tried.
    looser = (_share(start) > target) == (problem.objective == "privacy")
    for factor in (4.0, 0.25) if looser else (0.25, 4.0):
        end = _move_towards(problem, target, start, least, factor)
        if (_share(end) > target) != (_share(start) > target):
            return _bisect_limit(problem, target, start, end)
        shares.append(_share(end))
    raise NoSolution(
        f"no {problem.limit_name} leads to an exposure of {target:.1%}: the optimal policies tried "
        f"send from {min(shares):.1%} to {max(shares):.1%} learning queries"
    )


def _require_stable(problem: QueueProblem, target: float) -> None:
    """Raise NoSolution if no policy with this share keeps the queue stable (formula F6)."""
    service = service_capacity(problem)
    if problem.load >= service:
        raise NoSolution(
            f"no {problem.limit_name} leads to an exposure of {target:.1%}: more updates "
            f"arrive than can be done, {problem.load:.3g} in a round where at most {service:.3g} "
            "are possible"
        )
    if target <= least_exposure(problem):
        raise NoSolution(
            f"no {problem.limit_name} leads to an exposure of {target:.1%}: a queue that keeps up "
            f"sends more than {least_exposure(problem):.1%} learning queries"
        )


def _move_towards(
    problem: QueueProblem, target: float, start: QueueSolution, least: float, factor: float
) -> QueueSolution:
    """Loosen or tighten the limit until the share crosses the target or comes no closer.

    Each step multiplies the distance to the least limit by the factor.
    """
    here = start
    distance = start.problem.limit - least
    for _ in range(MAX_LIMIT_STEPS):
        following = solve_within(problem, least + distance * factor)
        if following is None:  # the queue does not stay bounded under a limit this loose
            factor = math.sqrt(factor)
            continue
        crossed = (_share(following) > target) != (_share(start) > target)
        closer = abs(_share(following) - target) < abs(_share(here) - target)
        here, distance = following, distance * factor
        if crossed or not closer:
            break
    return here


def _share(solution: QueueSolution) -> float:
    return solution.evaluation.learn_fraction


def _bisect_limit(
    problem: QueueProblem, target: float, low: QueueSolution, high: QueueSolution
) -> ExposurePlan:
    """Return the limit between two solutions, one above and one below the target."""
    above = _share(low) > target
    for _ in range(BISECTION_STEPS):
        middle = solve_queue(problem.with_limit(0.5 * (low.problem.limit + high.problem.limit)))
        if abs(_share(middle) - target) < EXPOSURE_TOLERANCE:
            limit, cost = middle.problem.limit, middle.evaluation.privacy_cost
            return ExposurePlan(target, problem.limit_name, limit, _share(middle), cost)
        if (_share(middle) > target) == above:
            low = middle
        else:
            high = middle
    shares = sorted((_share(low), _share(high)))
    raise NoSolution(
        f"no {problem.limit_name} leads to an exposure of {target:.1%}: at {low.problem.limit:.6g} "
        f"it jumps from {shares[0]:.1%} to {shares[1]:.1%}"
    )


def find_scale_for_exposure(problem: FiniteHorizon, target: float) -> ExposurePlan:
    """Return the scale of the terminal cost that leads to a share of learning queries.

    A deterministic policy changes in steps as the scale grows; the largest share that does not
    exceed the target, strictly between 0 and 1, is returned.  A table is multiplied as a whole, and
    the scale is the factor.

    Raises
    ------
    NoSolution
        if every scale leads to a smaller share, naming the largest
    """
    _require_share(target)
    low, high = 0.0, max(problem.learning_cost.scale, 1.0)
    while _evaluate_at(problem, high).exposure <= target:
        low, high = high, 8.0 * high
        if high > MAX_SCALE:
            largest = _evaluate_at(problem, high).exposure
            raise NoSolution(
                f"no scale leads to an exposure of {target:.1%}: however much a missing update "
                f"costs, the optimal policy sends {largest:.1%} learning queries"
            )
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if _evaluate_at(problem, middle).exposure <= target:
            low = middle
        else:
            high = middle
    reached = _evaluate_at(problem, low)
    setting = "factor of values" if problem.learning_cost.shape == "table" else "scale"
    return ExposurePlan(target, setting, low, reached.exposure, reached.privacy_cost)


def _evaluate_at(problem: FiniteHorizon, scale: float) -> HorizonEvaluation:
    """Evaluate the optimal policy under another scale of the terminal cost."""
    cost = problem.learning_cost
    if cost.shape == "table":
        scaled = replace(cost, values=tuple(scale * value for value in cost.values))
    else:
        scaled = replace(cost, scale=scale)
    rescaled = replace(problem, learning_cost=scaled)
    return evaluate_horizon_policy(rescaled, solve_horizon(rescaled).policy)
