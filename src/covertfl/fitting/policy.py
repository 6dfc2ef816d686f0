"""A policy searched directly on a log, without the probabilities that were fitted to it.

The structured policy gradient (Algorithm 1) replays the recorded rounds.  Costs and limit come from
the problem file that the fit would write; the fitted probabilities are used only afterwards, to
measure how far the policy is from the optimum of the fitted model.
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
from covertfl.solvers.spga.experience import Experience
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.score import (
    describe_costs,
    score_horizon_runs,
    score_queue_runs,
    tabulate_run,
)
from covertfl.solvers.spga.search import search_recorded

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, eq=False)
class LogPolicy:
    """A policy found on a log.

    Parameters
    ----------
    problem : costs and limit of the search
    policy : the policy as a table
    gap : relative excess of its cost over the optimum of the fitted model, for a queue the optimum
        at the same learning cost; None if there is no such optimum
    evaluation : long-run averages of a queue on the fitted model, None if unknown
    """

    problem: Problem
    policy: QueueTable | HorizonTable
    gap: float | None
    evaluation: QueueEvaluation | None = None

    def describe(self) -> dict[str, Any]:
        """Return the contents of `--json`, without the table."""
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
        """Its cost compared with the optimum, in one sentence."""
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


def extract_experience(fitted: FittedOracle, *, with_arrivals: bool = True) -> Experience:
    """Return the rounds that an oracle was fitted to as experience, without its estimates.

    A finite horizon has no arrivals: all its updates are owed from the start.
    """
    arrivals = fitted.arrivals.astype(np.int64) * with_arrivals
    return Experience(fitted.states, arrivals, fitted.succeeded)


def search_on_log(
    fitted: FittedOracle,
    *,
    seed: int,
    iterations: int,
    rounds: int,
    updates: int,
    on_progress: OnProgress,
) -> LogPolicy:
    """Search for a policy on the rounds of a log (Algorithm 1 on recorded experience).

    Parameters
    ----------
    rounds, updates : N and M of the finite horizon that is used if the log has no arrivals, or more
        than can be served
    on_progress : called with the latest costs in words and the share of iterations done
    """
    problem = parse_problem(format_problem(fitted, rounds=rounds, updates=updates), "log").problem

    def report(done: int, privacy: float, learning: float) -> None:
        on_progress(describe_costs(problem, privacy, learning), done / iterations)

    run = search_recorded(
        problem,
        extract_experience(fitted, with_arrivals=isinstance(problem, QueueProblem)),
        iterations=iterations,
        generator=np.random.default_rng(seed),
        on_progress=report,
    )
    return _score(problem, run)


def _score(problem: Problem, run: SpgaRun) -> LogPolicy:
    if isinstance(problem, FiniteHorizon):
        horizon_score = score_horizon_runs(problem, [run])
        return LogPolicy(problem, horizon_score.policy, _known(horizon_score.gaps[0]))
    try:
        score = score_queue_runs(problem, [run])
    except NoSolution:
        return LogPolicy(problem, tabulate_run(problem, run), None)
    return LogPolicy(problem, score.solution.policy, _known(score.gaps[0]), score.evaluations[0])


def _known(gap: float) -> float | None:
    return None if np.isnan(gap) else float(gap)
