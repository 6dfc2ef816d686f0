"""The planner: what can be had at all, and at what exposure (formulas F1 to F11).

========  ===================================================================================
formula   what it says, and where it is computed
========  ===================================================================================
F1, F2    updates that reach a given accuracy (`updates_needed`)
F3        belief of the proportional-sampling eavesdropper (`updates_needed`)
F4        success of the best eavesdropper that knows the policy (`schedule_bound`)
F5        largest chance to finish with learning a strict minority (`solvers.minority`)
F6, F8    least exposure and least privacy cost of a stable queue (`queue_bounds`)
F7        whether every feasible policy keeps the queue stable (`queue_bounds`)
F9        frontier: privacy cost and exposure as the limit varies (here)
F10       expected learning queries of the greedy policy (`horizon_evaluation`)
F11       F5 with the uncertainty of a fitted oracle carried through (here)
========  ===================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import require_irreducible
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import Evidence
from covertfl.errors import Infeasible, InvalidInput, NoSolution
from covertfl.evaluation.bounds import (
    is_always_stable,
    least_exposure,
    privacy_cost_bound,
    service_capacity,
)
from covertfl.evaluation.horizon import (
    HorizonEvaluation,
    evaluate_horizon_policy,
    mean_greedy_queries,
)
from covertfl.evaluation.schedule import ScheduleBound, bound_best_eavesdropper
from covertfl.fitting.oracle import sample_oracles
from covertfl.solvers.backward_induction import HorizonSolution, solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.minority import (
    completion_by_rounds,
    completion_probs,
    prefix_completion_probs,
    rounds_needed,
)

CHANCES = (0.9, 0.95, 0.99)
BOUND_SAMPLES, MIN_BOUND_SAMPLES = 4000, 100
BOUND_WORK = 200_000_000  # numbers touched by the sampled bound, a few seconds
MAX_ROUNDS = 3000  # up to which a longer horizon is looked for
POSTERIOR_SAMPLES = 200
# Limits of the frontier, by how far they lie above the least reachable one.
FRONTIER_STEPS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6, 2.5, 4.0, 7.0, 12.0)
EXPOSURE_TOLERANCE = 1e-6
MAX_WALK = 8  # fourfold steps of the limit in search of an exposure


# --- horizon ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HorizonPlan:
    """What a finite horizon allows.

    Parameters
    ----------
    problem, solution : the problem and its optimal policy
    evaluation : what the optimal policy does, first state stationary
    minority, prefix_minority : (W,) chances F5 by first oracle state
    minority_interval : (W, 2) 95% interval of `minority` from the evidence (F11), or None
    rounds_needed : rounds for a chance of 90, 95 and 99% (F5), None where out of reach
    greedy_learning_queries : F10, None where the greedy policy may never finish
    best_eavesdropper : F4 of the optimal policy, first state stationary
    """

    problem: FiniteHorizon
    solution: HorizonSolution
    evaluation: HorizonEvaluation
    minority: FloatArray
    prefix_minority: FloatArray
    minority_interval: FloatArray | None
    rounds_needed: dict[float, int | None]
    greedy_learning_queries: float | None
    best_eavesdropper: ScheduleBound

    @property
    def advice(self) -> str:
        """One plain sentence."""
        problem = self.problem
        task = f"{problem.updates} updates in {problem.rounds} rounds"
        low, high = (round(100 * float(prob)) for prob in _spread(self.minority))
        best = f"{low}%" if low == high else f"{low} to {high}%"
        where = "" if low == high else ", depending on the first round"
        needed = self.rounds_needed[0.95]
        if low >= 95:
            return (
                f"{task} can be covert against an eavesdropper that counts queries: {best} chance "
                f"to finish at best{where}."
            )
        if high == 0:
            return f"{task} cannot be covert: {_how_many(needed)}."
        return (
            f"{task} cannot be both covert and certain: {best} at best{where}; {_how_many(needed)}."
        )


def _how_many(needed: int | None) -> str:
    return "no number of rounds tried gives 95%" if needed is None else f"{needed} rounds give 95%"


def _spread(probs: FloatArray) -> tuple[float, float]:
    return float(probs.min()), float(probs.max())


def plan_horizon(
    problem: FiniteHorizon, *, generator: np.random.Generator, evidence: Evidence | None = None
) -> HorizonPlan:
    """Everything the planner has to say about a finite horizon.

    Parameters
    ----------
    generator : for the sampled bound F4 and the posterior of F11
    evidence : counts behind the oracle, where it was fitted

    Raises
    ------
    InvalidInput
        if the oracle is not irreducible: the first state is drawn from the stationary law
    """
    require_irreducible(problem.oracle)
    solution = solve_horizon(problem)
    policy = solution.policy
    return HorizonPlan(
        problem=problem,
        solution=solution,
        evaluation=evaluate_horizon_policy(problem, policy),
        minority=completion_probs(problem.oracle, problem.updates, problem.rounds),
        prefix_minority=prefix_completion_probs(problem.oracle, problem.updates, problem.rounds),
        minority_interval=_carry_uncertainty(problem, evidence, generator),
        rounds_needed=_find_rounds_needed(problem),
        greedy_learning_queries=_count_greedy_queries(problem),
        best_eavesdropper=bound_best_eavesdropper(
            problem, policy, num_samples=_choose_num_samples(problem), generator=generator
        ),
    )


def _find_rounds_needed(problem: FiniteHorizon) -> dict[float, int | None]:
    """Rounds for each of `CHANCES`, looked for well beyond what waiting for good rounds takes."""
    horizon, updates = problem.rounds, problem.updates
    last = min(max(4 * horizon, 60 * updates), max(MAX_ROUNDS, horizon))
    if last <= 2 * updates:  # even if every query succeeded, learning would not be a minority
        return dict.fromkeys(CHANCES)
    return rounds_needed(problem.oracle, updates, CHANCES, max_rounds=last)


def _count_greedy_queries(problem: FiniteHorizon) -> float | None:
    try:
        return mean_greedy_queries(problem.oracle, problem.updates)
    except NoSolution:
        return None


def _choose_num_samples(problem: FiniteHorizon) -> int:
    """Fewer sequences where each takes long; the interval says what that costs."""
    work = problem.rounds * problem.oracle.num_states * (problem.updates + 1)
    return max(MIN_BOUND_SAMPLES, min(BOUND_SAMPLES, BOUND_WORK // work))


def _carry_uncertainty(
    problem: FiniteHorizon, evidence: Evidence | None, generator: np.random.Generator
) -> FloatArray | None:
    """95% interval of F5 over oracles drawn from the posterior of the counts (F11)."""
    if evidence is None:
        return None
    draws = sample_oracles(
        evidence.transition_counts,
        evidence.success_counts,
        POSTERIOR_SAMPLES,
        generator=generator,
    )
    probs = [completion_probs(oracle, problem.updates, problem.rounds) for oracle in draws]
    return np.quantile(np.array(probs), [0.025, 0.975], axis=0).T


def completion_curve(plan: HorizonPlan) -> FloatArray:
    """Chance F5 for every number of rounds, up to what a 99% chance takes.

    Returns
    -------
    (rounds + 1,) by number of rounds, first state stationary
    """
    last = plan.rounds_needed[max(CHANCES)] or 4 * plan.problem.rounds
    rounds = max(plan.problem.rounds, last) + 5
    return completion_by_rounds(plan.problem.oracle, plan.problem.updates, rounds)


# --- queue ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FrontierPoint:
    """One limit and what the optimal policy under it costs and shows (F9)."""

    limit: float
    privacy_cost: float
    learning_cost: float
    learn_fraction: float
    lost_per_round: float


@dataclass(frozen=True, eq=False)
class QueuePlan:
    """What a queue allows.

    Parameters
    ----------
    problem : the problem
    load, service_capacity : updates a round that arrive, and that can be done at most
    stable : whether some policy keeps the queue bounded (F6)
    least_exposure : least share of learning queries of a stable queue (F6), None if unstable
    privacy_cost_bound : no stable policy costs less privacy (F8), None if unstable
    always_stable : whether every policy within the limit is stable (F7); None where F7 does not
        apply
    least_limit : least reachable value of the constrained cost, None where there is none
    frontier : optimal costs and exposure as the limit varies (F9)
    trouble : why the problem has no solution under its own limit although it could be kept stable
    """

    problem: QueueProblem
    load: float
    service_capacity: float
    stable: bool
    least_exposure: float | None
    privacy_cost_bound: float | None
    always_stable: bool | None
    least_limit: float | None
    frontier: tuple[FrontierPoint, ...]
    trouble: str | None

    @property
    def advice(self) -> str:
        """One plain sentence."""
        if not self.stable:
            return (
                f"The queue cannot be kept up with: {self.load:.3g} updates arrive in a round and "
                f"at most {self.service_capacity:.3g} can be done."
            )
        assert self.least_exposure is not None
        limit, least = self.problem.limit, self.least_limit
        name = self.problem.limit_name.replace("_", " ")
        floor = f"at least {self.least_exposure:.1%} of the queries must be true"
        if least is not None and least > limit:
            return f"The {name} of {limit:g} cannot be met: the least is {least:.4g}; {floor}."
        if self.trouble is not None:
            return f"To keep up, {floor}, but {self.trouble}."
        here = [point for point in self.frontier if point.limit == limit]
        shows = f", and {here[0].learn_fraction:.1%} are with a {name} of {limit:g}" if here else ""
        lost = here[0].lost_per_round / self.load if here else 0.0
        losing = f", with {lost:.1%} of the updates lost" if lost > 1e-4 else ""
        shown = here[0].learn_fraction if here else self.least_exposure
        verdict = ": an eavesdropper that counts queries finds the true model"
        return f"To keep up, {floor}{shows}{losing}{verdict if shown >= 0.5 else ''}."


def plan_queue(problem: QueueProblem) -> QueuePlan:
    """Everything the planner has to say about a queue."""
    service = service_capacity(problem)
    stable = problem.load < service
    # A buffer of fixed size loses what does not fit, so it has a frontier whatever its load.
    has_frontier = stable or problem.capacity is not None
    trouble = _find_trouble(problem) if has_frontier else None
    least = _least_limit(problem) if has_frontier and trouble is None else None
    return QueuePlan(
        problem=problem,
        load=problem.load,
        service_capacity=service,
        stable=stable,
        least_exposure=least_exposure(problem) if stable else None,
        privacy_cost_bound=privacy_cost_bound(problem) if stable else None,
        always_stable=is_always_stable(problem),
        least_limit=least,
        frontier=() if least is None else tuple(_trace_frontier(problem, least)),
        trouble=trouble,
    )


def _find_trouble(problem: QueueProblem) -> str | None:
    """Why the problem cannot be solved, other than that its limit is out of reach."""
    try:
        solve_queue(problem)
    except Infeasible:
        return None
    except NoSolution as reason:
        return str(reason)
    return None


def _least_limit(problem: QueueProblem) -> float | None:
    """Least reachable value of the constrained cost: asked for nothing, the solver says it.

    Without a buffer's size the privacy cost has no least value but comes as near to F8 as one
    likes, with ever longer backlogs.
    """
    if problem.objective == "learning" and problem.capacity is None:
        return privacy_cost_bound(problem)
    try:
        solve_queue(problem.with_limit(0.0))
    except Infeasible as refusal:
        return refusal.best
    except NoSolution:
        return None
    return 0.0


def _solve_within(problem: QueueProblem, limit: float) -> QueueSolution | None:
    """The solution under another limit, None where there is none."""
    try:
        return solve_queue(problem.with_limit(limit))
    except NoSolution:  # below the least, or without a bound on the backlog
        return None


def _trace_frontier(problem: QueueProblem, least: float) -> list[FrontierPoint]:
    reach = max(problem.limit - least, 0.25 * max(least, problem.limit), 1e-9)
    limits = sorted({least + step * reach for step in FRONTIER_STEPS} | {problem.limit})
    solutions = [(limit, _solve_within(problem, limit)) for limit in limits]
    return [
        _frontier_point(solution, limit) for limit, solution in solutions if solution is not None
    ]


def _frontier_point(solution: QueueSolution, limit: float) -> FrontierPoint:
    evaluation = solution.evaluation
    return FrontierPoint(
        limit,
        evaluation.privacy_cost,
        evaluation.learning_cost,
        evaluation.learn_fraction,
        evaluation.lost_per_round,
    )


# --- the inverse question -----------------------------------------------------------------------


@dataclass(frozen=True)
class ExposurePlan:
    """A setting that gives a wanted share of learning queries.

    Parameters
    ----------
    target : the share asked for
    setting : the key of the problem file, `learning_limit`, `privacy_limit` or `scale`, or
        `factor of values` where a table is to be multiplied
    value : what to set it to
    exposure : the share it gives; a horizon's share moves in steps and never exceeds the target
    privacy_cost : average of a round (queue) or expected total (horizon)
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
    """The limit under which the optimal policy sends a given share of learning queries.

    Raises
    ------
    NoSolution
        if no limit does, naming the shares that can be had
    """
    _require_share(target)
    if problem.capacity is None:
        _require_enough(problem, target)
    least = _least_limit(problem)
    if least is None:
        raise NoSolution(f"no {problem.limit_name} can be met, so none gives {target:.1%}")
    step = max(problem.limit - least, 0.1 * least, 1e-6)
    start = solve_queue(problem.with_limit(least + step))
    shares = [_share(start)]
    # A looser limit on learning mostly means fewer true queries, one on privacy more; not where
    # bad rounds cost little privacy, so a step is tried the other way as well.
    looser = (_share(start) > target) == (problem.objective == "privacy")
    for factor in (4.0, 0.25) if looser else (0.25, 4.0):
        end = _walk_to_share(problem, target, start, least, factor)
        if (_share(end) > target) != (_share(start) > target):
            return _bisect_limit(problem, target, start, end)
        shares.append(_share(end))
    raise NoSolution(
        f"no {problem.limit_name} gives an exposure of {target:.1%}: the optimal policies tried "
        f"send from {min(shares):.1%} to {max(shares):.1%} learning queries"
    )


