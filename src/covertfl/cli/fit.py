"""The command `fit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covertfl.cli.options import JsonOption
from covertfl.cli.output import print_json
from covertfl.cli.progress import show_progress
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from covertfl.fitting.oracle import FittedOracle
    from covertfl.fitting.policy import LogPolicy

CutsOption = Annotated[
    str | None,
    typer.Option(metavar="8,15", help="Values of the column at which a better state begins."),
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
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PROBLEM.TOML", help="Write a problem file."),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="POLICY.JSON", help="Search for a policy on the log; write it here."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations of the search.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, if a horizon is written.")] = 45,
    updates: Annotated[int, typer.Option(min=1, help="Updates, if a horizon is written.")] = 16,
    as_json: JsonOption = False,
) -> None:
    """Fit the oracle to a log of past rounds, with 95% intervals.

    LOG.CSV has the columns round, clients, examples and, if known, success and arrival.  With -o a
    problem file is written for `plan` and `solve`: a queue if the log has arrivals, else a horizon.
    With --policy the structured policy gradient searches for a policy on the recorded rounds,
    without using the fitted probabilities.

    Example: covertfl fit log.csv --min-examples 6800 -o problem.toml
    """
    from covertfl.fitting.log import read_log
    from covertfl.fitting.oracle import fit_oracle

    fitted = fit_oracle(
        read_log(log),
        column=column,
        num_states=states,
        cuts=None if cuts is None else _parse_cuts(cuts),
        min_examples=min_examples,
    )
    if output is not None:
        _write_problem(fitted, output, rounds, updates)
    found = None
    if policy is not None:
        found = _search_policy(fitted, policy, (seed, iterations, rounds, updates))
    if as_json:
        _print_as_json(fitted, found)
    else:
        _print(fitted, output, found, policy)


def _parse_cuts(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--cuts must be numbers separated by commas, got {text!r}") from error


def _write_problem(fitted: FittedOracle, output: Path, rounds: int, updates: int) -> None:
    from covertfl.files.atomic import write_atomically
    from covertfl.fitting.problem import format_problem

    with show_progress("fitting"):
        content = format_problem(fitted, rounds=rounds, updates=updates)
    write_atomically(output, content)


def _search_policy(
    fitted: FittedOracle, path: Path, numbers: tuple[int, int, int, int]
) -> LogPolicy:
    """Search with the seed, iterations, rounds and updates given, and write the policy."""
    from covertfl.decision.policy_file import write_policy
    from covertfl.fitting.policy import search_on_log

    seed, iterations, rounds, updates = numbers
    with show_progress("searching") as on_progress:
        found = search_on_log(
            fitted,
            seed=seed,
            iterations=iterations,
            rounds=rounds,
            updates=updates,
            on_progress=on_progress,
        )
    write_policy(path, found.policy)
    return found


def _print_as_json(fitted: FittedOracle, found: LogPolicy | None) -> None:
    from covertfl.display.as_json import describe_fit

    described = describe_fit(fitted)
    if found is not None:
        described["policy"] = found.describe()
    print_json(described)


def _print(
    fitted: FittedOracle, output: Path | None, found: LogPolicy | None, policy: Path | None
) -> None:
    from covertfl.display.fit_tables import render_fit
    from covertfl.display.tables import print_result
    from covertfl.fitting.problem import format_oracle_section

    print_result(render_fit(fitted))
    if output is None:
        print(f"\n{format_oracle_section(fitted)}", end="")
    else:
        print(f"\nWritten to {output}; next: covertfl plan {output}")
    if found is not None:
        print(f"\n{found.sentence}  Policy written to {policy}.")
