"""Random queues with a limit: what the exact solver refuses, and what the linear program does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from measurement import format_ratio, format_seconds
from section import Check, Section

from covertfl import Action, LearningCost, NoSolution, Oracle, QueueProblem, SplitChain
from covertfl.decision.problem import round_learning_cost
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.multiplier import Lagrangian
from covertfl.solvers.occupation_lp import solve_occupation_lp

SEED = 19
PROBLEMS, QUICK_PROBLEMS = 4_000, 100
SHAPES = ("constant", "linear", "quadratic", "triangular", "table")
CHARGED = ("always", "when-obfuscating")
# With less room than this share of the free value, the limit's multiplier is undetermined.
LEAST_ROOM = 1e-3
AGREEMENT = 1e-8
SOLVED, BOTH_REFUSE, EXACT_REFUSES = "both solve", "both refuse", "exact alone refuses"
PROGRAMME_REFUSES = "program alone refuses"


def draw_queue(generator: np.random.Generator) -> QueueProblem:
    """Draw a queue with numbers on coarse grids, so that ties, zeros and certainties occur."""
    states, capacity = int(generator.integers(1, 4)), int(generator.integers(1, 26))
    weights = generator.integers(0, 10, size=(states, states)).astype(np.float64)
    weights[np.arange(states), (np.arange(states) + 1) % states] += 1.0  # leaves no state alone
    factors = generator.integers(0, 21, size=states) / 10 if generator.random() < 0.5 else ()
    return QueueProblem(
        Oracle(weights / weights.sum(axis=1, keepdims=True), _draw_grid(generator, states, 20)),
        2.0 * _draw_grid(generator, states, 20),
        _draw_cost(generator, capacity, tuple(map(float, factors))),
        **_draw_arrivals(generator),
        limit=1.0,
        objective="privacy" if generator.random() < 0.5 else "learning",
        capacity=capacity,
        overflow_cost=float(generator.choice((0.0, 1.0, 10.0))),
        full_cost=float(generator.choice((0.0, 1.0, 10.0))),
    )


def _draw_grid(generator: np.random.Generator, size: int, parts: int) -> Any:
    return generator.integers(0, parts + 1, size=size) / parts


def _draw_cost(
    generator: np.random.Generator, capacity: int, factors: tuple[float, ...]
) -> LearningCost:
    shape: Any = generator.choice(SHAPES)
    charged: Any = generator.choice(CHARGED)
    if shape == "table":
        values = tuple(map(float, generator.integers(0, 51, size=capacity + 1) / 10))
        return LearningCost("table", charged=charged, values=values, by_state=factors)
    scale = float(generator.choice((0.1, 0.6, 1.0)))
    return LearningCost(str(shape), scale, charged, by_state=factors)  # type: ignore[arg-type]


def _draw_arrivals(generator: np.random.Generator) -> dict[str, Any]:
    sizes = generator.permutation(5)[: int(generator.integers(1, 5))] + 1
    if len(sizes) == 1:
        prob = float(generator.integers(1, 21) / 20)
        return {"arrival_prob": prob, "arrival_size": int(sizes[0])}
    return {"arrival_sizes": {int(size): int(generator.integers(1, 6)) / 20 for size in sizes}}


def place_limit(problem: QueueProblem, share: float) -> QueueProblem | None:
    """Return the problem with a limit between the least reachable value and the free one.

    None if there is no room between them, or if either depends on the start.
    """
    lagrangian = Lagrangian(problem)
    try:
        least = lagrangian.costs(lagrangian.solve_for_constraint().chain)[1]
        free = lagrangian.costs(lagrangian.solve_without_limit().chain)[1]
    except SplitChain:
        return None
    if free - least <= LEAST_ROOM * free:
        return None
    return problem.with_limit(least + share * (free - least))


@dataclass(frozen=True)
class Outcome:
    """What both solvers make of one problem."""

    problem: QueueProblem
    kind: str
    reason: str  # the exact solver's, if it refuses
    exact_seconds: float
    program_seconds: float
    # Of the costs, relative to the optimum or to the limit's part of the Lagrangian, whichever is
    # larger, and a hundredth of the largest cost: the program keeps its balances to 1e-10 only.
    difference: float


def find_largest_cost(problem: QueueProblem) -> float:
    """Return the largest cost of a round."""
    learning = (round_learning_cost(problem, action).max() for action in Action)
    return float(max(problem.privacy_cost.max(), *learning))


def solve_both(problem: QueueProblem) -> Outcome:
    """Solve a problem in both ways."""
    exact, exact_seconds = _attempt(solve_queue, problem)
    program, program_seconds = _attempt(solve_occupation_lp, problem)
    kind, reason, difference = SOLVED, "", 0.0
    if isinstance(exact, NoSolution):
        kind = BOTH_REFUSE if isinstance(program, NoSolution) else EXACT_REFUSES
        reason = str(exact)
    elif isinstance(program, NoSolution):
        kind = PROGRAMME_REFUSES
    else:
        scale = max(exact.cost, exact.multiplier * problem.limit)
        difference = abs(exact.cost - program.cost) / (scale + 0.01 * find_largest_cost(problem))
    return Outcome(problem, kind, reason, exact_seconds, program_seconds, difference)


def _attempt(
    solve: Callable[[QueueProblem], QueueSolution], problem: QueueProblem
) -> tuple[QueueSolution | NoSolution, float]:
    """Return the solution or the refusal, and the seconds."""
    started = time.process_time()
    try:
        answer: QueueSolution | NoSolution = solve(problem)
    except NoSolution as refusal:
        answer = refusal
    return answer, time.process_time() - started


def solve_many(number: int, *, seed: int = SEED) -> list[Outcome]:
    """Solve random problems in both ways; those without room for a limit are drawn again."""
    generator, outcomes = np.random.default_rng(seed), list[Outcome]()
    while len(outcomes) < number:
        problem = place_limit(draw_queue(generator), int(generator.integers(1, 20)) / 20)
        if problem is not None:
            outcomes.append(solve_both(problem))
    return outcomes


def measure(*, quick: bool) -> Section:
    """Solve random problems in both ways."""
    outcomes = solve_many(QUICK_PROBLEMS if quick else PROBLEMS)
    counts = Counter(outcome.kind for outcome in outcomes)
    exact = sum(outcome.exact_seconds for outcome in outcomes)
    program = sum(outcome.program_seconds for outcome in outcomes)
    ratio, worst = program / exact, max(outcome.difference for outcome in outcomes)
    refused = [outcome for outcome in outcomes if outcome.kind == EXACT_REFUSES]
    return Section(
        "Random queues: what the exact solver refuses",
        ("problems", SOLVED, BOTH_REFUSE, EXACT_REFUSES, PROGRAMME_REFUSES, "exact", "program"),
        (
            (
                f"{len(outcomes):,}",
                *(str(counts[kind]) for kind in (SOLVED, BOTH_REFUSE, EXACT_REFUSES)),
                str(counts[PROGRAMME_REFUSES]),
                format_seconds(exact / len(outcomes)),
                format_seconds(program / len(outcomes)),
            ),
        ),
        (
            Check(
                f"no problem that the linear program solves is refused ({len(refused)})",
                not refused,
            ),
            Check(
                f"both optima agree to {AGREEMENT:g} (largest difference {worst:.1e})",
                worst <= AGREEMENT,
            ),
            Check(f"faster than the program ({format_ratio(program / exact)})", exact < program),
        ),
        ratios={f"exact against the program, {len(outcomes):,} problems": ratio},
        notes=tuple(f"refused: {outcome.reason}" for outcome in refused),
    )
