"""The exact solver alone, up to a million states: time, memory, growth.

Run as a script with CAPACITY REPEATS, this file solves one size and prints time and peak memory as
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from measurement import (
    Timing,
    format_ratio,
    format_seconds,
    measure_peak_memory,
    run_apart,
    time_repeats,
)
from reference_problem import make_queue
from section import Check, Section

from covertfl.solvers.constrained import solve_queue

CAPACITIES, QUICK_CAPACITIES = (4_999, 49_999, 166_667), (999, 4_999)
MOST_SECONDS = 60.0
MOST_MEMORY = 4e9
MOST_GROWTH = 1.15
RUN_LIMIT = 1200.0


def solve_alone(capacity: int, *, repeats: int) -> dict[str, Any]:
    """Solve one size in this process."""
    solve_queue(make_queue(10))  # imports everything
    problem = make_queue(capacity)
    solve_queue(problem)  # warm-up
    seconds, processor_seconds = [], []
    for _ in range(repeats):
        processor_started = time.process_time()
        solution, timing = time_repeats(lambda: solve_queue(problem), repeats=1, warm_up=False)
        processor_seconds.append(time.process_time() - processor_started)
        seconds.append(timing.best)
    return {
        "num_states": problem.num_states,
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        "peak_memory": measure_peak_memory(),
        "policies": solution.iterations,
        "gap": abs(solution.certificate_gap),
    }


@dataclass(frozen=True)
class Row:
    """Time and memory of one size."""

    num_states: int
    timing: Timing
    processor: Timing
    peak_memory: int
    policies: int
    gap: float

    def cells(self, smallest: Row) -> tuple[str, ...]:
        """Return the row as text, with the time per state relative to the smallest size."""
        ours, base = self.timing.best / self.num_states, smallest.timing.best / smallest.num_states
        return (
            f"{self.num_states:,}",
            str(self.timing),
            str(self.processor),
            f"{self.peak_memory / 1e6:,.0f} MB",
            str(self.policies),
            f"{self.gap:.0e}",
            format_ratio(ours / base),
        )


def measure_capacity(capacity: int, *, repeats: int = 5) -> Row:
    """Solve one size in a separate process, whose peak memory is then that of the solve."""
    run = run_apart(__file__, (capacity, repeats), limit=RUN_LIMIT)
    if run is None:
        raise RuntimeError(f"capacity {capacity:,} was not solved in {RUN_LIMIT:g} seconds")
    return Row(
        run["num_states"],
        Timing(tuple(run["seconds"])),
        Timing(tuple(run["processor_seconds"])),
        run["peak_memory"],
        run["policies"],
        run["gap"],
    )


def fit_growth(num_states: list[int], timings: list[Timing]) -> float:
    """Fit the exponent with which the best times grow, by least squares in logarithms."""
    best = [timing.best for timing in timings]
    return float(np.polyfit(np.log(num_states), np.log(best), 1)[0])


def measure(*, quick: bool) -> Section:
    """Measure all sizes."""
    rows = [measure_capacity(capacity) for capacity in (QUICK_CAPACITIES if quick else CAPACITIES)]
    smallest, largest = (row.timing.best / row.num_states for row in (rows[0], rows[-1]))
    return Section(
        "Constrained problem: exact alone, up to a million states",
        ("states", "exact", "processor time", "peak memory", "policies evaluated", "gap to bound",
         "relative time per state"),
        tuple(row.cells(rows[0]) for row in rows),
        () if quick else _check(rows),
        {f"time per state, {rows[0].num_states:,} to {rows[-1].num_states:,}": smallest / largest},
    )  # fmt: skip


def _check(rows: list[Row]) -> tuple[Check, ...]:
    largest, sizes = rows[-1], [row.num_states for row in rows]
    growth = fit_growth(sizes, [row.timing for row in rows])
    processor_growth = fit_growth(sizes, [row.processor for row in rows])
    seconds, memory = largest.timing.best, largest.peak_memory
    return (
        Check(
            f"a million states in under {MOST_SECONDS:.0f} s ({format_seconds(seconds)})",
            seconds < MOST_SECONDS,
        ),
        Check(
            f"and in under {MOST_MEMORY / 1e9:.0f} GB ({memory / 1e9:.2f} GB)", memory < MOST_MEMORY
        ),
        Check(
            f"elapsed time grows with an exponent of at most {MOST_GROWTH:g} "
            f"({growth:.2f}; processor time {processor_growth:.2f})",
            growth <= MOST_GROWTH,
        ),
    )


if __name__ == "__main__":
    print(json.dumps(solve_alone(int(sys.argv[1]), repeats=int(sys.argv[2]))))
