"""What a queue allows: stability, least exposure, and the frontier of cost against limit.

The formulas are those of docs/paper_map.md: stability and least exposure (F6), whether every
policy within the limit is stable (F7), the lower bound on the privacy cost (F8), and the frontier
(F9).
"""

from __future__ import annotations

from dataclasses import dataclass

from covertfl.decision.problem import QueueProblem
from covertfl.errors import Infeasible, NoSolution
from covertfl.evaluation.bounds import (
    is_always_stable,
    least_exposure,
    privacy_cost_bound,
    service_capacity,
)
from covertfl.planning.trajectories import QueuePrices, price_queue
from covertfl.solvers.constrained import QueueSolution, solve_queue

# Limits of the frontier, by how far they lie above the least reachable one.
FRONTIER_STEPS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 1.6, 2.5, 4.0, 7.0, 12.0)


@dataclass(frozen=True)
class FrontierPoint:
    """A limit and the average costs and share of learning queries of its optimal policy."""

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
    problem : the queue
    load, service_capacity : updates per round that arrive, and that can be done at most
    stable : whether some policy keeps the queue bounded (formula F6)
    least_exposure : least share of learning queries of a stable queue (formula F6), None if
        unstable
    privacy_cost_bound : lower bound on the privacy cost of stable policies (formula F8), None if
        unstable
    always_stable : whether every policy within the limit is stable; None where formula F7 does not
        apply
    least_limit : least reachable value of the constrained cost, None if there is none
    frontier : optimal costs and exposure as the limit varies (formula F9)
    trouble : why the problem has no solution under its own limit although it could be kept stable
    exchangeable : load and stability with exchangeable trajectories (formula F12)
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
    exchangeable: QueuePrices

    @property
    def advice(self) -> str:
        """One sentence on the exposure that the queue needs."""
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
        exposure = here[0].learn_fraction if here else self.least_exposure
        verdict = ": an eavesdropper that counts queries finds the true model"
        return f"To keep up, {floor}{shows}{losing}{verdict if exposure >= 0.5 else ''}."


def plan_queue(problem: QueueProblem) -> QueuePlan:
    """Return what a queue allows."""
    service = service_capacity(problem)
    stable = problem.load < service
    # A buffer of fixed size loses what does not fit, so it has a frontier whatever its load.
    has_frontier = stable or problem.capacity is not None
    trouble = _find_trouble(problem) if has_frontier else None
    least = find_least_limit(problem) if has_frontier and trouble is None else None
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
        exchangeable=price_queue(problem.load, service),
    )


def _find_trouble(problem: QueueProblem) -> str | None:
    """Return why the problem cannot be solved, unless its limit is out of reach."""
    try:
        solve_queue(problem)
    except Infeasible:
        return None
    except NoSolution as reason:
        return str(reason)
    return None


def find_least_limit(problem: QueueProblem) -> float | None:
    """Return the least reachable value of the constrained cost, None if there is none.

    The solver reports it when the limit is zero.  With an unlimited buffer the privacy cost has no
    least value; it approaches its lower bound (formula F8) as backlogs grow.
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


def solve_within(problem: QueueProblem, limit: float) -> QueueSolution | None:
    """Return the solution under another limit, None if there is none."""
    try:
        return solve_queue(problem.with_limit(limit))
    except NoSolution:  # below the least limit, or the backlog has no bound
        return None


def _trace_frontier(problem: QueueProblem, least: float) -> list[FrontierPoint]:
    """Return the points of the frontier that have a solution (formula F9)."""
    reach = max(problem.limit - least, 0.25 * max(least, problem.limit), 1e-9)
    limits = sorted({least + step * reach for step in FRONTIER_STEPS} | {problem.limit})
    points = []
    for limit in limits:
        solution = solve_within(problem, limit)
        if solution is not None:
            found = solution.evaluation
            costs = found.privacy_cost, found.learning_cost
            points.append(FrontierPoint(limit, *costs, found.learn_fraction, found.lost_per_round))
    return points
