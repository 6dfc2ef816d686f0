"""The inner loops of the structured policy gradient, compiled.

Everything random comes from a generator that is handed in, and each run has its own, so results do
not depend on how many runs are computed at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from covertfl.oracle import FloatArray

compiled: Any = numba.njit(cache=True, nogil=True)


class Rules(NamedTuple):
    """What a round costs and how the backlog moves; no chance of the oracle is in it.

    Parameters
    ----------
    privacy_cost : (W,) cost of a learning query
    held_cost : (capacity + 1,) learning cost of a round by backlog
    charged_always : whether a learning query pays it too
    full_cost, overflow_cost : of obfuscating at capacity, of each lost update
    capacity : largest backlog
    limit : of the constrained average
    minimises_privacy : whether privacy is minimised and learning constrained, or the reverse
    rounds : length of an episode, 0 for an endless queue
    end_cost : (capacity + 1,) cost of ending an episode with a backlog; it begins at capacity
    """

    privacy_cost: FloatArray
    held_cost: FloatArray
    charged_always: bool
    full_cost: float
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
    parameters, momentum, spread, average : (3, W, 2)
    numbers : multiplier, smoothed constrained cost, iterations averaged
    counters : iteration, backlog
    """

    parameters: FloatArray
    momentum: FloatArray
    spread: FloatArray
    average: FloatArray
    numbers: FloatArray
    counters: Any


@compiled
def _sigmoid(x):  # type: ignore[no-untyped-def]
    if x > 40.0:
        return 1.0
    if x < -40.0:
        return 0.0
    return 1.0 / (1.0 + np.exp(-x))


@compiled
def roll_out(rules, parameters, temperature, states, arrivals, successes, draws, first, count, y):  # type: ignore[no-untyped-def]
    """Average privacy and learning cost of a round under the policy (14), and the backlog after."""
    privacy = 0.0
    learning = 0.0
    for t in range(first, first + count):
        if rules.rounds > 0 and (t - first) % rules.rounds == 0:
            y = rules.capacity
        o = states[t]
        e = 1 if arrivals[t] > 0 else 0
        learns = False
        if y > 0:
            h = parameters[2, o, e]
            chance = h * _sigmoid((y - parameters[0, o, e]) / temperature)
            chance += (1.0 - h) * _sigmoid((y - parameters[1, o, e]) / temperature)
            learns = draws[t] < chance
        if learns:
            privacy += rules.privacy_cost[o]
        elif y == rules.capacity:
            learning += rules.full_cost
        if rules.charged_always or not learns:
            learning += rules.held_cost[y]
        y += arrivals[t]
        if learns and successes[t]:
            y -= 1
        if y > rules.capacity:
            learning += rules.overflow_cost * (y - rules.capacity)
            y = rules.capacity
        if rules.rounds > 0 and (t - first + 1) % rules.rounds == 0:
            privacy += rules.end_cost[y]
    return privacy / count, learning / count, y


@compiled
def _clip(parameters, largest):  # type: ignore[no-untyped-def]
    for i in range(2):
        for o in range(parameters.shape[1]):
            for e in range(2):
                parameters[i, o, e] = min(max(parameters[i, o, e], -0.1 * largest), largest)
    for o in range(parameters.shape[1]):
        for e in range(2):
            parameters[2, o, e] = min(max(parameters[2, o, e], 0.0), 1.0)


@compiled
def _draw_direction(generator, shape, rademacher):  # type: ignore[no-untyped-def]
    """Signs +1 and -1, or the printed 0 and 1, for every parameter."""
    direction = np.empty(shape)
    for i in range(shape[0]):
        for o in range(shape[1]):
            for e in range(shape[2]):
                up = generator.random() < 0.5
                direction[i, o, e] = 1.0 if up else (-1.0 if rademacher else 0.0)
    return direction


@compiled
def _compare(rules, schedule, memory, direction, omega, unit, temperature, rounds, begin):  # type: ignore[no-untyped-def]
    """Costs of the policy and differences between its two neighbours, on one stretch of rounds.

    Returns privacy and learning cost of the policy, then the differences of both.
    """
    states, arrivals, successes, draws = rounds
    plus = memory.parameters + omega * unit * direction
    minus = memory.parameters - omega * unit * direction
    _clip(plus, schedule.largest_threshold)
    _clip(minus, schedule.largest_threshold)
    count = schedule.rollout
    # The printed algorithm tries each policy on rounds of its own.
    apart = 0 if schedule.common_numbers else count
    y = memory.counters[1] if schedule.carries_over else schedule.start_backlog
    p0, l0, after = roll_out(
        rules, memory.parameters, temperature, states, arrivals, successes, draws, begin, count, y
    )
    p1, l1, _ = roll_out(
        rules, plus, temperature, states, arrivals, successes, draws, begin + apart, count, y
    )
    p2, l2, _ = roll_out(
        rules, minus, temperature, states, arrivals, successes, draws, begin + 2 * apart, count, y
    )
    memory.counters[1] = after
    return p0, l0, p1 - p2, l1 - l2


