"""Measure what each change to Algorithm 1 is worth.

    python benchmarks/spga_ablation.py [--write FILE] [--pictures]

Each change is undone alone, with the others kept.  With `--write` the table is written into the
file between two marker comments; with `--pictures` the figures of docs/spga.md are drawn instead.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from machine import describe_machine
from reference_problem import make_queue

from covertfl.decision.problem import QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.display.curves import plot_convergence
from covertfl.display.plots import save_figure
from covertfl.errors import CovertflError
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.rules import extract_rules
from covertfl.solvers.spga.score import LIMIT_SLACK, measure_gap
from covertfl.solvers.spga.search import SpgaSearch, simulate_source, solve_spga
from covertfl.solvers.spga.settings import Settings, default_settings, printed_settings

BEGIN, END = "<!-- ablation: begin -->", "<!-- ablation: end -->"
RUNS, SOUND_RUNS = 20, 10
SEED = 1
# A policy this many times above the optimum or the limit counts as given up.
HOPELESS = 10.0
PICTURE_RUNS = 12
TRACKING_ITERATIONS, CHANGE_AT, TRACKING_ROLLOUT = 4000, 2000, 1000
# What undoes each change to Algorithm 1.
ABLATIONS: dict[str, Callable[[Settings], dict[str, Any]]] = {
    "rademacher signs": lambda _: {"rademacher": False},
    "common random numbers": lambda _: {"common_numbers": False},
    "carrying the backlog over": lambda s: {
        "carries_over": False,
        "start_backlog": int(s.largest_threshold),
    },
    "normalised steps and momentum": lambda _: {"normalises": False},
    "averaged iterates": lambda _: {"averages_from": 1.0},
    "long rollouts": lambda _: {"rollout": 100},
    "falling temperature": lambda s: {"last_temperature": s.first_temperature},
}


@dataclass(frozen=True)
class Case:
    """A problem to search on, and the same problem with a numeric capacity for evaluation."""

    problem: QueueProblem
    bounded: QueueProblem
    runs: int


@dataclass(frozen=True)
class Outcome:
    """Runs of one variant on one problem.

    Parameters
    ----------
    gaps : relative gaps of the runs that did not give up
    learning : their learning costs divided by the limit
    runs : number of all runs
    """

    gaps: tuple[float, ...]
    learning: tuple[float, ...]
    runs: int

    def cells(self) -> tuple[str, str, str]:
        """Return mean gap, mean learning cost over the limit, and how many runs meet it."""
        if not self.gaps:
            return "gives up", "", f"0 of {self.runs}"
        lost = self.runs - len(self.gaps)
        gap = f"{np.mean(self.gaps):.1%}"
        if lost:
            gap = f"{lost} of {self.runs} give up, else {gap}"
        kept = sum(cost <= 1.0 + LIMIT_SLACK for cost in self.learning)
        return gap, f"{np.mean(self.learning):.2f}", f"{kept} of {self.runs}"


def list_variants(case: Case) -> Iterator[tuple[str, QueueProblem, Settings]]:
    """Yield name, problem to search on and settings of each row of the table."""
    default = default_settings(case.problem)
    yield "default", case.problem, default
    for change, undo in ABLATIONS.items():
        yield f"without {change}", case.problem, replace(default, **undo(default))
    # The printed algorithm starts with a full queue, so it needs a numeric capacity.
    yield "as printed", case.bounded, printed_settings(case.bounded)


def measure_variant(case: Case, problem: QueueProblem, settings: Settings) -> Outcome:
    """Search, and score the policies by exact evaluation."""
    threads = os.cpu_count() or 1
    runs = solve_spga(problem, settings, seed=SEED, runs=case.runs, threads=threads)
    judged = [judge for judge in (_judge(case.bounded, run) for run in runs) if judge is not None]
    return Outcome(
        tuple(gap for gap, _ in judged), tuple(learning for _, learning in judged), case.runs
    )


def _judge(problem: QueueProblem, run: SpgaRun) -> tuple[float, float] | None:
    """Return the gap and the learning cost over the limit, or None if the run gave up."""
    policy = run.policy(problem)
    try:
        gap = measure_gap(problem, policy)
        learning = evaluate_queue_policy(problem, policy).learning_cost
    except CovertflError:
        return None
    share = learning / problem.limit
    return (gap, share) if gap < HOPELESS and share < HOPELESS else None


def make_cases(runs: int) -> tuple[Case, Case]:
    """Return the cases: the reference queue (deviation D17) and the preset sound/queue."""
    reference, sound = make_queue(40), load_queue("sound/queue")
    sound_runs = max(1, runs * SOUND_RUNS // RUNS)
    return Case(reference, reference, runs), Case(sound, solve_queue(sound).problem, sound_runs)


def load_queue(preset: str) -> QueueProblem:
    """Return the queue of a preset."""
    problem = read_preset(preset).problem
    if not isinstance(problem, QueueProblem):
        raise TypeError(f"{preset} is not a queue")
    return problem


def measure_table(cases: tuple[Case, ...]) -> list[tuple[str, ...]]:
    """Measure all variants on all problems; return one row per variant."""
    rows: dict[str, tuple[str, ...]] = {}
    for case in cases:
        for name, problem, settings in list_variants(case):
            started = time.perf_counter()
            cells = measure_variant(case, problem, settings).cells()
            rows[name] = (*rows.get(name, (name,)), *cells)
            print(" | ".join((name, *cells)), f"[{time.perf_counter() - started:.0f} s]")
    return list(rows.values())


def render_table(rows: list[tuple[str, ...]], cases: tuple[Case, ...]) -> str:
    """Render the table, headed by command, date and machine."""
    command = shlex.join(["python", "benchmarks/spga_ablation.py", *sys.argv[1:]])
    columns = ["variant"]
    for name in ("reference", "sound/queue"):
        columns += [f"{name}: gap", "learning / limit", "keep the limit"]
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(
        (
            f"Made on {datetime.date.today().isoformat()} by `{command}` on {describe_machine()}; "
            f"{cases[0].runs} runs on the reference queue, {cases[1].runs} on `sound/queue`, "
            f"seed {SEED}.",
            "",
            *(f"| {' | '.join(line)} |" for line in lines),
        )
    )


def write_table(path: Path, table: str) -> None:
    """Write the table between the markers of a file."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{path} must have the lines {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def draw_pictures(folder: Path) -> None:
    """Draw convergence on the reference queue, and tracking of a change (deviation D21)."""
    reference = make_queue(40)
    threads = os.cpu_count() or 1
    runs = solve_spga(
        reference, default_settings(reference), seed=SEED, runs=PICTURE_RUNS, threads=threads
    )
    figure = plot_convergence(runs, [(0, solve_queue(reference))])
    save_figure(figure, folder / "spga-convergence.png")
    before, after = (load_queue(f"sound/tracking-{when}") for when in ("before", "after"))
    tracked = [track_change(before, after, number) for number in range(PICTURE_RUNS)]
    figure = plot_convergence(
        tracked,
        [(0, solve_queue(before)), (CHANGE_AT, solve_queue(after))],
        title=f"Tracking a change at iteration {CHANGE_AT}",
    )
    save_figure(figure, folder / "spga-tracking.png")


