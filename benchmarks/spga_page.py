"""Measure every number of docs/spga.md and write it there, with the figures.

    python benchmarks/spga_page.py --write docs/spga.md
    python benchmarks/spga_page.py --only logs

Each block of the page is written between two marker comments, with the command that made it.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from machine import describe_machine
from paper.experiment import load_queue
from reference_problem import make_queue
from section import write_block
from spga_ablation import RUNS, SEED, THREADS, render_ablation
from spga_searches import (
    ITERATIONS,
    TRACKED_RUNS,
    render_full_logs,
    render_logs,
    render_tracking,
    track,
)

from covertfl.display.curves import plot_convergence
from covertfl.display.plots import save_figure
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga.search import solve_spga
from covertfl.solvers.spga.settings import default_settings

# Each takes the number of runs and returns Markdown.
BLOCKS: Mapping[str, Callable[[int], str]] = {
    "logs": render_logs,
    "ablation": render_ablation,
    "full-logs": render_full_logs,
    "tracking": render_tracking,
}


def draw_pictures(folder: Path) -> None:
    """Draw convergence on the reference queue, and tracking of a change (deviation D21)."""
    reference = make_queue(40)
    settings = default_settings(reference)
    runs = solve_spga(reference, settings, seed=SEED, runs=TRACKED_RUNS, threads=THREADS)
    figure = plot_convergence(runs, [(0, solve_queue(reference))])
    save_figure(figure, folder / "spga-convergence.png")
    change = ITERATIONS // 2
    optima = [
        (start, solve_queue(load_queue(f"sound/tracking-{when}")))
        for start, when in ((0, "before"), (change, "after"))
    ]
    figure = plot_convergence(
        [run for _, run in track(TRACKED_RUNS)],
        optima,
        title=f"Tracking a change at iteration {change}",
    )
    save_figure(figure, folder / "spga-tracking.png")


def main() -> None:
    """Measure and print the blocks; write them and draw the figures if asked."""
    parser = argparse.ArgumentParser(description="measure every number of docs/spga.md")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the blocks into this page"
    )
    parser.add_argument("--only", choices=BLOCKS, help="measure this block alone, and draw nothing")
    parser.add_argument(
        "--runs",
        type=int,
        default=RUNS,
        help="runs on the reference queue; other blocks have fewer",
    )
    asked = parser.parse_args()
    command = shlex.join(["python", "benchmarks/spga_page.py", *sys.argv[1:]])
    for name, render in BLOCKS.items():
        if asked.only not in (None, name):
            continue
        made = (
            f"Made on {datetime.date.today().isoformat()} by `{command}` on {describe_machine()}; "
            f"seed {SEED}."
        )
        text = f"{made}\n\n{render(asked.runs)}".rstrip()
        print(f"{text}\n")
        if asked.write is not None:
            write_block(asked.write, name, text)
    if asked.write is not None and asked.only is None:
        draw_pictures(asked.write.parent / "images")


if __name__ == "__main__":
    main()
