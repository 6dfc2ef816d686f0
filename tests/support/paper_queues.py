"""The queue problems that the documents give numbers for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.solvers.spga.rules import Rules

TEXT_ORACLE = Oracle(
    np.array([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]), np.array([0.1, 0.43, 0.95])
)
FALLING_COST = np.array([1.8, 0.8, 0.3])
# Seven oracle states (deviation D22); the rows are not ordered by dominance.
SEVEN_STATES = np.array(
    [
        [0.7, 0.2, 0.05, 0.03, 0.02, 0.0, 0.0],
        [0.4, 0.42, 0.05, 0.03, 0.05, 0.05, 0.0],
        [0.2, 0.3, 0.37, 0.02, 0.04, 0.04, 0.03],
        [0.025, 0.1, 0.2, 0.35, 0.2, 0.1, 0.025],
        [0.03, 0.04, 0.04, 0.02, 0.37, 0.3, 0.2],
        [0.0, 0.05, 0.05, 0.03, 0.05, 0.42, 0.4],
        [0.0, 0.0, 0.02, 0.03, 0.05, 0.2, 0.7],
    ]
)


def reference_queue(*, capacity: int = 40, limit: float = 1.0) -> QueueProblem:
    """Linear cost charged when obfuscating, no overflow cost (deviation D17)."""
    cost = LearningCost("linear", 0.6, "when-obfuscating")
    return QueueProblem(
        TEXT_ORACLE, FALLING_COST, cost, 0.1, 4, limit, capacity=capacity, overflow_cost=0.0
    )


def constant_cost_queue(*, capacity: int | None = 40) -> QueueProblem:
    """The text's constant cost with a privacy cost that falls (deviation D6)."""
    return QueueProblem(
        TEXT_ORACLE,
        FALLING_COST,
        LearningCost("constant", 0.6, "when-obfuscating"),
        arrival_prob=0.1,
        arrival_size=4,
        limit=0.2,
        capacity=capacity,
        overflow_cost=None if capacity is None else 0.0,
        full_cost=0.0 if capacity is None else 100.0,
    )


def tracking_queue(arrival_prob: float, arrival_size: int) -> QueueProblem:
    """The tracking experiment (deviation D21)."""
    values = np.linspace(0.6, 10.0, 61)
    values[0] = 0.0
    transition = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.1, 0.2, 0.7]])
    return QueueProblem(
        Oracle(transition, np.array([0.1, 0.6, 0.9])),
        FALLING_COST,
        LearningCost("table", charged="when-obfuscating", values=tuple(values)),
        arrival_prob=arrival_prob,
        arrival_size=arrival_size,
        limit=0.4,
        capacity=60,
        overflow_cost=0.0,
        full_cost=100.0,
    )


def sound_queue(*, arrival_prob: float = 0.1, limit: float = 25.0) -> QueueProblem:
    """The sound reading: linear cost charged always, capacity as large as it takes."""
    cost = LearningCost("linear", 0.6, "always")
    return QueueProblem(TEXT_ORACLE, FALLING_COST, cost, arrival_prob, 4, limit)


def unlike_queue() -> QueueProblem:
    """The reference queue with every probability changed."""
    oracle = Oracle(np.full((3, 3), 1.0 / 3.0), np.array([0.5, 0.6, 0.7]))
    return replace(reference_queue(), oracle=oracle, arrival_prob=0.25)


def uneven_queue(*, capacity: int | None = 40) -> QueueProblem:
    """Arrivals of 1 and 4, and a backlog that costs most in the best state, as the paper's may."""
    return QueueProblem(
        TEXT_ORACLE,
        FALLING_COST,
        LearningCost("linear", 0.6, "always", by_state=(0.5, 1.0, 2.0)),
        limit=3.0,
        capacity=capacity,
        overflow_cost=None if capacity is None else 20.0,
        arrival_sizes={1: 0.1, 4: 0.03},
    )


# Costs and limit of the reference queue, written down by hand: no probability is among them.
REFERENCE_RULES = Rules(
    privacy_cost=np.array([1.8, 0.8, 0.3]),
    learning_cost=np.array([np.stack([0.6 * np.arange(41.0), np.zeros(41)])] * 3),
    arrival_support=np.array([0, 4]),
    overflow_cost=0.0,
    capacity=40,
    limit=1.0,
    minimises_privacy=True,
    rounds=0,
    end_cost=np.zeros(41),
)

# theta_1, theta_2, h by oracle state and arrival: a policy that learns late in bad states.
SIGMOID_PARAMETERS = np.array(
    [
        [[9.0, 7.5], [4.0, 3.2], [1.2, 0.4]],
        [[12.0, 11.0], [6.0, 5.0], [2.5, 1.0]],
        [[0.7, 0.4], [0.5, 0.3], [0.2, 0.9]],
    ]
)


def frozen_queue(moving: float, *, arrival_prob: float, limit: float) -> QueueProblem:
    """The oracle of the paper's text, which moves only in a share of rounds."""
    transition = (1.0 - moving) * np.eye(3) + moving * TEXT_ORACLE.transition
    return QueueProblem(
        Oracle(transition, TEXT_ORACLE.success),
        FALLING_COST,
        LearningCost("linear", 0.6, "always"),
        arrival_prob=arrival_prob,
        arrival_size=1,
        limit=limit,
    )
