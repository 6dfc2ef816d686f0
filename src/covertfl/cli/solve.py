"""The command `solve`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption, PresetOption, ProblemArgument, read_problem_argument
from covertfl.cli.output import print_result, show_progress

if TYPE_CHECKING:
    pass


class Method(enum.StrEnum):
    """The methods of `solve`."""

    EXACT = "exact"
    LP = "lp"
    SPGA = "spga"


def solve(
    problem: ProblemArgument = None,
    preset: PresetOption = None,
    method: Annotated[
        Method,
        typer.Option(
            help="exact: dynamic programming; lp: a linear program, as a check (queues only); "
            "spga: the structured policy gradient."
        ),
    ] = Method.EXACT,
    seed: Annotated[int, typer.Option(min=0, help="Seed of spga.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of spga.")] = 2000,
    runs: Annotated[int, typer.Option(min=1, help="Runs of spga; the best is kept.")] = 1,
    policy_out: Annotated[
        Path | None, typer.Option(metavar="POLICY.JSON", help="Write the policy to this file.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the policy (png, svg or pdf).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the optimal policy and what is proven about it.

    PROBLEM.TOML describes the oracle, the costs and either a queue or a horizon; `covertfl presets
    sound/queue` prints such a file.

    Example: covertfl solve --preset sound/queue --policy-out policy.json
    """
    from covertfl.api.solve import solve as solve_problem

    loaded = read_problem_argument(problem, preset)
    with show_progress("solving") as on_progress:
        numbers = {"seed": seed, "iterations": iterations, "runs": runs}
        solution = solve_problem(loaded, method.value, **numbers, on_progress=on_progress)
    if policy_out is not None:
        solution.save_policy(policy_out)
    if plot is not None:
        from covertfl.display.plots import save_figure

        save_figure(solution.plot(), plot)
    print_result(solution, as_json=as_json)
