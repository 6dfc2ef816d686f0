"""Commands on problems: `solve`, `plan`, `fit` and `presets`."""

from __future__ import annotations

import enum
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.terminal import (
    JsonOption,
    PresetOption,
    ProblemArgument,
    print_json,
    print_remark,
    print_result,
    read_problem_argument,
    show_progress,
)
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from covertfl.api.fit import Fit
    from covertfl.api.plan import Plan
    from covertfl.fitting.policy import LogPolicy


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


CutsOption = Annotated[
    str | None,
    typer.Option(metavar="8,15", help="Values of the column at which a better state begins."),
]


class Gaps(StrEnum):
    """What is done about missing rounds and blank cells of a log."""

    refuse = "refuse"
    skip = "skip"


GapsOption = Annotated[
    Gaps,
    typer.Option(help="skip: leave out missing rounds and blank cells, count no move across them."),
]


OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="PROBLEM.TOML", help="Write a problem file."),
]
PolicyOption = Annotated[
    Path | None,
    typer.Option(metavar="POLICY.JSON", help="Search for a policy on the log; write it here."),
]


def fit(
    log: Annotated[Path, typer.Argument(metavar="LOG.CSV", help="Participation log.")],
    states: Annotated[
        int | None, typer.Option(help="Number of states, formed by quantiles (default 3).")
    ] = None,
    cuts: CutsOption = None,
    column: Annotated[str, typer.Option(help="Numeric column that forms the states.")] = "clients",
    min_examples: Annotated[
        float | None, typer.Option(help="Examples from which a round counts as a success.")
    ] = None,
    gaps: GapsOption = Gaps.refuse,
    output: OutputOption = None,
    policy: PolicyOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of the search.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, if a horizon is written.")] = 45,
    updates: Annotated[int, typer.Option(min=1, help="Updates, if a horizon is written.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Fit the oracle to a log of past rounds, with 95% intervals.

    LOG.CSV has the columns round, clients, examples and, if known, success and arrival.  With -o a
    problem file is written for `plan`, `solve` and `train`: a queue if the log has arrivals, else a
    horizon.  With --policy the structured policy gradient searches for a policy on the recorded
    rounds, without using the fitted probabilities.

    Example: covertfl fit log.csv --min-examples 6800 -o problem.toml
    """
    from covertfl.api.fit import fit as fit_log

    fitted = fit_log(
        log,
        states=states,
        cuts=None if cuts is None else _parse_cuts(cuts),
        column=column,
        min_examples=min_examples,
        gaps=gaps.value,
    )
    if output is not None:
        with show_progress("fitting"):
            fitted.save_problem(output, rounds=rounds, updates=updates)
    found = None
    if policy is not None:
        from covertfl.decision.policy_file import write_policy

        numbers = {"seed": seed, "iterations": iterations, "rounds": rounds, "updates": updates}
        with show_progress("searching") as on_progress:
            found = fitted.search_policy(**numbers, on_progress=on_progress)
        write_policy(policy, found.policy, fitted.details.meaning)
    if as_json:
        searched = {} if found is None else {"policy": found.describe()}
        print_json({**fitted.to_dict(), **searched})
    else:
        _print_fit(fitted, output, found, policy)


def _parse_cuts(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--cuts must be numbers separated by commas, got {text!r}") from error


def _print_fit(
    fitted: Fit, output: Path | None, found: LogPolicy | None, policy: Path | None
) -> None:
    from covertfl.display.tables import print_tables
    from covertfl.fitting.problem import format_oracle_section, format_states_section

    print_tables(fitted)
    if output is None:
        sections = (format_oracle_section, format_states_section)
        print("", *(section(fitted.details) for section in sections), sep="\n", end="")
    else:
        print(f"\nWritten to {output}; next: covertfl plan {output}")
    if found is not None:
        print(f"\n{found.sentence}  Policy written to {policy}.")
        if fitted.details.skipped.sentence is not None:
            print("The search replays the rounds as if there were no gaps between them.")


def presets(
    name: Annotated[
        str | None, typer.Argument(metavar="READING/NAME", help="Print the file of this one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the shipped problems, or print one of them.

    READING is the reading of the paper (sound, paper-text or paper-code), NAME the problem.

    Example: covertfl presets sound/queue > problem.toml
    """
    from covertfl.decision.problem_file import list_presets, read_preset_text

    if name is not None:
        text = read_preset_text(name)
        if as_json:
            import tomllib

            print_json(tomllib.loads(text))
        else:
            print(text, end="")
    elif as_json:
        print_json({"presets": list_presets()})
    else:
        print("\n".join(list_presets()))