def _require_enough(problem: QueueProblem, target: float) -> None:
    """Raise `NoSolution` if no policy that sends this share of true queries keeps up (F6)."""
    service = service_capacity(problem)
    if problem.load >= service:
        raise NoSolution(
            f"no {problem.limit_name} gives an exposure of {target:.1%}: the queue cannot be kept "
            f"up with, {problem.load:.3g} updates arrive in a round and at most {service:.3g} can "
            "be done"
        )
    if target <= least_exposure(problem):
        raise NoSolution(
            f"no {problem.limit_name} gives an exposure of {target:.1%}: a queue that keeps up "
            f"sends more than {least_exposure(problem):.1%} learning queries"
        )


def _walk_to_share(
    problem: QueueProblem, target: float, start: QueueSolution, least: float, factor: float
) -> QueueSolution:
    """Loosen or tighten the limit until the exposure crosses the target or comes no nearer.

    Parameters
    ----------
    factor : what the distance to the least limit is multiplied with at each step
    """
    here = start
    step = start.problem.limit - least
    for _ in range(MAX_WALK):
        following = _solve_within(problem, least + step * factor)
        if following is None:  # too far: the queue does not stay bounded under a limit this loose
            factor = math.sqrt(factor)
            continue
        crossed = (_share(following) > target) != (_share(start) > target)
        nearer = abs(_share(following) - target) < abs(_share(here) - target)
        here, step = following, step * factor
        if crossed or not nearer:
            break
    return here


