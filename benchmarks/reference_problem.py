"""The problems of the benchmarks: the oracle of the paper's text with a queue and a horizon."""

from __future__ import annotations

import numpy as np

from covertfl import FiniteHorizon, LearningCost, Oracle, QueueProblem

TRANSITION = ((0.8, 0.2, 0.0), (0.3, 0.5, 0.2), (0.0, 0.2, 0.8))
SUCCESS = (0.1, 0.43, 0.95)
PRIVACY_COST = (1.8, 0.8, 0.3)


def make_oracle() -> Oracle:
    """Return the oracle of the paper's text."""
    return Oracle(np.array(TRANSITION), np.array(SUCCESS))


def make_queue(capacity: int) -> QueueProblem:
    """Return the reference queue (deviation D17), which has 6 * (capacity + 1) states."""
    return QueueProblem(
        make_oracle(),
        np.array(PRIVACY_COST),
        LearningCost("linear", 0.6, "when-obfuscating"),
        arrival_prob=0.1,
        arrival_size=4,
        limit=1.0,
        capacity=capacity,
        overflow_cost=0.0,
    )


def make_horizon(rounds: int, updates: int) -> FiniteHorizon:
    """Return the problem of the main experiment, with terminal cost 0.6 y^2."""
    cost = LearningCost("quadratic", 0.6)
    return FiniteHorizon(make_oracle(), np.array(PRIVACY_COST), cost, rounds, updates)


def load_queue(preset: str) -> QueueProblem:
    """Return the queue of a preset."""
    from covertfl import load_problem  # not needed where memory is measured

    problem = load_problem(preset)
    assert isinstance(problem, QueueProblem)
    return problem
