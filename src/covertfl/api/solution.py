"""What `covertfl solve` found, by any method, and the ways to show it.

An outcome is made by solving; a table, JSON or a picture is made from it only if it is asked for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.display import as_json as results
from covertfl.errors import InvalidInput
from covertfl.solvers.backward_induction import HorizonSolution, solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.spga.score import (
    HorizonScore,
    QueueScore,
    describe_costs,
    score_horizon_runs,
    score_queue_runs,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

Progress = Callable[[str, float], None]


class Outcome(Protocol):
    """Something that was solved."""

    def make_policy(self) -> QueueTable | HorizonTable:
        """The policy as a table."""
        ...

    def as_json(self) -> dict[str, Any]:
        """The keys of the command line's interface."""
        ...

    def for_people(self) -> RenderableType:
        """Tables to print."""
        ...

    def draw(self, path: Path) -> None:
        """Save a picture."""
        ...


@dataclass(frozen=True)
class QueueOutcome:
    """A queue, solved exactly or by the linear programme."""

    solution: QueueSolution
    seconds: float

    def make_policy(self) -> QueueTable:
        """The policy as a table."""
        return self.solution.policy

    def as_json(self) -> dict[str, Any]:
        """The keys of the command line's interface."""
        return results.describe_queue_solution(self.solution, self.seconds)

    def for_people(self) -> RenderableType:
        """Tables to print."""
        from covertfl.display import tables as render

        return render.render_queue_solution(self.solution, self.seconds)

    def draw(self, path: Path) -> None:
        """The policy over oracle state and backlog."""
        from covertfl.display import plots

        plots.save_figure(plots.plot_queue_policy(self.solution), path)


@dataclass(frozen=True)
class HorizonOutcome:
    """A horizon, solved exactly."""

    solution: HorizonSolution
    seconds: float

    def make_policy(self) -> HorizonTable:
        """The policy as a table."""
        return self.solution.policy

    def as_json(self) -> dict[str, Any]:
        """The keys of the command line's interface."""
        return results.describe_horizon_solution(self.solution, self.seconds)

    def for_people(self) -> RenderableType:
        """Tables to print."""
        from covertfl.display import tables as render

        return render.render_horizon_solution(self.solution, self.seconds)

    def draw(self, path: Path) -> None:
        """Thresholds by rounds left."""
        from covertfl.display import plots

        plots.save_figure(plots.plot_horizon_policy(self.solution), path)


@dataclass(frozen=True)
class SpgaQueueOutcome:
    """A queue searched by the structured policy gradient and judged by the exact solver."""

    score: QueueScore
    seed: int
    seconds: float

    def make_policy(self) -> QueueTable:
        """The chosen run's sigmoid policy (14) as a table."""
        return self.score.solution.policy

    def as_json(self) -> dict[str, Any]:
        """The keys of a queue's solution, and what a search adds."""
        return results.describe_queue_score(self.score, self.seed, self.seconds)

    def for_people(self) -> RenderableType:
        """The solution's tables and how far it is from the optimum."""
        from covertfl.display import tables as render

        return render.render_queue_score(self.score, self.seconds)

    def draw(self, path: Path) -> None:
        """Thresholds and costs against iterations, with the exact ones."""
        from covertfl.display import plots, spga_plots

        figure = spga_plots.plot_convergence(self.score.runs, [(0, self.score.optimum)])
        plots.save_figure(figure, path)


@dataclass(frozen=True)
class SpgaHorizonOutcome:
    """A horizon's best stationary thresholds, searched and judged by exact evaluation."""

    score: HorizonScore
    seed: int
    seconds: float

    def make_policy(self) -> HorizonTable:
        """The chosen stationary policy, the same in every round."""
        return self.score.policy

    def as_json(self) -> dict[str, Any]:
        """The keys of a horizon's solution, and what a search adds."""
        described = results.describe_horizon_score(self.score, self.seed, self.seconds)
        unknown = math.isnan(described["gap"])  # the optimum costs nothing
        return described | {"gap": None} if unknown else described

    def for_people(self) -> RenderableType:
        """The thresholds and how far they are from the optimum."""
        from covertfl.display import tables as render

        return render.render_horizon_score(self.score, self.seconds)

    def draw(self, path: Path) -> None:
        """Refused: the exact policy's picture is of thresholds by rounds left."""
        raise InvalidInput(f"{path}: a stationary policy has no curve to draw")


def solve_exactly(problem: QueueProblem | FiniteHorizon, on_progress: Progress) -> Outcome:
    """Solve by policy iteration and multiplier search, or by backward induction."""
    start = time.perf_counter()
    if isinstance(problem, FiniteHorizon):
        horizon = solve_horizon(problem)
        return HorizonOutcome(horizon, time.perf_counter() - start)
    queue = solve_queue(problem, on_progress=lambda detail: on_progress(detail, 0.0))
    return QueueOutcome(queue, time.perf_counter() - start)


def solve_by_programme(
    problem: QueueProblem | FiniteHorizon, name: str, on_progress: Progress
) -> Outcome:
    """Solve a queue by the linear programme."""
    from covertfl.solvers.occupation_lp import solve_occupation_lp

    if isinstance(problem, FiniteHorizon):
        raise InvalidInput(f"{name}: --method lp is for queue problems; a horizon needs exact")
    start = time.perf_counter()
    if problem.capacity is None:  # the linear programme takes over the capacity found
        problem = solve_queue(problem, on_progress=lambda detail: on_progress(detail, 0.0)).problem
    solution = solve_occupation_lp(problem)
    return QueueOutcome(solution, time.perf_counter() - start)


def solve_by_search(
    problem: QueueProblem | FiniteHorizon,
    *,
    seed: int,
    iterations: int,
    runs: int,
    on_progress: Progress,
) -> Outcome:
    """Search by the structured policy gradient, in parallel over cores, and judge the runs.

    A queue is solved exactly first, so that a limit which cannot be met is refused at once; the
    search is told nothing of it.
    """
    from covertfl.solvers.spga.search import solve_spga
    from covertfl.solvers.spga.settings import default_settings, horizon_settings

    def report(done: int, privacy: float, learning: float) -> None:
        on_progress(describe_costs(problem, privacy, learning), done / (iterations * runs))

    threads = max(1, min(runs, os.cpu_count() or 1))
    start = time.perf_counter()
    if isinstance(problem, FiniteHorizon):
        settings = horizon_settings(problem, iterations=iterations)
        found = solve_spga(
            problem, settings, seed=seed, runs=runs, threads=threads, on_progress=report
        )
        seconds = time.perf_counter() - start
        return SpgaHorizonOutcome(score_horizon_runs(problem, found), seed, seconds)
    settings = default_settings(problem, iterations=iterations)
    optimum = solve_queue(problem, on_progress=lambda detail: on_progress(detail, 0.0))
    start = time.perf_counter()
    found = solve_spga(problem, settings, seed=seed, runs=runs, threads=threads, on_progress=report)
    seconds = time.perf_counter() - start
    return SpgaQueueOutcome(score_queue_runs(problem, found, optimum=optimum), seed, seconds)
