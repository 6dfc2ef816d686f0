"""The plan of a finite horizon, in units of what pymdptoolbox needs to solve it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from horizon_against_pymdptoolbox import time_peer
from measurement import Timing, format_ratio, load_peer, time_repeats
from reference_problem import make_horizon
from section import Check, Section

from covertfl.planning.horizon import HorizonPlan, plan_horizon

SIZES, QUICK_SIZES = ((45, 16), (200, 40)), ((45, 16),)
SEED = 1
AGREEMENT = 1e-9


@dataclass(frozen=True)
class Row:
    """Timings of one size."""

    rounds: int
    updates: int
    ours: Timing
    peer: Timing
    difference: float

    @property
    def label(self) -> str:
        """Return the size in words."""
        return f"N = {self.rounds:,}, M = {self.updates:,}"

    @property
    def ratio(self) -> float:
        """Return the time of pymdptoolbox's solution divided by that of the whole plan."""
        return self.peer.best / self.ours.best

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        difference = f"{self.difference:.0e}"
        return self.label, str(self.ours), str(self.peer), difference, format_ratio(self.ratio)


def measure_size(rounds: int, updates: int, *, repeats: int) -> Row:
    """Plan one size, and let pymdptoolbox solve it."""
    problem = make_horizon(rounds, updates)

    def plan() -> HorizonPlan:
        return plan_horizon(problem, generator=np.random.default_rng(SEED))

    planned, ours = time_repeats(plan, repeats=repeats)
    values, _, peer = time_peer(problem, dense=True, repeats=10 * repeats)
    found = planned.solution.final_value
    difference = float(np.max(np.abs(values[-1] - found)) / np.max(found))
    return Row(rounds, updates, ours, peer, difference)


def measure(*, quick: bool) -> Section:
    """Measure all sizes."""
    load_peer("mdptoolbox.mdp", "pymdptoolbox")
    rows = [
        measure_size(rounds, updates, repeats=3)
        for rounds, updates in (QUICK_SIZES if quick else SIZES)
    ]
    worst = max(row.difference for row in rows)
    return Section(
        "Planner: the plan of a finite horizon",
        ABOUT,
        ("size", "covertfl's plan", "pymdptoolbox's solution", "values differ by", "ratio"),
        tuple(row.cells for row in rows),
        (
            Check(
                f"the costs agree to {AGREEMENT:g} (largest difference {worst:.0e})",
                worst <= AGREEMENT,
            ),
        ),
        {row.label: row.ratio for row in rows},
        is_guarded=True,
    )


ABOUT = (
    "The problem of the main experiment and a longer one.  A plan solves the horizon, evaluates "
    "the policy, finds how many rounds each probability of finishing takes, and bounds the best "
    "eavesdropper.  No other program does this.  The time of pymdptoolbox for the solution alone "
    "is a unit that makes the plans of two machines comparable; below 1 the plan takes longer.",
)
