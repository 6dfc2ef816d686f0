"""Compare covertfl with others: `python benchmarks/run.py [--quick | --write] [--only NAME]`.

With --write each section is written into its block of docs/benchmarks.md, those of Flower into
docs/scale.md, as soon as it is measured.  With `--history FILE` the ratios are compared with those
of the last run and appended to the file.

`make bench` installs the other solvers and runs this.  A section that fails is left out.  The exit
status is 4 if one needs a program that is not installed, or `--only gpu` finds no GPU, and 1 if
another failed, two solvers disagree or a target is missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from cnn_on_gpu import NoGpu
from history import (
    Change,
    Entry,
    add_check,
    append_entry,
    compare_section,
    make_entry,
    read_history,
    render_changes,
)
from measurement import describe_machine, describe_versions, is_busy, list_versions
from rich.console import Console
from section import DOCUMENTS, Section, render_markdown, render_terminal, write_block

from covertfl import CovertflError, Missing

# Sections by name, each with its file and function.
BENCHMARKS = {
    "highs": "exact_against_highs.measure",
    "mdpsolver": "average_cost_against_mdpsolver.measure",
    "growth": "exact_growth.measure",
    "random": "random_queues.measure",
    "pymdptoolbox": "horizon_against_pymdptoolbox.measure",
    "planner": "horizon_against_pymdptoolbox.measure_plans",
    "spga": "spga_against_loops.measure",
    "training": "training_against_peers.measure",
    "service": "service_load.measure",
    "cnn": "training_against_peers.measure_networks",
    "gpu": "cnn_on_gpu.measure",
    "flower-rounds": "flower_costs.measure_rounds",
    "flower-own": "flower_costs.measure_overhead",
    "flower-many": "flower_costs.measure_scale",
}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="compare the speed of covertfl with other solvers")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="small sizes only, about a minute")
    extent.add_argument("--write", action="store_true", help="write the sections into the docs")
    parser.add_argument("--only", choices=BENCHMARKS, help="measure one section")
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="compare the ratios with the last run in this file, and append them",
    )
    return parser.parse_args()


def measure_section(name: str, *, quick: bool) -> Section:
    """Measure one section."""
    file, _, function = BENCHMARKS[name].partition(".")
    try:
        module = importlib.import_module(file)
    except ModuleNotFoundError as error:
        raise Missing(f"{error.name} is not installed; `make bench` installs it") from error
    section: Section = getattr(module, function)(quick=quick)
    return section


def write_section(name: str, section: Section, *, was_busy: bool) -> None:
    """Write a section into its block, with when and where it was measured."""
    busy = (
        "  Other programs used the machine at the same time, so expect noise." if was_busy else ""
    )
    made = (
        f"Measured on {datetime.date.today().isoformat()}, {describe_machine()}.{busy}  "
        f"Versions: {describe_versions()}."
    )
    page = DOCUMENTS / ("scale.md" if name.startswith("flower-") else "benchmarks.md")
    write_block(page, name, f"{made}\n\n{render_markdown(section)}")


def describe_entry(sections: dict[str, Section], *, busy: list[str]) -> Entry:
    """Return this run's entry of the history."""
    return make_entry(
        sections,
        date=datetime.date.today().isoformat(),
        machine=describe_machine(),
        busy=busy,
        versions=list_versions(),
    )


def measure_sections(
    asked: argparse.Namespace, failed: list[int]
) -> Iterator[tuple[str, Section, bool]]:
    """Measure one section after another; yield each with whether the machine was busy before.

    Those that fail add their exit status to a list.
    """
    for name in [asked.only] if asked.only else BENCHMARKS:
        was_busy = is_busy()
        try:
            with Console(stderr=True).status(f"measuring {name}"):
                section = measure_section(name, quick=asked.quick)
        except (CovertflError, RuntimeError, OSError, ValueError, LookupError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            if asked.only or not isinstance(error, NoGpu):
                failed.append(getattr(error, "exit_status", 1))
        else:
            yield name, section, was_busy


def main() -> int:
    """Run the benchmarks, print the results, and write them if asked."""
    asked = parse_arguments()
    console = Console()
    console.print(f"{describe_machine()}\n{describe_versions()}\n", highlight=False)
    history = read_history(asked.history) if asked.history else []
    sections: dict[str, Section] = {}
    changes: list[Change] = []
    failed: list[int] = []
    busy: list[str] = []
    try:
        for name, measured, was_busy in measure_sections(asked, failed):
            busy += [name] if was_busy else []
            found = compare_section(name, measured, history)
            changes += found
            sections[name] = add_check(measured, [] if was_busy else found)
            console.print(render_terminal(sections[name]), highlight=False)
            if asked.write:
                write_section(name, sections[name], was_busy=was_busy)
    finally:  # also if interrupted
        if asked.history is not None and sections:
            console.print(render_changes(changes) if changes else "No earlier run to compare with.")
            append_entry(asked.history, describe_entry(sections, busy=busy))
    checks = [check for section in sections.values() for check in section.checks]
    return max([*failed, *(int(not check.is_met) for check in checks)], default=0)


if __name__ == "__main__":
    sys.exit(main())
