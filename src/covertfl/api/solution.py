"""What `solve` returns: a policy, its cost, and what is proven about it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covertfl.api.arguments import Source, read_path
from covertfl.api.result import Result
from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.policy_file import write_policy
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
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
    seconds : that solving took

    Every solution has `problem`, `method`, `policy`, `cost` and `structure`.
    """

    seconds: float

    @property
    @abstractmethod
    def problem(self) -> Problem:
        """Return the problem that was solved, its capacity in numbers."""

    @property
    @abstractmethod
    def method(self) -> str:
        """Return "exact", "lp" or "spga"."""

    @property
    @abstractmethod
    def policy(self) -> QueueTable | HorizonTable:
        """Return the policy as a table of probabilities of learning."""

    @property
    @abstractmethod
    def cost(self) -> float:
        """Return the minimised average cost; for a horizon the expected cost.

        The first oracle state of a horizon is drawn from the stationary distribution.
        """

    @property
    @abstractmethod
    def structure(self) -> StructureReport:
        """Return which assumptions hold, and whether the optimal policy is monotone."""

    @abstractmethod
    def plot(self) -> Figure:
        """Return a figure of the policy, or of the search that found it."""

    def save_policy(self, path: Source) -> None:
        """Write the policy as JSON, for `[policy] kind = "file"` of a run."""
        write_policy(read_path(path, "path"), self.policy)


@dataclass(frozen=True, eq=False, repr=False)
class SolvedQueue(Solution):
    """The optimum of a queue (9), by the exact solver or by the linear programme."""

    details: QueueSolution

    @property
    def problem(self) -> QueueProblem:
        """Return the problem with the capacity that was found."""
        return self.details.problem

    @property
    def method(self) -> str:
        """Return "exact" or "lp"."""
        return self.details.method

    @property
    def policy(self) -> QueueTable:
        """Return the optimal policy, which randomises in at most one state (Theorem 3)."""
        return self.details.policy

    @property
    def cost(self) -> float:
        """Return the average of the cost that is minimised."""
        return self.details.cost

    @property
    def privacy_cost(self) -> float:
        """Return the average privacy cost of a round."""
        return self.details.evaluation.privacy_cost

    @property
    def learning_cost(self) -> float:
        """Return the average learning cost of a round."""
        return self.details.evaluation.learning_cost

    @property
    def learn_fraction(self) -> float:
        """Return the share of rounds that send the true weights."""
        return self.details.evaluation.learn_fraction

    @property
    def multiplier(self) -> float | None:
        """Return the price of the limit (10)."""
        return self.details.multiplier

    @property
    def structure(self) -> StructureReport:
        """Return which assumptions hold, and whether the policy is monotone on visited states."""
        return examine_queue_solution(self.details)

    def plot(self) -> Figure:
        """Return a figure of the probability of learning over oracle state and backlog."""
        from covertfl.display.plots import plot_queue_policy

        return plot_queue_policy(self.details)

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --json` prints."""
        from covertfl.display.as_json import describe_queue_solution

        return describe_queue_solution(self.details, self.seconds)

    def _facts(self) -> Mapping[str, str]:
        return {
            "problem": "queue",
            "method": self.method,
            "cost": f"{self.cost:.6g}",
            "privacy cost": f"{self.privacy_cost:.6g}",
            "learning cost": f"{self.learning_cost:.6g}",
            "learning queries": f"{self.learn_fraction:.2%}",
        }

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_queue_solution

        return render_queue_solution(self.details, self.seconds)


@dataclass(frozen=True, eq=False, repr=False)
class SolvedHorizon(Solution):
    """The optimum of a finite horizon (7), by backward induction."""

    details: HorizonSolution

    @property
    def problem(self) -> FiniteHorizon:
        """Return the problem that was solved."""
        return self.details.problem

    @property
    def method(self) -> str:
        """Return "exact"."""
        return "exact"

    @property
    def policy(self) -> HorizonTable:
        """Return the optimal policy by rounds left, oracle state and backlog."""
        return self.details.policy

    @property
    def expected_cost(self) -> list[float]:
        """Return the expected cost by first oracle state, with all updates still owed."""
        return self.details.expected_cost

    @property
    def cost(self) -> float:
        """Return the expected cost, the first oracle state drawn from the stationary one."""
        return _weigh(self.problem, self.expected_cost)

    @property
    def structure(self) -> StructureReport:
        """Return which assumptions hold, and whether the policy is monotone."""
        return examine_horizon_solution(self.details)

    def plot(self) -> Figure:
        """Return a figure of the thresholds by rounds left (Theorem 2)."""
        from covertfl.display.plots import plot_horizon_policy

        return plot_horizon_policy(self.details)

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --json` prints."""
        from covertfl.display.as_json import describe_horizon_solution

        return describe_horizon_solution(self.details, self.seconds)

    def _facts(self) -> Mapping[str, str]:
        return _horizon_facts(self, self.expected_cost)

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_horizon_solution

        return render_horizon_solution(self.details, self.seconds)


@dataclass(frozen=True, eq=False, repr=False)
class SearchedQueue(SolvedQueue):
    """A queue's policy found by the structured policy gradient (Algorithm 1).

    Parameters
    ----------
    score : all runs of the search, judged by the exact solver
    seed : of the search
    """

    score: QueueScore
    seed: int

    @property
    def gap(self) -> float | None:
        """Return the cost over the optimum at the same constrained cost, relative to it."""
        gap = float(self.score.gaps[self.score.chosen])
        return None if math.isnan(gap) else gap

    def plot(self) -> Figure:
        """Return a figure of thresholds and costs against iterations, with the exact ones."""
        from covertfl.display.spga_plots import plot_convergence

        return plot_convergence(self.score.runs, [(0, self.score.optimum)])

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --method spga --json` prints."""
        from covertfl.display.as_json import describe_queue_score

        return describe_queue_score(self.score, self.seed, self.seconds)

    def _facts(self) -> Mapping[str, str]:
        return {**super()._facts(), "gap": _format_gap(self.gap)}

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_queue_score

        return render_queue_score(self.score, self.seconds)


