"""The command `plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption, PresetOption, ProblemArgument, read_problem_argument
from covertfl.cli.output import print_remark, print_result, show_progress

if TYPE_CHECKING:
    from covertfl.api.plan import Plan

ExposureOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Find the limit or scale that leads to this share of true queries."
    ),
]


def plan(
    problem: ProblemArgument = None,
    preset: PresetOption = None,
    exposure: ExposureOption = None,
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
    as the limit varies.  For both: what exchangeable trajectories cost, in rounds or in load.

    PROBLEM.TOML describes the oracle, the costs and either a queue or a horizon; `covertfl presets
    sound/main` prints such a file.

    Example: covertfl plan --preset sound/main
    """
    from covertfl.api.plan import plan as make_plan

    loaded = read_problem_argument(problem, preset)
    with show_progress("planning"):
        found = make_plan(
            loaded, exposure=exposure, epsilon=epsilon, gap=gap, noise=noise, seed=seed
        )
    print_result(found, as_json=as_json)
    if plots is not None:
        _draw(found, plots)


def _draw(found: Plan, folder: Path) -> None:
    """Draw the curves of a plan into a folder."""
    from covertfl.display.plots import save_figure

    folder.mkdir(parents=True, exist_ok=True)
    figures = found.figures()
    for name, figure in figures.items():
        save_figure(figure, folder / f"{name}.png")
    if not figures:
        print_remark("more updates arrive than can be done, so there is no frontier to draw")
