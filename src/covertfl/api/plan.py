"""`plan`: what a problem allows, in updates, rounds and exposure, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.api.problem import ProblemSource, resolve_problem
from covertfl.api.result import Result
from covertfl.decision.arguments import read_count, read_number
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.problem_file import LoadedProblem
from covertfl.errors import InvalidInput
from covertfl.planning.exposure import (
    ExposurePlan,
    find_limit_for_exposure,
    find_scale_for_exposure,
)
from covertfl.planning.horizon import HorizonPlan, plan_horizon
from covertfl.planning.queue import QueuePlan, plan_queue
from covertfl.planning.updates import bound_updates

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True)
class UpdatesNeeded:
    """Updates that reach a given accuracy (Theorem 1), None where no number does.

    Parameters
    ----------
    epsilon : bound on the expected squared norm of the gradient
    decreasing_step : with steps 1/m (formula F1)
    constant_step : with the best constant step (formula F2)
    """

    epsilon: float
    decreasing_step: float | None
    constant_step: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Result):
    """What a problem allows.

    Parameters
    ----------
    details : every figure: completion, rounds needed and the best eavesdropper of a horizon;
        stability, least exposure and frontier of a queue; of both what exchangeable trajectories
        cost
    exposure : the setting that reaches a given share of learning queries, None if not asked for
    updates_needed : for a given accuracy, None if not asked for
    """

    details: HorizonPlan | QueuePlan
    exposure: ExposurePlan | None
    updates_needed: UpdatesNeeded | None

    @property
    def problem(self) -> Problem:
        """Return the problem that was planned for."""
        return self.details.problem

    @property
    def advice(self) -> str:
        """Return the plan in one sentence."""
        return self.details.advice

    def figures(self) -> dict[str, Figure]:
        """Return all figures of the plan by name, none for a queue without a frontier."""
        from covertfl.display.plots import plot_plan

        return {
            name.removesuffix(".png"): figure for name, figure in plot_plan(self.details).items()
        }

    def plot(self) -> Figure:
        """Return the main figure: completion by rounds, or the frontier of a queue."""
        figures = self.figures()
        if not figures:
            raise InvalidInput("more updates arrive than can be done: there is no frontier to draw")
        return next(iter(figures.values()))

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl plan --json` prints."""
        from covertfl.display.as_json import describe_exposure, describe_plan

        described = describe_plan(self.details)
        if self.exposure is not None:
            described["exposure"] = describe_exposure(self.exposure)
        if self.updates_needed is not None:
            described["updates_needed"] = {
                "decreasing_step": self.updates_needed.decreasing_step,
                "constant_step": self.updates_needed.constant_step,
            }
        return described

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        from covertfl.display.plan_tables import render_exposure, render_plan, render_updates_needed

        parts = [render_plan(self.details)]
        if self.exposure is not None:
            parts.append(render_exposure(self.exposure))
        if self.updates_needed is not None:
            needed = self.updates_needed
            parts.append(
                render_updates_needed(needed.epsilon, needed.decreasing_step, needed.constant_step)
            )
        return Group(*parts)

    def _facts(self) -> Mapping[str, str]:
        found = self.details
        if isinstance(found, QueuePlan):
            least = found.least_exposure
            return {
                "stable": "yes" if found.stable else "no",
                "load": f"{found.load:g} of {found.service_capacity:.4g} updates a round",
                "least exposure": "none" if least is None else f"{least:.1%}",
            }
        needed = found.rounds_needed[0.95]
        return {
            "horizon": f"{found.problem.updates} updates in {found.problem.rounds} rounds",
            "covert completion": " ".join(f"{prob:.0%}" for prob in found.minority),
            "rounds for 95%": "out of reach" if needed is None else str(needed),
            "best eavesdropper": f"{found.best_eavesdropper.value:.0%}",
        }


def plan(
    problem: ProblemSource,
    *,
    exposure: float | None = None,
    epsilon: float | None = None,
    gap: float = 1.0,
    noise: float = 1.0,
    seed: int = 0,
) -> Plan:
    """Return what a problem allows: completion, rounds, exposure, the best eavesdropper.

    Parameters
    ----------
    problem : a problem, the name of a preset or the path of a problem file
    exposure : share of learning queries in (0, 1) to find a setting for: the limit of a queue, the
        scale of a horizon's learning cost
    epsilon : accuracy to count updates for (Theorem 1), with `gap` = f(x_1) - f* and
        `noise` = L sigma^2
    seed : of the sampled bounds

    Raises
    ------
    InvalidInput
        if the problem or an argument is not valid
    NoSolution
        if no setting has the exposure
    """
    loaded = resolve_problem(problem)
    seed = read_count(seed, "seed", least=0)
    needed = None if epsilon is None else _count_updates(gap, noise, epsilon)
    return Plan(_plan(loaded, seed), _find_setting(loaded.problem, exposure), needed)


def _plan(loaded: LoadedProblem, seed: int) -> HorizonPlan | QueuePlan:
    if not isinstance(loaded.problem, FiniteHorizon):
        return plan_queue(loaded.problem)
    generator = np.random.default_rng(seed)
    try:
        return plan_horizon(loaded.problem, generator=generator, evidence=loaded.evidence)
    except InvalidInput as error:
        raise InvalidInput(f"{loaded.name}: [oracle] {error}") from error


def _find_setting(problem: Problem, exposure: float | None) -> ExposurePlan | None:
    if exposure is None:
        return None
    target = read_number(exposure, "exposure")
    if isinstance(problem, FiniteHorizon):
        return find_scale_for_exposure(problem, target)
    return find_limit_for_exposure(problem, target)


def _count_updates(gap: float, noise: float, epsilon: float) -> UpdatesNeeded:
    target = read_number(epsilon, "epsilon")
    bounds = bound_updates(read_number(gap, "gap"), read_number(noise, "noise"), target)
    return UpdatesNeeded(target, *bounds)
