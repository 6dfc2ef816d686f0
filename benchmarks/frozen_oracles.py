"""Automatic capacities for oracles that hardly ever move: the time is bounded."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from measurement import format_ratio, format_seconds, time_repeats
from reference_problem import PRIVACY_COST, SUCCESS, TRANSITION
from section import Check, Section

from covertfl import LearningCost, NoSolution, Oracle, QueueProblem
from covertfl.solvers.average_cost import QueueOperator, always_learn
from covertfl.solvers.capacity import AUTO_STATES, describe_stay, largest_capacity
from covertfl.solvers.constrained import solve_queue

# Share of rounds in which the oracle moves.
MOVING, QUICK_MOVING = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-12), (1e-2, 1e-12)
LIMITS = (5.0, 1e3, 1e6)
ARRIVAL_PROB, HEAVY_ARRIVAL_PROB = 0.05, 0.3
MOST_SECONDS = 60.0
UNIT_REPEATS = 3


def make_frozen(moving: float, *, arrival_prob: float, limit: float) -> QueueProblem:
    """Return a queue whose oracle is that of the paper's text, but moves in few rounds only."""
    transition = (1.0 - moving) * np.eye(len(SUCCESS)) + moving * np.array(TRANSITION)
    return QueueProblem(
        Oracle(transition, np.array(SUCCESS)),
        np.array(PRIVACY_COST),
        LearningCost("linear", 0.6, "always"),
        arrival_prob=arrival_prob,
        arrival_size=1,
        limit=limit,
    )


@dataclass(frozen=True)
class Row:
    """How one problem ends, and after how long."""

    moving: float
    arrival_prob: float
    limit: float
    seconds: float
    end: str
    sentence: str = ""  # of a refusal
    is_explained: bool = True  # a refusal names the oracle's longest stay or the limit

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        numbers = (f"{self.moving:g}", f"{self.arrival_prob:g}", f"{self.limit:g}")
        return *numbers, format_seconds(self.seconds), self.end


def solve_frozen(moving: float, arrival_prob: float, limit: float) -> Row:
    """Solve one problem, or be refused."""
    problem = make_frozen(moving, arrival_prob=arrival_prob, limit=limit)
    started = time.perf_counter()
    try:
        solution = solve_queue(problem)
    except NoSolution as refusal:
        seconds, sentence = time.perf_counter() - started, str(refusal)
        is_explained = describe_stay(problem) in sentence or f"{limit:g} cannot be met" in sentence
        end = type(refusal).__name__
        return Row(moving, arrival_prob, limit, seconds, end, sentence, is_explained)
    seconds = time.perf_counter() - started
    end = f"capacity {solution.problem.capacity:,}, cost {solution.cost:.4g}"
    return Row(moving, arrival_prob, limit, seconds, end)


def time_unit() -> float:
    """Return the seconds of one evaluation of a policy at the largest automatic capacity."""
    problem = make_frozen(1.0, arrival_prob=ARRIVAL_PROB, limit=LIMITS[0])
    largest = problem.with_capacity(largest_capacity(problem))
    operator, policy = QueueOperator(largest), always_learn(largest)
    return time_repeats(lambda: operator.evaluate(policy), repeats=UNIT_REPEATS)[1].best


def measure(*, quick: bool) -> Section:
    """Solve all problems."""
    cases = [(ARRIVAL_PROB, limit) for limit in LIMITS] + [(HEAVY_ARRIVAL_PROB, LIMITS[0])]
    rows = [
        solve_frozen(moving, arrival_prob, limit)
        for moving in (QUICK_MOVING if quick else MOVING)
        for arrival_prob, limit in cases
    ]
    unit, worst = time_unit(), max(rows, key=lambda row: row.seconds)
    return Section(
        "Automatic capacity: oracles that hardly ever move",
        ("share of rounds with a move", "arrivals", "limit", "time", "ends with"),
        tuple(row.cells for row in rows),
        (
            Check(
                f"each ends in under {MOST_SECONDS:.0f} s (the slowest in "
                f"{format_seconds(worst.seconds)})",
                worst.seconds < MOST_SECONDS,
            ),
            Check(
                "each refusal says for how long the oracle stays, or which limit cannot be met",
                all(row.is_explained for row in rows),
            ),
        ),
        ratios={f"one evaluation, against the slowest of {len(rows)}": unit / worst.seconds},
        notes=(
            f"the slowest takes as long as {format_ratio(worst.seconds / unit)} evaluations of "
            f"{AUTO_STATES:,} states ({format_seconds(unit)} each)",
            *((f"its sentence: {worst.sentence}",) if worst.sentence else ()),
        ),
    )
