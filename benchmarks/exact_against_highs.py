"""The constrained queue problem, equation (9): the exact solver against HiGHS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from measurement import Timing, format_ratio, format_seconds, time_repeats
from reference_problem import make_queue
from scipy import optimize
from section import Check, Section

from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.occupation_lp import solve_occupation_lp

CAPACITIES, QUICK_CAPACITIES = (40, 200, 1000), (40, 200)
AGREEMENT = 1e-7
LEAST_RATIO = 30.0
INTERIOR_POINT_LIMIT = 30.0


@dataclass(frozen=True)
class Row:
    """Timings of one size; `interior_point` is None if it found no optimum within the limit."""

    num_states: int
    exact: Timing
    simplex: Timing
    whole_lp: Timing
    interior_point: float | None
    difference: float

    @property
    def ratio(self) -> float:
        """Return the time of HiGHS, without building the programme, divided by covertfl's."""
        return self.simplex.best / self.exact.best

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        other = self.interior_point
        return (
            f"{self.num_states:,}",
            str(self.exact),
            str(self.simplex),
            str(self.whole_lp),
            f"none in {INTERIOR_POINT_LIMIT:.0f} s" if other is None else format_seconds(other),
            f"{self.difference:.1e}",
            format_ratio(self.ratio),
        )


@dataclass
class _Call:
    """One call of `linprog`, with its arguments, time and optimum."""

    programme: tuple[Any, ...]
    settings: dict[str, Any]
    seconds: float
    optimum: float | None

    def agrees_with(self, cost: float) -> bool:
        """Return whether the call found an optimum equal to `cost`."""
        return self.optimum is not None and abs(self.optimum - cost) <= AGREEMENT * cost


@contextmanager
def watch_linprog() -> Iterator[list[_Call]]:
    """Time every call of scipy's `linprog` and keep its arguments."""
    calls: list[_Call] = []
    original = optimize.linprog

    def timed(*programme: Any, **settings: Any) -> Any:
        started = time.perf_counter()
        outcome = original(*programme, **settings)
        seconds = time.perf_counter() - started
        optimum = float(outcome.fun) if outcome.status == 0 else None
        calls.append(_Call(programme, settings, seconds, optimum))
        return outcome

    optimize.linprog = timed
    try:
        yield calls
    finally:
        optimize.linprog = original


def time_interior_point(call: _Call) -> float | None:
    """Time the interior point method of HiGHS on the same programme."""
    options = {**call.settings["options"], "time_limit": INTERIOR_POINT_LIMIT}
    settings = {**call.settings, "method": "highs-ipm", "options": options}
    started = time.perf_counter()
    outcome = optimize.linprog(*call.programme, **settings)
    return time.perf_counter() - started if outcome.status == 0 else None


def measure_capacity(capacity: int, *, repeats: int = 5) -> Row:
    """Solve one size with both methods.

    `solve_occupation_lp` may pass several forms of the programme to HiGHS until the rounding error
    is small; the form that HiGHS solves correctly in the shortest time is the one that is timed.
    """
    problem = make_queue(capacity)
    exact, exact_timing = time_repeats(lambda: solve_queue(problem), repeats=10)
    with watch_linprog() as calls:
        _, whole = time_repeats(
            lambda: solve_occupation_lp(problem),
            repeats=repeats if capacity <= 200 else 1,
            warm_up=False,
        )
    right = [call for call in calls if call.agrees_with(exact.cost)]
    if not right:
        raise RuntimeError(f"HiGHS and the exact solver disagree at capacity {capacity:,}")
    fastest = min(right, key=lambda call: call.seconds)
    assert fastest.optimum is not None
    _, again = time_repeats(
        lambda: optimize.linprog(*fastest.programme, **fastest.settings),
        repeats=repeats,
        warm_up=False,
    )
    return Row(
        problem.num_states,
        exact_timing,
        Timing((fastest.seconds, *again.seconds)),
        whole,
        time_interior_point(fastest),
        abs(fastest.optimum - exact.cost) / exact.cost,
    )


def measure(*, quick: bool) -> Section:
    """Measure the whole comparison."""
    measure_capacity(10, repeats=1)  # imports everything
    rows = [
        measure_capacity(capacity, repeats=5 if capacity <= 200 else 1)
        for capacity in (QUICK_CAPACITIES if quick else CAPACITIES)
    ]
    worst = max(row.difference for row in rows)
    text = f"both optima agree to {AGREEMENT:g} (largest difference {worst:.1e})"
    checks = [Check(text, worst <= AGREEMENT)]
    for row in rows:
        if row.num_states > 6000:
            text = f"at {row.num_states:,} states at least {LEAST_RATIO:.0f} times faster"
            checks.append(Check(f"{text} ({format_ratio(row.ratio)})", row.ratio >= LEAST_RATIO))
    return Section(
        "Constrained problem: exact against HiGHS",
        ("states", "exact", "HiGHS, dual simplex", "`solve_occupation_lp`",
         "HiGHS, interior point", "costs differ by", "ratio"),
        tuple(row.cells for row in rows),
        tuple(checks),
        {f"{row.num_states:,} states": row.ratio for row in rows},
        is_guarded=True,
    )  # fmt: skip
