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
    """What a round costs and how the backlog moves; no chance of the oracle is in it."""

    privacy_cost: FloatArray
    held_cost: FloatArray
    charged_always: bool
    full_cost: float
    overflow_cost: float
    arrival_size: int
    capacity: int
    limit: float
    minimises_privacy: bool


class Schedule(NamedTuple):
    """How the search runs; see `spga.Settings` for the meanings."""

    iterations: int
    rollout: int
    first_temperature: float
    last_temperature: float
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
    """Average privacy and learning cost of `count` rounds under the policy (14), and the backlog."""
    privacy = 0.0
    learning = 0.0
    for t in range(first, first + count):
        o = states[t]
        e = arrivals[t]
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
        y += e * rules.arrival_size
        if learns and successes[t]:
            y -= 1
        if y > rules.capacity:
            learning += rules.overflow_cost * (y - rules.capacity)
            y = rules.capacity
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
def advance(generator, rules, schedule, memory, states, arrivals, successes, history):  # type: ignore[no-untyped-def]
    """Run as many iterations of Algorithm 1 as the experience lasts for.

    A row of `history` is (privacy, learning, multiplier, parameters ...).
    """
    rollout = schedule.rollout
    stride = rollout if schedule.common_numbers else 3 * rollout
    parameters, average, numbers = memory.parameters, memory.average, memory.numbers
    shape = parameters.shape
    # One unit of each parameter: thresholds are counted in backlog, h is a share.
    unit = np.ones(shape)
    unit[2] = 0.1 if schedule.normalises else 1.0
    draws = np.empty(len(states))
    for block in range(len(states) // stride):
        n = memory.counters[0]
        done = n / schedule.iterations
        begin = block * stride
        for t in range(begin, begin + stride):
            draws[t] = generator.random()
        temperature = schedule.first_temperature * (
            schedule.last_temperature / schedule.first_temperature
        ) ** min(done, 1.0)
        omega = schedule.perturbation / (1.0 + n) ** schedule.perturbation_decay
        direction = np.empty(shape)
        for i in range(shape[0]):
            for o in range(shape[1]):
                for e in range(shape[2]):
                    up = generator.random() < 0.5
                    direction[i, o, e] = 1.0 if up else (-1.0 if schedule.rademacher else 0.0)
        plus = parameters + omega * unit * direction
        minus = parameters - omega * unit * direction
        _clip(plus, schedule.largest_threshold)
        _clip(minus, schedule.largest_threshold)
        backlog = memory.counters[1] if schedule.carries_over else schedule.start_backlog
        second = begin if schedule.common_numbers else begin + rollout
        third = begin if schedule.common_numbers else begin + 2 * rollout
        p1, l1, _ = roll_out(
            rules, plus, temperature, states, arrivals, successes, draws, second, rollout, backlog
        )
        p2, l2, _ = roll_out(
            rules, minus, temperature, states, arrivals, successes, draws, third, rollout, backlog
        )
        p0, l0, after = roll_out(
            rules,
            parameters,
            temperature,
            states,
            arrivals,
            successes,
            draws,
            begin,
            rollout,
            backlog,
        )
        memory.counters[1] = after
        difference, constrained_difference, constrained = p1 - p2, l1 - l2, l0
        if not rules.minimises_privacy:
            difference, constrained_difference, constrained = l1 - l2, p1 - p2, p0
        excess = constrained - rules.limit
        numbers[1] += schedule.smoothing * (constrained - numbers[1])
        weight = max(0.0, numbers[0] + schedule.penalty * (numbers[1] - rules.limit))
        slope = difference + weight * constrained_difference
        if schedule.divides:
            slope /= 2.0 * omega
        decay = (
            1.0 / (n + 1.0) if schedule.printed_step else 1.0 / (1.0 + schedule.step_decay * done)
        )
        step = schedule.step * decay
        for i in range(shape[0]):
            for o in range(shape[1]):
                for e in range(shape[2]):
                    gradient = slope * direction[i, o, e]
                    if schedule.normalises:
                        m = schedule.momentum * memory.momentum[i, o, e]
                        m += (1.0 - schedule.momentum) * gradient
                        v = schedule.spread_memory * memory.spread[i, o, e]
                        v += (1.0 - schedule.spread_memory) * gradient * gradient
                        memory.momentum[i, o, e] = m
                        memory.spread[i, o, e] = v
                        m /= 1.0 - schedule.momentum ** (n + 1)
                        v /= 1.0 - schedule.spread_memory ** (n + 1)
                        gradient = m / (np.sqrt(v) + 1e-300)
                    parameters[i, o, e] -= step * unit[i, o, e] * gradient
        _clip(parameters, schedule.largest_threshold)
        if schedule.printed_multiplier:
            numbers[0] = max(
                (1.0 - step / schedule.penalty) * numbers[0], numbers[0] + step * excess
            )
        else:
            numbers[0] = max(0.0, numbers[0] + schedule.multiplier_step * decay * excess)
        if done >= schedule.averages_from:
            numbers[2] += 1.0
            average += (parameters - average) / numbers[2]
        if n < len(history):
            history[n, 0] = p0
            history[n, 1] = l0
            history[n, 2] = weight
            history[n, 3:] = parameters.ravel()
        memory.counters[0] = n + 1
