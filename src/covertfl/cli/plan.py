"""The command `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covertfl.cli.options import JsonOption, PresetOption, ProblemArgument, load_problem
from covertfl.cli.output import print_json, print_remark
from covertfl.cli.progress import show_progress
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from covertfl.decision.problem import FiniteHorizon, QueueProblem
    from covertfl.decision.problem_file import LoadedProblem
    from covertfl.planning.exposure import ExposurePlan
    from covertfl.planning.horizon import HorizonPlan
    from covertfl.planning.queue import QueuePlan


def plan(
    problem: ProblemArgument = None,
    preset: PresetOption = None,
    exposure: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Find the limit or scale that leads to this share of true queries.",
        ),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw the plan's curves into this folder.")
    ] = None,
    gap: Annotated[
        float, typer.Option(help="f(x_1) - f*, the initial gap to the optimum, for --epsilon.")
    ] = 1.0,
    noise: Annotated[
        float, typer.Option(help="L * sigma^2, smoothness times noise bound, for --epsilon.")
    ] = 1.0,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Also print the updates needed for this expected squared gradient norm."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampled bounds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compute which updates, rounds and exposure are possible.

    For a horizon: the probability of finishing covertly, the rounds needed, and the success of the
    best eavesdropper that knows the policy.  For a queue: stability, the least exposure, and costs
    as the limit varies.

    PROBLEM.TOML describes the oracle, the costs and either a queue or a horizon; `covertfl presets
    sound/main` prints such a file.

    Example: covertfl plan --preset sound/main
    """
    from covertfl.planning.updates import bound_updates

    loaded = load_problem(problem, preset)
    updates = None if epsilon is None else (epsilon, *bound_updates(gap, noise, epsilon))
    with show_progress("planning"):
        found = _make_plan(loaded, seed)
        setting = None if exposure is None else _find_setting(loaded.problem, exposure)
    if as_json:
        print_json(_describe(found, setting, updates))
    else:
        _print(found, setting, updates)
    if plots is not None:
        _draw(found, plots)


def _make_plan(loaded: LoadedProblem, seed: int) -> HorizonPlan | QueuePlan:
    import numpy as np

    from covertfl.decision.problem import FiniteHorizon
    from covertfl.planning.horizon import plan_horizon
    from covertfl.planning.queue import plan_queue

    if not isinstance(loaded.problem, FiniteHorizon):
        return plan_queue(loaded.problem)
    generator = np.random.default_rng(seed)
    try:
        return plan_horizon(loaded.problem, generator=generator, evidence=loaded.evidence)
    except InvalidInput as error:
        raise InvalidInput(f"{loaded.name}: [oracle] {error}") from error


def _find_setting(problem: FiniteHorizon | QueueProblem, exposure: float) -> ExposurePlan:
    from covertfl.decision.problem import FiniteHorizon
    from covertfl.planning.exposure import find_limit_for_exposure, find_scale_for_exposure

    if isinstance(problem, FiniteHorizon):
        return find_scale_for_exposure(problem, exposure)
    return find_limit_for_exposure(problem, exposure)


Updates = tuple[float, float | None, float | None]


def _describe(
    found: HorizonPlan | QueuePlan, setting: ExposurePlan | None, updates: Updates | None
) -> dict[str, Any]:
    from covertfl.display.as_json import describe_exposure, describe_plan

    content = describe_plan(found)
    if setting is not None:
        content["exposure"] = describe_exposure(setting)
    if updates is not None:
        content["updates_needed"] = {"decreasing_step": updates[1], "constant_step": updates[2]}
    return content


def _print(
    found: HorizonPlan | QueuePlan, setting: ExposurePlan | None, updates: Updates | None
) -> None:
    from covertfl.display.plan_tables import render_exposure, render_plan, render_updates_needed
    from covertfl.display.tables import print_result

    print_result(render_plan(found))
    if setting is not None:
        print_result(render_exposure(setting))
    if updates is not None:
        print_result(render_updates_needed(*updates))


def _draw(found: HorizonPlan | QueuePlan, folder: Path) -> None:
    from covertfl.display.plan_plots import plot_plan
    from covertfl.display.plots import save_figure

    folder.mkdir(parents=True, exist_ok=True)
    figures = plot_plan(found)
    for name, figure in figures.items():
        save_figure(figure, folder / name)
    if not figures:
        print_remark("the queue cannot be kept up with, so there is no frontier to draw")
