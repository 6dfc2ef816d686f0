"""The command `fit`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json, show_progress
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from covertfl.api.fit import Fit
    from covertfl.fitting.policy import LogPolicy


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
