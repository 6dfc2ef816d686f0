"""Theorem 2's structure and Lemma 2's monotonicity on thousands of random models.

The models satisfy the assumptions M1, M2, M3 and M5 of the paper.  The exact solution of each is
examined: the threshold in the backlog (Theorem 2), its growth with the rounds left (D5 of
docs/deviations.md), the value's monotonicity (Lemma 2), and, by no theorem, the decrease of the
threshold with the oracle state.  Models whose terminal cost is not convex show that the checks can
fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.solvers.backward_induction import (
    HorizonSolution,
    find_oracle_reversal,
    find_rounds_reversal,
    solve_horizon,
)

MODELS, QUICK_MODELS = 5000, 500
SEED = 2
MOST_STATES, MOST_ROUNDS, MOST_UPDATES = 5, 20, 10
ROUNDING = 1e-9


def sample_dominated_rows(states: int, *, generator: np.random.Generator) -> FloatArray:
    """Sample a transition matrix whose rows are ordered by first-order dominance (M1).

    Its tail sums increase down each column and decrease along each row; sorting any tail sums
    along the rows and then down the columns keeps both orders.
    """
    tails = np.sort(generator.random((states, states - 1)), axis=1)[:, ::-1]
    tails = np.sort(tails, axis=0)
    full = np.hstack([np.ones((states, 1)), tails, np.zeros((states, 1))])
    # A small weight on every state keeps the chain irreducible and both orders intact.
    rows = 0.98 * -np.diff(full, axis=1) + 0.02 / states
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def sample_model(*, is_convex: bool, generator: np.random.Generator) -> FiniteHorizon:
    """Sample a finite horizon that satisfies M1, M2, M5 and, if `is_convex`, M3."""
    states = int(generator.integers(2, MOST_STATES + 1))
    rounds = int(generator.integers(2, MOST_ROUNDS + 1))
    updates = int(generator.integers(2, MOST_UPDATES + 1))
    oracle = Oracle(
        sample_dominated_rows(states, generator=generator), np.sort(generator.random(states))
    )
    steps = generator.exponential(size=updates) * generator.exponential()
    if is_convex:
        steps = np.sort(steps)
    values = np.concatenate([[0.0], np.cumsum(steps)])
    return FiniteHorizon(
        oracle=oracle,
        privacy_cost=np.sort(generator.exponential(size=states) + 1e-3)[::-1],
        learning_cost=LearningCost(shape="table", values=tuple(values.tolist())),
        rounds=rounds,
        updates=updates,
    )


def examine_model(problem: FiniteHorizon) -> dict[str, bool]:
    """Return which statements hold for the exact solution of a model."""
    solution = solve_horizon(problem, keep_values=True)
    thresholds = solution.thresholds
    return {
        "threshold_in_backlog": thresholds is not None,
        "threshold_rises_with_rounds_left": thresholds is not None
        and find_rounds_reversal(thresholds) is None,
        **_examine_value(solution),
        "threshold_falls_with_oracle": thresholds is not None
        and find_oracle_reversal(thresholds) is None,
    }


def _examine_value(solution: HorizonSolution) -> dict[str, bool]:
    """Check Lemma 2: V decreases with rounds left and oracle state, increases with the backlog."""
    values = solution.values
    assert values is not None
    slack = ROUNDING * float(values.max())
    return {
        "value_falls_with_rounds_left": bool(np.all(np.diff(values, axis=0) <= slack)),
        "value_falls_with_oracle": bool(np.all(np.diff(values, axis=1) <= slack)),
        "value_rises_with_backlog": bool(np.all(np.diff(values, axis=2) >= -slack)),
    }


def examine_models(models: int) -> Mapping[str, Any]:
    """Count the models in which each statement holds, convex and not."""
    counts: dict[str, Any] = {"models": models}
    for name, is_convex in (("convex", True), ("not_convex", False)):
        generator = np.random.default_rng([SEED, int(is_convex)])
        held: dict[str, int] = {}
        for _ in range(models):
            model = sample_model(is_convex=is_convex, generator=generator)
            for statement, holds in examine_model(model).items():
                held[statement] = held.get(statement, 0) + holds
        counts[name] = held
    return counts
