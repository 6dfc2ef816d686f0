"""Compare covertfl with others: `python benchmarks/run.py [--quick] [--only NAME] [--write FILE]`.

A section is written as soon as it is measured, those of Flower into scale.md beside FILE as well.
With `--history FILE` the ratios are compared with those of the last run and appended to the file.

`make bench` installs the other solvers and runs this.  A section that fails is left out.  The exit
status is 4 if one needs a program that is not installed, or `--only gpu` finds no GPU, and 1 if
another failed, two solvers disagree or a target is missed.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import average_cost_against_mdpsolver
import cnn_against_loop
import cnn_on_gpu
import exact_against_highs
import exact_growth
import frozen_oracles
import horizon_against_pymdptoolbox
import planner_against_pymdptoolbox
import random_queues
import service_load
import spga_against_loops
import training_against_peers
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
from machine import describe_machine, describe_versions, is_busy, list_versions
from measurement import load_peer
from rich.console import Console
from section import Section, render_findings, render_markdown, render_terminal, write_block

from covertfl.errors import CovertflError
from covertfl.files.atomic import write_atomically


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="compare the speed of covertfl with other solvers")
    parser.add_argument("--quick", action="store_true", help="small sizes only, about a minute")
    parser.add_argument("--only", choices=BENCHMARKS, help="measure one section")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the measured sections into this report"
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help="compare the ratios with the last run in this file, and append them",
    )
    parser.add_argument(
        "--peer-limit",
        type=float,
        default=average_cost_against_mdpsolver.PEER_LIMIT,
        metavar="SECONDS",
        help="time limit of one run of MDPSolver (default %(default)g)",
    )
    return parser.parse_args()


def measure_flower(name: str, asked: argparse.Namespace) -> Section:
    """Measure a table of docs/scale.md."""
    load_peer("flwr", "flwr")
    import flower_costs

    return flower_costs.measure(name, quick=asked.quick)


# Also blocks of docs/scale.md.
SCALE = ("flower-rounds", "flower-own", "flower-many")
BENCHMARKS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "highs": lambda asked: exact_against_highs.measure(quick=asked.quick),
    "mdpsolver": lambda asked: average_cost_against_mdpsolver.measure(
        quick=asked.quick, limit=asked.peer_limit
    ),
    "growth": lambda asked: exact_growth.measure(quick=asked.quick),
    "frozen": lambda asked: frozen_oracles.measure(quick=asked.quick),
    "random": lambda asked: random_queues.measure(quick=asked.quick),
    "pymdptoolbox": lambda asked: horizon_against_pymdptoolbox.measure(quick=asked.quick),
    "planner": lambda asked: planner_against_pymdptoolbox.measure(quick=asked.quick),
    "spga": lambda asked: spga_against_loops.measure(quick=asked.quick),
    "training": lambda asked: training_against_peers.measure(quick=asked.quick),
    "service": lambda asked: service_load.measure(quick=asked.quick),
    "cnn": lambda asked: cnn_against_loop.measure(quick=asked.quick),
    "gpu": lambda asked: cnn_on_gpu.measure(quick=asked.quick),
    **{name: partial(measure_flower, name) for name in SCALE},
}

HEADER = """# Benchmarks

`make bench` measures everything and writes this page and the tables of [scale.md](scale.md).  To
measure one section again, use `python benchmarks/run.py --only NAME --write docs/benchmarks.md` in
the environment that `make bench` sets up.  The section on a GPU is measured where there is one;
`--only gpu` needs none of the other programs.  Do not edit by hand.

A time is the best of several repeats, with the median in brackets if the two differ.  Warm-up runs
are not counted.  A ratio is the other program's best time divided by covertfl's, both from the same
run; above 1 covertfl is faster.  `make bench` appends the ratios to `benchmarks/history.jsonl` and
compares them with those of the last run on a quiet machine: better, same or worse, with a tolerance
of 15%.
"""


def describe_run(*, was_busy: bool) -> str:
    """Describe when and where a section was measured."""
    busy = (
        "  Other programs used the machine at the same time, so expect noise." if was_busy else ""
    )
    return (
        f"Measured on {datetime.date.today().isoformat()}, {describe_machine()}.{busy}  "
        f"Versions: {describe_versions()}."
    )


def describe_entry(sections: dict[str, Section], *, busy: list[str]) -> Entry:
    """Return this run's entry of the history."""
    return make_entry(
        sections,
        date=datetime.date.today().isoformat(),
        machine=describe_machine(),
        busy=busy,
        versions=list_versions(),
    )


def merge_report(before: str, sections: dict[str, str]) -> str:
    """Return the report with the given sections, by heading, replaced or added."""
    kept = {part.splitlines()[0]: part.strip() for part in before.split("\n## ")[1:]}
    return "\n\n## ".join([HEADER.strip(), *(kept | sections).values()]) + "\n"


def write_section(path: Path, section: Section, made: str, block: str | None) -> None:
    """Write a section into the report, where others stay as they are.

    Parameters
    ----------
    made : when and where it was measured
    block : its table is written into this block of scale.md as well, if that page is there
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    heading, rest = render_markdown(section).removeprefix("## ").split("\n", 1)
    write_atomically(path, merge_report(before, {heading: f"{heading}\n\n{made}\n{rest}".strip()}))
    if block is not None and (page := path.with_name("scale.md")).exists():
        write_block(page, block, f"{made}\n\n{render_findings(section)}")


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
                section = BENCHMARKS[name](asked)
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
            if asked.write is not None:
                block = name if name in SCALE and not asked.quick else None
                write_section(asked.write, sections[name], describe_run(was_busy=was_busy), block)
    finally:  # also if interrupted
        if asked.history is not None and sections:
            console.print(render_changes(changes) if changes else "No earlier run to compare with.")
            append_entry(asked.history, describe_entry(sections, busy=busy))
    checks = [check for section in sections.values() for check in section.checks]
    return max([*failed, *(int(not check.is_met) for check in checks)], default=0)


if __name__ == "__main__":
    sys.exit(main())
