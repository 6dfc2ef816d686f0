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
    problem : that was solved, its capacity in numbers
    method : "exact", "lp" or "spga"
    policy : a table of probabilities of learning
    seconds : that solving took
    details : everything that the solver found
    """

    problem: Problem
    method: str
    policy: QueueTable | HorizonTable
    seconds: float
    details: QueueSolution | HorizonSolution | QueueScore | HorizonScore

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
    """The optimum of a queue, equation (9), by the exact solver or the linear program."""

    details: QueueSolution

    @property
    def cost(self) -> float:
        """Return the average of the cost that is minimised."""
        return self._found.cost

    @property
    def privacy_cost(self) -> float:
        """Return the average privacy cost of a round."""
        return self._found.evaluation.privacy_cost

    @property
    def learning_cost(self) -> float:
        """Return the average learning cost of a round."""
        return self._found.evaluation.learning_cost

    @property
    def learn_fraction(self) -> float:
        """Return the share of rounds that send the true weights."""
        return self._found.evaluation.learn_fraction

    @property
    def structure(self) -> StructureReport:
        """Return which assumptions hold, and whether the policy is monotone on visited states."""
        return examine_queue_solution(self._found)

    @property
    def _found(self) -> QueueSolution:
        return self.details

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
class SearchedQueue(SolvedQueue):
    """A queue's policy found by the structured policy gradient (Algorithm 1).

    Parameters
    ----------
    details : all runs of the search, judged by the exact solver
    seed : of the search
    """

    details: QueueScore  # type: ignore[assignment]
    seed: int

    @property
    def gap(self) -> float | None:
        """Return the cost over the optimum at the same constrained cost, relative to it."""
        return _known(self.details.gaps[self.details.chosen])

    @property
    def _found(self) -> QueueSolution:
        return self.details.solution

    def plot(self) -> Figure:
        """Return a figure of thresholds and costs against iterations, with the exact ones."""
        from covertfl.display.curves import plot_convergence

        return plot_convergence(self.details.runs, [(0, self.details.optimum)])

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --method spga --json` prints."""
        from covertfl.display.as_json import describe_queue_score

        return describe_queue_score(self.details, self.seed, self.seconds)

    def _facts(self) -> Mapping[str, str]:
        return {**super()._facts(), "gap": _format_gap(self.gap)}

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_queue_score

        return render_queue_score(self.details, self.seconds)


@dataclass(frozen=True, eq=False, repr=False)
class SolvedHorizon(Solution):
    """The optimum of a finite horizon, equation (7), by backward induction."""

    details: HorizonSolution

    @property
    def expected_cost(self) -> list[float]:
        """Return the expected cost by first oracle state, with all updates still owed."""
        return self.details.expected_cost

    @property
    def cost(self) -> float:
        """Return the expected cost, the first oracle state drawn from the stationary one."""
        return float(compute_stationary_distribution(self.problem.oracle) @ self.expected_cost)

    @property
    def structure(self) -> StructureReport:
        """Return which assumptions hold, and whether the optimal policy is monotone."""
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
        costs = " ".join(f"{cost:.6g}" for cost in self.expected_cost)
        return {
            "problem": "horizon",
            "method": self.method,
            "expected cost by first oracle state": costs,
        }

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_horizon_solution

        return render_horizon_solution(self.details, self.seconds)


@dataclass(frozen=True, eq=False, repr=False)
class SearchedHorizon(SolvedHorizon):
    """A horizon's best stationary thresholds, found by the structured policy gradient.

    Parameters
    ----------
    details : all runs of the search, judged by exact evaluation
    seed : of the search
    """

    details: HorizonScore  # type: ignore[assignment]
    seed: int

    @property
    def expected_cost(self) -> list[float]:
        """Return the expected cost by first oracle state, with all updates still owed."""
        return evaluate_from_each_state(self.details.optimum.problem, self.details.policy)

    @property
    def structure(self) -> StructureReport:
        """Return what holds for the exact policy of the same problem."""
        return examine_horizon_solution(self.details.optimum)

    @property
    def gap(self) -> float | None:
        """Return the cost over the optimum, relative to it; None where that is zero."""
        return _known(self.details.gaps[self.details.chosen])

    def plot(self) -> Figure:
        """Raise `InvalidInput`: thresholds that never change make no curve."""
        raise InvalidInput("a stationary policy has no curve to draw")

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl solve --method spga --json` prints."""
        from covertfl.display.as_json import describe_horizon_score

        return describe_horizon_score(self.details, self.seed, self.seconds) | {"gap": self.gap}

    def _facts(self) -> Mapping[str, str]:
        return {**super()._facts(), "gap": _format_gap(self.gap)}

    def __rich__(self) -> RenderableType:
        from covertfl.display.tables import render_horizon_score

        return render_horizon_score(self.details, self.seconds)


def _known(gap: float) -> float | None:
    return None if math.isnan(gap) else float(gap)


def _format_gap(gap: float | None) -> str:
    return "unknown" if gap is None else f"{gap:.2%}"
