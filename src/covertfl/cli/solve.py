"""The command `solve`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption, PresetOption, ProblemArgument, load_problem
from covertfl.cli.output import print_json
from covertfl.cli.progress import show_progress

if TYPE_CHECKING:
    from covertfl.api.solution import Outcome


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
    from covertfl.api import solution as outcomes

    loaded = load_problem(problem, preset)
    with show_progress("solving") as on_progress:
        if method is Method.SPGA:
            outcome = outcomes.solve_by_search(
                loaded.problem, seed=seed, iterations=iterations, runs=runs, on_progress=on_progress
            )
        elif method is Method.LP:
            outcome = outcomes.solve_by_programme(loaded.problem, loaded.name, on_progress)
        else:
            outcome = outcomes.solve_exactly(loaded.problem, on_progress)
    _show(outcome, policy_out=policy_out, plot=plot, as_json=as_json)


def _show(outcome: Outcome, *, policy_out: Path | None, plot: Path | None, as_json: bool) -> None:
    """Write the files that were asked for, then print."""
    if policy_out is not None:
        from covertfl.decision.policy_file import write_policy

        write_policy(policy_out, outcome.make_policy())
    if plot is not None:
        outcome.draw(plot)
    if as_json:
        print_json(outcome.as_json())
    else:
        from covertfl.display.tables import print_result

        print_result(outcome.for_people())
