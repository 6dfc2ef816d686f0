"""What `solve` returns: a policy, its cost, and what is proven about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covertfl.api.result import Result
from covertfl.decision.arguments import Source, read_path
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.policy_file import write_policy
from covertfl.decision.problem import Problem
from covertfl.errors import InvalidInput
from covertfl.solvers.backward_induction import HorizonSolution
from covertfl.solvers.constrained import QueueSolution
from covertfl.solvers.spga.score import HorizonScore, QueueScore, evaluate_from_each_state
from covertfl.solvers.structure import (
    StructureReport,
    examine_horizon_solution,
    examine_queue_solution,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Result):
    """A policy, its cost, and what is proven about it.

    Parameters
    ----------
    problem : the problem that was solved, its capacity in numbers
    method : "exact", "lp" or "spga"
    policy : a table of probabilities of learning
    details : everything that the solver found; a score where the policy was searched
    seconds : time that solving took
    seed : seed of the search, None without one
    """

    problem: Problem
    method: str
    policy: QueueTable | HorizonTable
    details: QueueSolution | HorizonSolution | QueueScore | HorizonScore
    seconds: float
    seed: int | None = None

    @property
    def cost(self) -> float:
        """Return the minimised average cost; for a horizon the expected cost.

        The first oracle state of a horizon is drawn from the stationary distribution.
        """
        if isinstance(self.details, QueueSolution | QueueScore):
            return self._queue.cost
        return float(compute_stationary_distribution(self.problem.oracle) @ self.expected_cost)

    @property
    def expected_cost(self) -> list[float]:
        """Return the expected cost of a horizon by first oracle state, all updates owed."""
        match self.details:
            case HorizonSolution(expected_cost=costs):
                return costs
            case HorizonScore(optimum=optimum, policy=policy):
                return evaluate_from_each_state(optimum.problem, policy)
        raise InvalidInput("a queue has average costs; only a horizon has this one")

    @property
    def privacy_cost(self) -> float:
        """Return the average privacy cost of a queue's round."""
        return self._queue.evaluation.privacy_cost

    @property
    def learning_cost(self) -> float:
        """Return the average learning cost of a queue's round."""
        return self._queue.evaluation.learning_cost

    @property
    def learn_fraction(self) -> float:
        """Return the share of a queue's rounds that send the true weights."""
        return self._queue.evaluation.learn_fraction

    @property
    def _queue(self) -> QueueSolution:
        match self.details:
            case QueueSolution():
                return self.details
            case QueueScore(solution=solution):
                return solution
        raise InvalidInput("a horizon has expected_cost; only a queue has average costs")

    @property
    def gap(self) -> float | None:
        """Return how far a searched policy is above the optimum, relative to it; else None.

        A queue is compared at the same constrained cost.
        """
        if isinstance(self.details, QueueSolution | HorizonSolution):
            return None
        gap = float(self.details.gaps[self.details.chosen])
        return None if math.isnan(gap) else gap

    @property
    def structure(self) -> StructureReport:
        """Return which assumptions hold, and whether the optimal policy is monotone."""
        match self.details:
            case HorizonSolution():
                return examine_horizon_solution(self.details)
            case HorizonScore(optimum=optimum):
                return examine_horizon_solution(optimum)
        return examine_queue_solution(self._queue)

    def save_policy(self, path: Source) -> None:
        """Write the policy as JSON, for `[policy] kind = "file"` of a run."""
        write_policy(read_path(path, "path"), self.policy)

    def plot(self) -> Figure:
        """Return a figure of the policy, or of the search that found it."""
        from covertfl.display import curves, plots

        match self.details:
            case QueueSolution():
                return plots.plot_queue_policy(self.details)
            case HorizonSolution():
                return plots.plot_horizon_policy(self.details)
            case QueueScore(runs=runs, optimum=optimum):
                return curves.plot_convergence(runs, optimum)
        raise InvalidInput("a stationary policy has no curve to draw")

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --json` prints."""
        from covertfl.display import as_json

        match self.details:
            case QueueSolution():
                return as_json.describe_queue_solution(self.details, self.seconds)
            case HorizonSolution():
                return as_json.describe_horizon_solution(self.details, self.seconds)
            case QueueScore():
                return as_json.describe_queue_score(self.details, self.seed or 0, self.seconds)
            case HorizonScore():
                found = as_json.describe_horizon_score(self.details, self.seed or 0, self.seconds)
                return found | {"gap": self.gap}

    def __rich__(self) -> RenderableType:
        from covertfl.display import tables

        match self.details:
            case QueueSolution():
                return tables.render_queue_solution(self.details, self.seconds)
            case HorizonSolution():
                return tables.render_horizon_solution(self.details, self.seconds)
            case QueueScore():
                return tables.render_queue_score(self.details, self.seconds)
            case HorizonScore():
                return tables.render_horizon_score(self.details, self.seconds)

    def _facts(self) -> Mapping[str, str]:
        facts = {"method": self.method}
        if isinstance(self.details, QueueSolution | QueueScore):
            facts["cost"] = f"{self.cost:.6g}"
            facts["privacy cost"] = f"{self.privacy_cost:.6g}"
            facts["learning cost"] = f"{self.learning_cost:.6g}"
            facts["learning queries"] = f"{self.learn_fraction:.2%}"
        else:
            costs = " ".join(f"{cost:.6g}" for cost in self.expected_cost)
            facts["expected cost by first oracle state"] = costs
        if self.gap is not None:
            facts["gap"] = f"{self.gap:.2%}"
        return facts
