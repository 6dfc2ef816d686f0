"""What the compiled loops of the structured policy gradient are handed: plain records."""

from __future__ import annotations

from typing import NamedTuple

from covertfl.arrays import FloatArray, IntArray


class Rules(NamedTuple):
    """What a round costs and how the backlog moves; no chance of the oracle is in it.

    Parameters
    ----------
    privacy_cost : (W,) cost of a learning query
    learning_cost : (2, capacity + 1) learning cost of a round by action and backlog
    overflow_cost : of each lost update
    capacity : largest backlog
    limit : of the constrained average
    minimises_privacy : whether privacy is minimised and learning constrained, or the reverse
    rounds : length of an episode, 0 for an endless queue
    end_cost : (capacity + 1,) cost of ending an episode with a backlog; it begins at capacity
    """

    privacy_cost: FloatArray
    learning_cost: FloatArray
    overflow_cost: float
    capacity: int
    limit: float
    minimises_privacy: bool
    rounds: int
    end_cost: FloatArray


class Schedule(NamedTuple):
    """How the search runs; see `spga.Settings` for the meanings."""

    iterations: int
    rollout: int
    first_temperature: float
    last_temperature: float
    cooled_by: float
    perturbation: float
    perturbation_decay: float
    rademacher: bool
    divides: bool
    common_numbers: bool
    carries_over: bool
    start_backlog: int
    step: float
    step_decay: float
    printed_step: bool
    normalises: bool
    momentum: float
    spread_memory: float
    multiplier_step: float
    penalty: float
    printed_multiplier: bool
    smoothing: float
    largest_threshold: float
    averages_from: float
    forgetting: float


class Memory(NamedTuple):
    """What a run remembers between two stretches of experience; all arrays are written to.

    Parameters
    ----------
    parameters, momentum, spread, average : (6 W,) flat, [theta_1, theta_2, h][oracle][arrival]
    numbers : multiplier, smoothed constrained cost, iterations averaged
    counters : iteration, backlog
    """

    parameters: FloatArray
    momentum: FloatArray
    spread: FloatArray
    average: FloatArray
    numbers: FloatArray
    counters: IntArray
