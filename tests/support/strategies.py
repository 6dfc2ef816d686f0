"""Random oracles and queue problems: hypothesis strategies and a plain seeded generator.

Numbers are drawn on coarse grids (twentieths, tenths), so that ties, zeros and certainties occur
and a failing example reads well.  Costs stay within a few hundred, because the linear program
that the exact solver is compared with is solved to a tolerance of 1e-10 on every balance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from hypothesis import reject, strategies as st

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.errors import SplitChain
from covertfl.solvers.multiplier import Lagrangian

SHAPES = ("constant", "linear", "quadratic", "triangular", "table")
CONVEX_SHAPES = ("linear", "quadratic", "triangular")
CHARGED = ("always", "when-obfuscating")
OBJECTIVES = ("privacy", "learning")


def on_grid(low: int, high: int, parts: int) -> st.SearchStrategy[float]:
    """Multiples of 1 / parts from low / parts to high / parts."""
    return st.integers(low, high).map(lambda number: number / parts)


@st.composite
def oracles(draw: st.DrawFn, *, max_states: int = 3) -> Oracle:
    """An irreducible oracle: each state can move to the next, in a circle; the rest may be 0."""
    W = draw(st.integers(1, max_states))
    weights = np.array(draw(_grids(W, W)), dtype=np.float64)
    weights[np.arange(W), (np.arange(W) + 1) % W] += 1.0
    success = draw(st.lists(on_grid(0, 20, 20), min_size=W, max_size=W))
    return Oracle(weights / weights.sum(axis=1, keepdims=True), np.array(success))


def _grids(rows: int, columns: int) -> st.SearchStrategy[list[list[int]]]:
    row = st.lists(st.integers(0, 9), min_size=columns, max_size=columns)
    return st.lists(row, min_size=rows, max_size=rows)


@st.composite
def ordered_oracles(draw: st.DrawFn, *, max_states: int = 3) -> Oracle:
    """An irreducible oracle with M1 and M5: better rows dominate, success does not fall."""
    W = draw(st.integers(1, max_states))
    draws = draw(
        st.lists(
            st.lists(on_grid(1, 19, 20), min_size=W - 1, max_size=W - 1), min_size=W, max_size=W
        )
    )
    # Tail sums that fall along a row and rise down a column; sorting columns keeps rows sorted.
    tails = np.sort(-np.sort(-np.array(draws).reshape(W, W - 1), axis=1), axis=0)
    edges = np.column_stack([np.ones(W), tails, np.zeros(W)])
    success = sorted(draw(st.lists(on_grid(1, 20, 20), min_size=W, max_size=W)))
    # A little of everything keeps the oracle irreducible and the order intact.
    transition = 0.9 * (edges[:, :-1] - edges[:, 1:]) + 0.1 / W
    return Oracle(np.clip(transition, 0.0, 1.0), np.array(success))


@st.composite
def learning_costs(draw: st.DrawFn, capacity: int) -> LearningCost:
    """Any learning cost of a queue."""
    shape: Any = draw(st.sampled_from(SHAPES))
    charged: Any = draw(st.sampled_from(CHARGED))
    if shape == "table":
        # One number instead of a long list keeps tables as common as the other shapes.
        generator = np.random.default_rng(draw(st.integers(0, 2**16)))
        values = generator.integers(0, 51, size=capacity + 1) / 10
        return LearningCost("table", charged=charged, values=tuple(values))
    return LearningCost(shape, draw(st.sampled_from((0.1, 0.6, 1.0))), charged)


@st.composite
def arrivals(draw: st.DrawFn, max_size: int, max_sizes: int) -> dict[str, Any]:
    """Arrivals of one size or of several, in the form of their own."""
    sizes = draw(st.lists(st.integers(1, max_size), min_size=1, max_size=max_sizes, unique=True))
    if len(sizes) == 1:
        return {"arrival_prob": draw(on_grid(1, 20, 20)), "arrival_size": sizes[0]}
    return {"arrival_sizes": {size: draw(on_grid(1, 5, 20)) for size in sizes}}


@st.composite
def queue_problems(
    draw: st.DrawFn,
    *,
    max_states: int = 3,
    max_capacity: int = 25,
    max_size: int = 5,
    max_choices: int = 1000,
) -> QueueProblem:
    """A queue problem with a limit of 1 that means nothing yet; see `place_limit`.

    A deterministic policy makes at most `max_choices` choices.
    """
    oracle = draw(oracles(max_states=max_states))
    W = oracle.num_states
    capacity = draw(st.integers(1, max_capacity))
    objective: Any = draw(st.sampled_from(OBJECTIVES))
    by_state = st.lists(on_grid(0, 20, 10), min_size=W, max_size=W)
    factors: list[float] = draw(by_state) if draw(st.booleans()) else []
    return QueueProblem(
        oracle,
        np.array(draw(st.lists(on_grid(0, 20, 10), min_size=W, max_size=W))),
        replace(draw(learning_costs(capacity)), by_state=tuple(factors)),
        **draw(arrivals(max_size, min(max_choices // (W * capacity) - 1, 4))),
        limit=1.0,
        objective=objective,
        capacity=capacity,
        overflow_cost=draw(st.sampled_from((0.0, 1.0, 10.0))),
        full_cost=draw(st.sampled_from((0.0, 1.0, 10.0))),
    )


@st.composite
def ordered_queue_problems(draw: st.DrawFn, *, max_capacity: int = 25) -> QueueProblem:
    """A queue problem with M1, M2, M5 and a convex cost that is always charged."""
    oracle = draw(ordered_oracles())
    W = oracle.num_states
    capacity = draw(st.integers(4, max_capacity))
    shape: Any = draw(st.sampled_from(CONVEX_SHAPES))
    privacy = sorted(draw(st.lists(on_grid(1, 20, 10), min_size=W, max_size=W)), reverse=True)
    return QueueProblem(
        oracle,
        np.array(privacy),
        LearningCost(shape, 0.6, "always"),
        arrival_prob=draw(on_grid(1, 10, 20)),
        arrival_size=draw(st.integers(1, 4)),
        limit=1.0,
        capacity=capacity,
        overflow_cost=draw(st.sampled_from((1.0, 10.0, 50.0))),
    )


@st.composite
def horizon_problems(draw: st.DrawFn, *, max_rounds: int = 8) -> FiniteHorizon:
    """A small finite horizon with any terminal cost."""
    oracle = draw(oracles())
    W = oracle.num_states
    updates = draw(st.integers(1, 5))
    privacy = draw(st.lists(on_grid(0, 20, 10), min_size=W, max_size=W))
    rounds = draw(st.integers(1, max_rounds))
    return FiniteHorizon(oracle, np.array(privacy), draw(learning_costs(updates)), rounds, updates)


def place_limit(problem: QueueProblem, share: float) -> QueueProblem:
    """The problem with its limit a share of the way from the least reachable value to the free one.

    The free value is what the limited cost comes to when it is not limited.
    """
    least, free = find_limit_range(problem)
    return problem.with_limit(least + share * (free - least))


def find_limit_range(problem: QueueProblem) -> tuple[float, float]:
    """Least reachable value of the limited cost, and its value where it is not limited.

    An example in which either depends on the start is rejected.
    """
    lagrangian = Lagrangian(problem)
    try:
        least = lagrangian.costs(lagrangian.solve_for_constraint().chain)[1]
        free = lagrangian.costs(lagrangian.solve_without_limit().chain)[1]
    except SplitChain:
        reject()
    return least, free


def random_queue_problem(
    generator: np.random.Generator,
    *,
    num_states: int = 3,
    capacity: int = 20,
    objective: Literal["privacy", "learning"] = "privacy",
) -> QueueProblem:
    """A queue problem with numbers that have all their digits, limit 1."""
    transition = 0.95 * generator.dirichlet(np.ones(num_states), size=num_states)
    charged: Any = generator.choice(CHARGED)
    return QueueProblem(
        Oracle(transition + 0.05 / num_states, generator.random(num_states)),
        2.0 * generator.random(num_states),
        LearningCost(str(generator.choice(SHAPES[:4])), 0.6, charged),  # type: ignore[arg-type]
        arrival_prob=float(generator.uniform(0.05, 0.6)),
        arrival_size=int(generator.integers(1, 5)),
        limit=1.0,
        objective=objective,
        capacity=capacity,
        overflow_cost=float(10.0 * generator.random()),
        full_cost=float(10.0 * generator.random()),
    )