@dataclass(frozen=True, eq=False, repr=False)
class SearchedHorizon(Solution):
    """A horizon's best stationary thresholds, found by the structured policy gradient.

    Parameters
    ----------
    score : all runs of the search, judged by exact evaluation
    seed : of the search
    """

    score: HorizonScore
    seed: int

    @property
    def problem(self) -> FiniteHorizon:
        """Return the problem that was searched."""
        return self.score.optimum.problem

    @property
    def method(self) -> str:
        """Return "spga"."""
        return "spga"

    @property
    def policy(self) -> HorizonTable:
        """Return the stationary policy, the same whatever rounds are left."""
        return self.score.policy

    @property
    def expected_cost(self) -> list[float]:
        """Return the expected cost by first oracle state, with all updates still owed."""
        return evaluate_from_each_state(self.problem, self.policy)

    @property
    def cost(self) -> float:
        """Return the expected cost, the first oracle state drawn from the stationary one."""
        return _weigh(self.problem, self.expected_cost)

    @property
    def structure(self) -> StructureReport:
        """Return what holds for the exact policy of the same problem."""
        return examine_horizon_solution(self.score.optimum)

    @property
    def gap(self) -> float | None:
        """Return the cost over the optimum, relative to it; None where that is zero."""
        gap = float(self.score.gaps[self.score.chosen])
        return None if math.isnan(gap) else gap

    def plot(self) -> Figure:
        """Raise `InvalidInput`: thresholds that never change make no curve."""
        raise InvalidInput("a stationary policy has no curve to draw")

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --method spga --json` prints."""
        from covertfl.display.as_json import describe_horizon_score

        described = describe_horizon_score(self.score, self.seed, self.seconds)
        return described | {"gap": self.gap}

    def _facts(self) -> Mapping[str, str]:
        return {**_horizon_facts(self, self.expected_cost), "gap": _format_gap(self.gap)}

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_horizon_score

        return render_horizon_score(self.score, self.seconds)


def _weigh(problem: FiniteHorizon, expected_cost: list[float]) -> float:
    return float(compute_stationary_distribution(problem.oracle) @ expected_cost)


def _horizon_facts(solution: Solution, expected_cost: list[float]) -> dict[str, str]:
    costs = " ".join(f"{cost:.6g}" for cost in expected_cost)
    return {
        "problem": "horizon",
        "method": solution.method,
        "expected cost by first oracle state": costs,
    }


def _format_gap(gap: float | None) -> str:
    return "unknown" if gap is None else f"{gap:.2%}"
