"""Runs of the structured policy gradient compared with the exact optimum of a known model.

A search never sees the model; scoring does.  The gap is the relative excess of a policy's cost over
the exact optimum at the *same* constrained cost, so that using more of the limit is no advantage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.policy import (
    HorizonTable,
    QueueTable,
    build_horizon_threshold_table,
    build_sigmoid_table,
)
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.errors import NoSolution
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.evaluation.queue import QueueEvaluation, evaluate_queue_policy, split_costs
from covertfl.solvers.backward_induction import HorizonSolution, solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.spga.result import SpgaRun, round_parameters
from covertfl.solvers.spga.rules import extract_rules

# A run meets its limit if it exceeds it by no more than this share.
LIMIT_SLACK = 0.05


@dataclass(frozen=True, eq=False)
class QueueScore:
    """Runs of a queue problem, compared with the exact optimum.

    Parameters
    ----------
    optimum : the exact solution
    runs : the runs
    evaluations : exact averages of each run's policy
    gaps : (runs,) relative excess of the cost over the optimum at the same constrained cost
    chosen : index of the run to use: the cheapest of those that meet the limit within 5%
    """

    optimum: QueueSolution
    runs: list[SpgaRun]
    evaluations: list[QueueEvaluation]
    gaps: FloatArray
    chosen: int

    @property
    def constrained_costs(self) -> FloatArray:
        """Averages of the constrained cost, (runs,)."""
        return np.array([split_costs(self.problem, item)[1] for item in self.evaluations])

    @property
    def problem(self) -> QueueProblem:
        """The problem, with the capacity of the exact solution."""
        return self.optimum.problem

    @property
    def solution(self) -> QueueSolution:
        """The chosen run as a solution, with the lower bound of the exact solver."""
        run = self.runs[self.chosen]
        return replace(
            self.optimum,
            method="spga",
            policy=run.policy(self.problem),
            evaluation=self.evaluations[self.chosen],
            multiplier=run.multiplier,
            mixing=None,
            iterations=len(run.history.multiplier),
        )


def describe_costs(problem: Problem, privacy: float, learning: float) -> str:
    """Return the averages of a rollout and their limit in words, for a progress bar."""
    if isinstance(problem, FiniteHorizon):
        return f"expected cost {privacy * problem.rounds:.4f}"
    limit = f" (limit {problem.limit:g})"
    of_privacy, of_learning = ("", limit) if problem.objective == "privacy" else (limit, "")
    return f"privacy {privacy:.4f}{of_privacy}, learning {learning:.4f}{of_learning}"


def measure_gap(problem: QueueProblem, policy: QueueTable) -> float:
    """Return the relative excess of a policy's cost over the optimum at its constrained cost.

    The capacity must be numeric.  It is NaN if there is no optimum, or one that costs nothing.
    """
    cost, constrained = split_costs(problem, evaluate_queue_policy(problem, policy))
    try:
        best = solve_queue(problem.with_limit(constrained)).cost
    except NoSolution:
        return float("nan")
    return cost / best - 1.0 if best > 0.0 else float("nan")


def score_queue_runs(
    problem: QueueProblem, runs: list[SpgaRun], *, optimum: QueueSolution | None = None
) -> QueueScore:
    """Score runs by exact evaluation of their policies; `optimum` saves solving it again."""
    optimum = optimum or solve_queue(problem)
    bounded = optimum.problem
    evaluations = [evaluate_queue_policy(bounded, run.policy(bounded)) for run in runs]
    gaps = np.array([measure_gap(bounded, run.policy(bounded)) for run in runs])
    return QueueScore(optimum, runs, evaluations, gaps, _choose(bounded, evaluations))


def _choose(problem: QueueProblem, evaluations: list[QueueEvaluation]) -> int:
    costs = [split_costs(problem, evaluation) for evaluation in evaluations]
    allowed = [
        number
        for number, (_, constrained) in enumerate(costs)
        if constrained <= problem.limit * (1.0 + LIMIT_SLACK)
    ]
    if allowed:
        return min(allowed, key=lambda number: costs[number][0])
    return min(range(len(costs)), key=lambda number: costs[number][1])


@dataclass(frozen=True, eq=False)
class HorizonScore:
    """Stationary policies of a horizon, compared with the exact optimum.

    Parameters
    ----------
    optimum : the exact solution, whose policy depends on the rounds left
    runs : the runs
    thresholds : (runs, W) backlog from which each policy learns, by oracle state
    costs : (runs,) expected total cost, first state stationary
    optimal_cost : expected total cost of the optimum
    chosen : index of the cheapest run
    """

    optimum: HorizonSolution
    runs: list[SpgaRun]
    thresholds: IntArray
    costs: FloatArray
    optimal_cost: float
    chosen: int

    @property
    def gaps(self) -> FloatArray:
        """Relative excess of the costs over the optimum, (runs,); NaN if that costs nothing."""
        if self.optimal_cost <= 0.0:
            return np.full(len(self.costs), np.nan)
        return self.costs / self.optimal_cost - 1.0

    @property
    def policy(self) -> HorizonTable:
        """The chosen stationary policy."""
        return build_horizon_threshold_table(self.optimum.problem, self.thresholds[self.chosen])


def score_horizon_runs(problem: FiniteHorizon, runs: list[SpgaRun]) -> HorizonScore:
    """Score runs by exact evaluation of the thresholds that they round to."""
    optimum = solve_horizon(problem)
    thresholds = np.stack([_dominant_thresholds(run.parameters, problem) for run in runs])
    costs = np.array(
        [
            evaluate_horizon_policy(problem, build_horizon_threshold_table(problem, row)).total_cost
            for row in thresholds
        ]
    )
    optimal = evaluate_horizon_policy(problem, optimum.policy).total_cost
    return HorizonScore(optimum, runs, thresholds, costs, optimal, int(np.argmin(costs)))


def evaluate_from_each_state(problem: FiniteHorizon, policy: HorizonTable) -> list[float]:
    """Return the expected total cost of a policy by first oracle state."""
    firsts = np.eye(problem.oracle.num_states)
    return [evaluate_horizon_policy(problem, policy, first=first).total_cost for first in firsts]


def tabulate_parameters(
    problem: Problem, parameters: FloatArray, temperature: float
) -> QueueTable | HorizonTable:
    """Return a policy (14) as a table; an automatic capacity is that of the search.

    Parameters
    ----------
    parameters : (3, W, A) theta_1, theta_2 and h; a horizon takes the thresholds they round to
    temperature : tau of equation (14)
    """
    if isinstance(problem, FiniteHorizon):
        return build_horizon_threshold_table(problem, _dominant_thresholds(parameters, problem))
    if problem.capacity is None:
        problem = problem.with_capacity(extract_rules(problem).capacity)
    return build_sigmoid_table(problem, parameters, temperature)


def tabulate_run(problem: Problem, run: SpgaRun) -> QueueTable | HorizonTable:
    """Return the policy of a run as a table; an automatic capacity is that of the search."""
    return tabulate_parameters(problem, run.parameters, run.temperature)


def _dominant_thresholds(parameters: FloatArray, problem: FiniteHorizon) -> IntArray:
    """Return the threshold with the larger weight in each oracle state; updates + 1 for never."""
    first, certain, between = round_parameters(parameters)
    dominant = np.where(between[:, 0] >= 0.5, first[:, 0], certain[:, 0])
    return np.minimum(dominant, problem.updates + 1)
