"""From a log straight to a policy, without the chances that were fitted to it.

The structured policy gradient replays the recorded rounds.  Costs and limit come from the problem
file that the fit would write; the fitted chances are used only afterwards, to say how far the
policy is from the optimum of the fitted model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.decision.problem_file import parse_problem
from covertfl.errors import NoSolution
from covertfl.evaluation.queue import QueueEvaluation
from covertfl.fitting.oracle import FittedOracle
from covertfl.fitting.problem import format_problem
from covertfl.solvers.spga import search as spga
from covertfl.solvers.spga.experience import replay_fitted_log
from covertfl.solvers.spga.score import describe_costs, score_horizon_runs, score_queue_runs

Progress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class LogPolicy:
    """A policy found on a log.

    Parameters
    ----------
    problem : costs and limit it was searched for
    policy : as a table
    gap : cost over the optimum of the fitted model, for a queue the one at the same learning cost;
        None where that has no solution
    evaluation : a queue's averages on the fitted model, None where they are not known
    """

    problem: Problem
    policy: QueueTable | HorizonTable
    gap: float | None
    evaluation: QueueEvaluation | None = None

    def describe(self) -> dict[str, Any]:
        """The policy for `--json`, without its table."""
        if isinstance(self.problem, FiniteHorizon):
            return {"problem": "horizon", "method": "spga", "gap": self.gap}
        averages = self.evaluation
        return {
            "problem": "queue",
            "method": "spga",
            "gap": self.gap,
            "privacy_cost": None if averages is None else averages.privacy_cost,
            "learning_cost": None if averages is None else averages.learning_cost,
            "learning_limit": self.problem.limit,
        }

    @property
    def sentence(self) -> str:
        """How it did, in one sentence."""
        if self.gap is None:
            return "Searched on the recorded rounds; the fitted model has no optimum to compare."
        begin = "Searched on the recorded rounds; on the fitted model"
        if isinstance(self.problem, FiniteHorizon) or self.evaluation is None:
            return f"{begin} it costs {self.gap:.2%} more than the optimum."
        return (
            f"{begin} its learning cost is {self.evaluation.learning_cost:.4g} (limit "
            f"{self.problem.limit:.4g}) and its privacy cost {self.evaluation.privacy_cost:.4g}, "
            f"{self.gap:.2%} more than the optimum at the same learning cost."
        )


def search_on_log(
    fitted: FittedOracle,
    *,
    seed: int,
    iterations: int,
    rounds: int,
    updates: int,
    on_progress: Progress,
) -> LogPolicy:
    """Search a policy on the rounds of a log (Algorithm 1 on recorded experience).

    Parameters
    ----------
    rounds, updates : of the horizon, where the log has no arrivals that can be served
    """
    problem = parse_problem(format_problem(fitted, rounds=rounds, updates=updates), "log").problem

    def report(done: int, privacy: float, learning: float) -> None:
        on_progress(describe_costs(problem, privacy, learning), done / iterations)

    source = replay_fitted_log(fitted, with_arrivals=isinstance(problem, QueueProblem))
    if isinstance(problem, FiniteHorizon):
        rules: Any = spga.extract_horizon_rules(problem)
        settings = spga.horizon_settings(problem, iterations=iterations)
    else:
        rules = spga.extract_rules(problem)
        settings = spga.settings_for_log(problem, source.recorded, iterations=iterations)
    run = spga.search_policy(
        rules,
        source,
        settings,
        generator=np.random.default_rng(seed),
        on_progress=report,
    )
    return _judge(problem, run)


def _judge(problem: Problem, run: spga.SpgaRun) -> LogPolicy:
    if isinstance(problem, FiniteHorizon):
        horizon_score = score_horizon_runs(problem, [run])
        return LogPolicy(problem, horizon_score.policy, _known(horizon_score.gaps[0]))
    try:
        score = score_queue_runs(problem, [run])
    except NoSolution:
        return LogPolicy(problem, run.policy(_bounded(problem)), None)
    return LogPolicy(problem, score.solution.policy, _known(score.gaps[0]), score.evaluations[0])


def _known(gap: float) -> float | None:
    return None if np.isnan(gap) else float(gap)


def _bounded(problem: QueueProblem) -> QueueProblem:
    if problem.capacity is not None:
        return problem
    return problem.with_capacity(spga.extract_rules(problem).capacity)