def track_change(before: QueueProblem, after: QueueProblem, number: int) -> SpgaRun:
    """Search with a constant step while the system changes."""
    seeds = np.random.SeedSequence([SEED, number]).spawn(3)
    ours, first, second = map(np.random.default_rng, seeds)
    settings = default_settings(
        before, iterations=TRACKING_ITERATIONS, rollout=TRACKING_ROLLOUT, tracking=True
    )
    search = SpgaSearch(extract_rules(before), settings, generator=ours)
    search.iterate(simulate_source(before, settings, generator=first), CHANGE_AT)
    search.iterate(
        simulate_source(after, settings, generator=second), TRACKING_ITERATIONS - CHANGE_AT
    )
    return search.result()


def main() -> None:
    """Measure and print the table, and write it if asked; or draw the figures."""
    parser = argparse.ArgumentParser(description="measure what each change to Algorithm 1 is worth")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table into this file")
    parser.add_argument(
        "--runs",
        type=int,
        default=RUNS,
        help="number of runs on the reference queue; half as many on sound/queue",
    )
    parser.add_argument(
        "--pictures",
        type=Path,
        nargs="?",
        const=Path("docs/images"),
        metavar="FOLDER",
        help="draw the figures instead, into this folder (default %(const)s)",
    )
    asked = parser.parse_args()
    if asked.pictures is not None:
        draw_pictures(asked.pictures)
        return
    cases = make_cases(asked.runs)
    table = render_table(measure_table(cases), cases)
    print(table)
    if asked.write is not None:
        write_table(asked.write, table)


if __name__ == "__main__":
    main()
