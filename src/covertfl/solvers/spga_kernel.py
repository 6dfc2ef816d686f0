"""The inner loops of the structured policy gradient, compiled.

Everything random comes from a generator that is handed in, and each run has its own, so results do
not depend on how many runs are computed at once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")


@compiled
def _sigmoid(x):  # type: ignore[no-untyped-def]
    if x > 40.0:
        return 1.0
    if x < -40.0:
        return 0.0
    return 1.0 / (1.0 + np.exp(-x))


@compiled
def _accept(draw, h, x1, x2):  # type: ignore[no-untyped-def]
    """Whether a draw is below the chance (14); most draws are settled without an exponential."""
    low, high = min(x1, x2), max(x1, x2)
    if low > 4.0 and draw < 0.98:
        return True
    if high < -4.0 and draw > 0.02:
        return False
    return draw < h * _sigmoid(x1) + (1.0 - h) * _sigmoid(x2)


@compiled
def roll_out(rules, parameters, temperature, rounds, first, count, y):  # type: ignore[no-untyped-def]
    """Average privacy and learning cost of a round under the policy (14), and the backlog after."""
    states, arrivals, successes, draws = rounds
    third = len(parameters) // 3
    privacy = 0.0
    learning = 0.0
    warmth = 1.0 / temperature
    for t in range(first, first + count):
        if rules.rounds > 0 and (t - first) % rules.rounds == 0:
            y = rules.capacity
        o = states[t]
        e = 1 if arrivals[t] > 0 else 0
        learns = False
        if y > 0:
            k = 2 * o + e
            h = parameters[2 * third + k]
            x1, x2 = (y - parameters[k]) * warmth, (y - parameters[third + k]) * warmth
            learns = _accept(draws[t], h, x1, x2)
        privacy += rules.privacy_cost[o] if learns else 0.0
        if y == rules.capacity and not learns:
            learning += rules.full_cost
        learning += rules.held_cost[y] if (rules.charged_always or not learns) else 0.0
        y += arrivals[t] - (learns & successes[t])
        if y > rules.capacity:
            learning += rules.overflow_cost * (y - rules.capacity)
            y = rules.capacity
        if rules.rounds > 0 and (t - first + 1) % rules.rounds == 0:
            privacy += rules.end_cost[y]
    return privacy / count, learning / count, y


# Parameters are flat arrays of 6 W numbers, [theta_1, theta_2, h][oracle][arrival]: plain loops
# over them compile much faster than array expressions.


@compiled
def _place(value, number, size, largest):  # type: ignore[no-untyped-def]
    """Bring parameter `number` back into its box: thresholds first, the last third are shares."""
    if 3 * number >= 2 * size:
        return min(max(value, 0.0), 1.0)
    return min(max(value, -0.1 * largest), largest)


@compiled
def _unit(number, size, normalises):  # type: ignore[no-untyped-def]
    """One unit of a parameter: thresholds are counted in backlog, h is a share."""
    return 0.1 if normalises and 3 * number >= 2 * size else 1.0


@compiled
def _perturb(generator, schedule, parameters, omega, direction, plus, minus):  # type: ignore[no-untyped-def]
    """Draw a direction, signs or the printed 0 and 1, and go both ways along it."""
    size = len(parameters)
    for k in range(size):
        up = generator.random() < 0.5
        direction[k] = 1.0 if up else (-1.0 if schedule.rademacher else 0.0)
        shift = omega * _unit(k, size, schedule.normalises) * direction[k]
        plus[k] = _place(parameters[k] + shift, k, size, schedule.largest_threshold)
        minus[k] = _place(parameters[k] - shift, k, size, schedule.largest_threshold)


@compiled
def _move(schedule, memory, slope, direction, step):  # type: ignore[no-untyped-def]
    """Move the parameters against the estimated gradient, the first line of (15)."""
    n = memory.counters[0]
    size = len(direction)
    fresh_mean = 1.0 - schedule.momentum ** (n + 1)
    fresh_square = 1.0 - schedule.spread_memory ** (n + 1)
    for k in range(size):
        gradient = slope * direction[k]
        if schedule.normalises:
            mean = schedule.momentum * memory.momentum[k] + (1.0 - schedule.momentum) * gradient
            square = schedule.spread_memory * memory.spread[k]
            square += (1.0 - schedule.spread_memory) * gradient * gradient
            memory.momentum[k] = mean
            memory.spread[k] = square
            gradient = mean / fresh_mean / (np.sqrt(square / fresh_square) + 1e-300)
        moved = memory.parameters[k] - step * _unit(k, size, schedule.normalises) * gradient
        memory.parameters[k] = _place(moved, k, size, schedule.largest_threshold)


@compiled
def _price(schedule, multiplier, excess, decay):  # type: ignore[no-untyped-def]
    """The next multiplier, the second line of (15)."""
    if schedule.printed_multiplier:
        step = schedule.step * decay
        return max((1.0 - step / schedule.penalty) * multiplier, multiplier + step * excess)
    return max(0.0, multiplier + schedule.multiplier_step * decay * excess)


@compiled
def _record(schedule, memory, done, privacy, learning, weight, history):  # type: ignore[no-untyped-def]
    """Take the iterate into the average and write the iteration down."""
    n = memory.counters[0]
    averages = done >= schedule.averages_from
    if averages:
        memory.numbers[2] += 1.0
    if n < len(history):
        history[n, 0] = privacy
        history[n, 1] = learning
        history[n, 2] = weight
    for k in range(len(memory.parameters)):
        if averages:
            latest = max(1.0 / memory.numbers[2], schedule.forgetting)
            memory.average[k] += (memory.parameters[k] - memory.average[k]) * latest
        if n < len(history):
            history[n, 3 + k] = memory.parameters[k]


@compiled
def advance(generator, rules, schedule, memory, states, arrivals, successes, history):  # type: ignore[no-untyped-def]
    """Run as many iterations of Algorithm 1 as the experience lasts for.

    A row of `history` is (privacy, learning, multiplier, parameters ...).
    """
    count = schedule.rollout
    # The printed algorithm tries each policy on rounds of its own.
    apart = 0 if schedule.common_numbers else count
    stride = count + 2 * apart
    numbers, size = memory.numbers, len(memory.parameters)
    direction, plus, minus = np.empty(size), np.empty(size), np.empty(size)
    draws = np.empty(len(states))
    for begin in range(0, len(states) - stride + 1, stride):
        n = memory.counters[0]
        done = n / schedule.iterations
        for t in range(begin, begin + stride):
            draws[t] = generator.random()
        cooling = min(done / schedule.cooled_by, 1.0)
        ratio = schedule.last_temperature / schedule.first_temperature
        tau = schedule.first_temperature * ratio**cooling
        omega = schedule.perturbation / (1.0 + n) ** schedule.perturbation_decay
        _perturb(generator, schedule, memory.parameters, omega, direction, plus, minus)
        rounds = (states, arrivals, successes, draws)
        y = memory.counters[1] if schedule.carries_over else schedule.start_backlog
        y = min(y, rules.capacity)
        privacy, learning, after = roll_out(rules, memory.parameters, tau, rounds, begin, count, y)
        p1, l1, _ = roll_out(rules, plus, tau, rounds, begin + apart, count, y)
        p2, l2, _ = roll_out(rules, minus, tau, rounds, begin + 2 * apart, count, y)
        memory.counters[1] = after
        constrained, slope, constrained_slope = learning, p1 - p2, l1 - l2
        if not rules.minimises_privacy:
            constrained, slope, constrained_slope = privacy, l1 - l2, p1 - p2
        numbers[1] += schedule.smoothing * (constrained - numbers[1])
        weight = max(0.0, numbers[0] + schedule.penalty * (numbers[1] - rules.limit))
        slope += weight * constrained_slope
        if schedule.divides:
            slope /= 2.0 * omega
        decay = 1.0 / (1.0 + schedule.step_decay * done)
        if schedule.printed_step:
            decay = 1.0 / (n + 1.0)
        _move(schedule, memory, slope, direction, schedule.step * decay)
        numbers[0] = _price(schedule, numbers[0], constrained - rules.limit, decay)
        _record(schedule, memory, done, privacy, learning, weight, history)
        memory.counters[0] = n + 1