def _share(solution: QueueSolution) -> float:
    return solution.evaluation.learn_fraction


def _bisect_limit(
    problem: QueueProblem, target: float, low: QueueSolution, high: QueueSolution
) -> ExposurePlan:
    above = _share(low) > target
    for _ in range(60):
        middle = solve_queue(problem.with_limit(0.5 * (low.problem.limit + high.problem.limit)))
        if abs(_share(middle) - target) < EXPOSURE_TOLERANCE:
            return ExposurePlan(
                target,
                problem.limit_name,
                middle.problem.limit,
                _share(middle),
                middle.evaluation.privacy_cost,
            )
        if (_share(middle) > target) == above:
            low = middle
        else:
            high = middle
    shares = sorted((_share(low), _share(high)))
    raise NoSolution(
        f"no {problem.limit_name} gives an exposure of {target:.1%}: at {low.problem.limit:.6g} "
        f"it jumps from {shares[0]:.1%} to {shares[1]:.1%}"
    )


def find_scale_for_exposure(problem: FiniteHorizon, target: float) -> ExposurePlan:
    """The scale of the terminal cost under which the optimal policy sends a share of true queries.

    A deterministic policy changes in steps as the scale grows; the largest share that does not
    exceed the target is returned.  A table is scaled as a whole: the scale is a factor then.

    Raises
    ------
    NoSolution
        if even the dearest backlog gives less, naming the largest share
    """
    _require_share(target)
    low, high = 0.0, max(problem.learning_cost.scale, 1.0)
    while _exposure_at(problem, high).exposure <= target:
        low, high = high, 8.0 * high
        if high > 1e9:
            largest = _exposure_at(problem, high).exposure
            raise NoSolution(
                f"no scale gives an exposure of {target:.1%}: however dear a missing update is, "
                f"the optimal policy sends {largest:.1%} learning queries"
            )
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _exposure_at(problem, middle).exposure <= target:
            low = middle
        else:
            high = middle
    reached = _exposure_at(problem, low)
    setting = "factor of values" if problem.learning_cost.shape == "table" else "scale"
    return ExposurePlan(target, setting, low, reached.exposure, reached.privacy_cost)


def _exposure_at(problem: FiniteHorizon, scale: float) -> HorizonEvaluation:
    cost = problem.learning_cost
    if cost.shape == "table":
        scaled = replace(cost, values=tuple(scale * value for value in cost.values))
    else:
        scaled = replace(cost, scale=scale)
    rescaled = replace(problem, learning_cost=scaled)
    return evaluate_horizon_policy(rescaled, solve_horizon(rescaled).policy)