@compiled
def _move(schedule, memory, slope, direction, unit, step):  # type: ignore[no-untyped-def]
    """Move the parameters against the estimated gradient, the first line of (15)."""
    n = memory.counters[0]
    gradient = slope * direction
    if schedule.normalises:
        memory.momentum[:] = schedule.momentum * memory.momentum
        memory.momentum[:] += (1.0 - schedule.momentum) * gradient
        memory.spread[:] = schedule.spread_memory * memory.spread
        memory.spread[:] += (1.0 - schedule.spread_memory) * gradient * gradient
        mean = memory.momentum / (1.0 - schedule.momentum ** (n + 1))
        square = memory.spread / (1.0 - schedule.spread_memory ** (n + 1))
        gradient = mean / (np.sqrt(square) + 1e-300)
    memory.parameters[:] -= step * unit * gradient
    _clip(memory.parameters, schedule.largest_threshold)


@compiled
def _price(schedule, multiplier, excess, step, decay):  # type: ignore[no-untyped-def]
    """The next multiplier, the second line of (15)."""
    if schedule.printed_multiplier:
        return max((1.0 - step / schedule.penalty) * multiplier, multiplier + step * excess)
    return max(0.0, multiplier + schedule.multiplier_step * decay * excess)


@compiled
def advance(generator, rules, schedule, memory, states, arrivals, successes, history):  # type: ignore[no-untyped-def]
    """Run as many iterations of Algorithm 1 as the experience lasts for.

    A row of `history` is (privacy, learning, multiplier, parameters ...).
    """
    stride = schedule.rollout if schedule.common_numbers else 3 * schedule.rollout
    numbers = memory.numbers
    # One unit of each parameter: thresholds are counted in backlog, h is a share.
    unit = np.ones(memory.parameters.shape)
    unit[2] = 0.1 if schedule.normalises else 1.0
    draws = np.empty(len(states))
    rounds = (states, arrivals, successes, draws)
    for block in range(len(states) // stride):
        n = memory.counters[0]
        done = n / schedule.iterations
        begin = block * stride
        for t in range(begin, begin + stride):
            draws[t] = generator.random()
        cooling = min(done / schedule.cooled_by, 1.0)
        ratio = schedule.last_temperature / schedule.first_temperature
        temperature = schedule.first_temperature * ratio**cooling
        omega = schedule.perturbation / (1.0 + n) ** schedule.perturbation_decay
        direction = _draw_direction(generator, memory.parameters.shape, schedule.rademacher)
        privacy, learning, privacy_slope, learning_slope = _compare(
            rules, schedule, memory, direction, omega, unit, temperature, rounds, begin
        )
        constrained, slope, constrained_slope = learning, privacy_slope, learning_slope
        if not rules.minimises_privacy:
            constrained, slope, constrained_slope = privacy, learning_slope, privacy_slope
        numbers[1] += schedule.smoothing * (constrained - numbers[1])
        weight = max(0.0, numbers[0] + schedule.penalty * (numbers[1] - rules.limit))
        slope += weight * constrained_slope
        if schedule.divides:
            slope /= 2.0 * omega
        decay = 1.0 / (1.0 + schedule.step_decay * done)
        if schedule.printed_step:
            decay = 1.0 / (n + 1.0)
        step = schedule.step * decay
        _move(schedule, memory, slope, direction, unit, step)
        numbers[0] = _price(schedule, numbers[0], constrained - rules.limit, step, decay)
        if done >= schedule.averages_from:
            numbers[2] += 1.0
            latest = max(1.0 / numbers[2], schedule.forgetting)
            memory.average[:] += (memory.parameters - memory.average) * latest
        if n < len(history):
            history[n, 0] = privacy
            history[n, 1] = learning
            history[n, 2] = weight
            history[n, 3:] = memory.parameters.ravel()
        memory.counters[0] = n + 1
