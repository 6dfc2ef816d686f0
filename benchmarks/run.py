"""Time covertfl beside other solvers: `python benchmarks/run.py [--quick] [--write FILE]`.

`make bench` installs the other solvers and runs this.  The exit status is 1 where two solvers
disagree or a target is missed, 4 where a solver is not installed.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import average_cost_against_mdpsolver
import exact_against_highs
import exact_growth
import horizon_against_pymdptoolbox
import spga_against_loops
from machine import describe_machine, describe_versions, is_busy
from rich.console import Console
from section import Section, render_markdown, render_terminal

from covertfl.errors import Missing


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="time covertfl beside other solvers")
    parser.add_argument("--quick", action="store_true", help="small sizes only, about a minute")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the report as Markdown")
    parser.add_argument(
        "--peer-limit",
        type=float,
        default=average_cost_against_mdpsolver.PEER_LIMIT,
        metavar="SECONDS",
        help="end a run of MDPSolver after this long (default %(default)g)",
    )
    return parser.parse_args()


def list_benchmarks(asked: argparse.Namespace) -> tuple[Callable[[], Section], ...]:
    """The comparisons in the order of the report."""
    quick = asked.quick
    return (
        lambda: exact_against_highs.measure(quick=quick),
        lambda: average_cost_against_mdpsolver.measure(quick=quick, limit=asked.peer_limit),
        lambda: exact_growth.measure(quick=quick),
        lambda: horizon_against_pymdptoolbox.measure(quick=quick),
        lambda: spga_against_loops.measure(quick=quick),
    )


def write_report(path: Path, sections: list[Section], *, was_busy: bool) -> None:
    """Write docs/benchmarks.md."""
    command = shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]])
    busy = (
        "  Other programs were busy on it when the run began, so expect noise." if was_busy else ""
    )
    parts = [
        "# Benchmarks",
        f"Made on {datetime.date.today().isoformat()} by `{command}` in the environment that "
        "`make bench` sets up; do not edit by hand.",
        f"Machine: {describe_machine()}.{busy}  Versions: {describe_versions()}.",
        "A time is the best of several repeats, with the median in brackets where the two differ.  "
        "Runs that only load code and warm caches are not counted.  A ratio is the other "
        "solver's best time divided by covertfl's, both from this run; above 1 covertfl is "
        "faster.",
        *map(render_markdown, sections),
    ]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main() -> int:
    """Run everything, print it, write it where asked."""
    asked = parse_arguments()
    console, was_busy = Console(), is_busy()
    console.print(f"{describe_machine()}\n{describe_versions()}\n", highlight=False)
    sections = []
    try:
        for measure in list_benchmarks(asked):
            with Console(stderr=True).status("measuring"):
                sections.append(measure())
            console.print(render_terminal(sections[-1]), highlight=False)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return missing.exit_status
    if asked.write is not None:
        write_report(asked.write, sections, was_busy=was_busy)
    return 0 if all(check.is_met for section in sections for check in section.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
