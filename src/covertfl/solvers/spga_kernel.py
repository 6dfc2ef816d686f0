"""The inner loops of the structured policy gradient, compiled.

Everything random comes from a generator that is handed in, and each run has its own, so results do
not depend on how many runs are computed at once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")


# Policies tried in an iteration: as it is, and both ways along the direction.
TRIED = 3

# The sigmoid at multiples of 1/RESOLUTION up to +-REACH; beyond, it is taken to be 0 or 1.
RESOLUTION, REACH = 32.0, 40.0
_TABLE = 1.0 / (1.0 + np.exp(-np.arange(-REACH * RESOLUTION, REACH * RESOLUTION + 1) / RESOLUTION))


@compiled
def sigmoid(x):  # type: ignore[no-untyped-def]
    """1/(1 + exp(-x)) to 1e-9, by its Taylor series at the nearest point of the table."""
    x = min(max(x, -REACH), REACH) + REACH
    place = np.int64(x * RESOLUTION + 0.5)
    d = x - place / RESOLUTION
    value = _TABLE[place]
    slope = value * (1.0 - value)
    return value + d * slope * (1.0 + d * (0.5 - value + d * (1.0 / 6.0 - slope)))


@compiled
def _compute_chance(policies, i, k, y, warmth):  # type: ignore[no-untyped-def]
    """Chance of learning (14) under policy i in oracle and arrival state k; 0 at backlog 0."""
    third = policies.shape[1] // 3
    theta1, theta2, h = policies[i, k], policies[i, third + k], policies[i, 2 * third + k]
    x1, x2 = (y - theta1) * warmth, (y - theta2) * warmth
    # Never below 0, which stands for unknown.
    return max(h * sigmoid(x1) + (1.0 - h) * sigmoid(x2), 0.0) * (y > 0)


@compiled
def make_trial(rules):  # type: ignore[no-untyped-def]
    """Room to try some policies in: backlogs, costs, chances (-1: unknown) and which are known."""
    room = 2 * len(rules.privacy_cost) * (rules.capacity + 1)
    return (
        np.zeros(TRIED, dtype=np.int64),
        np.zeros((TRIED, 2)),
        np.full((TRIED, room), -1.0),
        np.empty((TRIED * room, 2), dtype=np.int64),
    )


@compiled
def roll_out(rules, policies, temperature, rounds, first, count, apart, trial):  # type: ignore[no-untyped-def]
    """Try policies (14), one a row, from the backlogs of `trial` on.

    Policy i is tried on `count` rounds from first + i * apart on.  Its average privacy and
    learning cost and its last backlog are left in `trial`.  All go forward together, so that the
    processor works on one while another waits, and a chance is worked out when first asked for.
    """
    states, arrivals, successes, draws = rounds
    backlog, costs, chances, known = trial
    # Arrays taken out of a tuple within the loop would be counted in and out in every round.
    privacy_cost, held_cost, end_cost = rules.privacy_cost, rules.held_cost, rules.end_cost
    capacity, charged_always = rules.capacity, rules.charged_always
    full_cost, overflow_cost, episode = rules.full_cost, rules.overflow_cost, rules.rounds
    warmth, number_known = 1.0 / temperature, 0
    costs[:] = 0.0
    for t in range(count):
        if episode > 0 and t % episode == 0:
            backlog[:] = capacity
        for i in range(TRIED):
            at, y = first + t + i * apart, backlog[i]
            o, arrived = states[at], arrivals[at]
            k = 2 * o + (arrived > 0)
            place = k * (capacity + 1) + y
            chance = chances[i, place]
            if chance < 0.0:
                chance = _compute_chance(policies, i, k, y, warmth)
                chances[i, place] = chance
                known[number_known, 0], known[number_known, 1] = i, place
                number_known += 1
            learns = draws[at] < chance
            # Products instead of branches: which way a draw falls cannot be guessed.
            costs[i, 0] += privacy_cost[o] * learns
            costs[i, 1] += held_cost[y] * (charged_always | (not learns))
            if y == capacity and not learns:
                costs[i, 1] += full_cost
            y += arrived - (learns & successes[at])
            if y > capacity:
                costs[i, 1] += overflow_cost * (y - capacity)
                y = capacity
            backlog[i] = y
        if episode > 0 and (t + 1) % episode == 0:
            for i in range(TRIED):
                costs[i, 0] += end_cost[backlog[i]]
    for n in range(number_known):
        chances[known[n, 0], known[n, 1]] = -1.0
    costs /= count


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
def _perturb(generator, schedule, omega, direction, policies):  # type: ignore[no-untyped-def]
    """Draw a direction, signs or the printed 0 and 1, and go both ways along it from policy 0."""
    size = len(direction)
    for k in range(size):
        up = generator.random() < 0.5
        direction[k] = 1.0 if up else (-1.0 if schedule.rademacher else 0.0)
        shift = omega * _unit(k, size, schedule.normalises) * direction[k]
        for i, sign in ((1, 1.0), (2, -1.0)):
            moved = policies[0, k] + sign * shift
            policies[i, k] = _place(moved, k, size, schedule.largest_threshold)


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
def advance(generator, rules, schedule, memory, trial, experience, history):  # type: ignore[no-untyped-def]
    """Run as many iterations of Algorithm 1 as the experience lasts for.

    A row of `history` is (privacy, learning, multiplier, parameters ...).
    """
    states, arrivals, successes = experience
    count = schedule.rollout
    # The printed algorithm tries each policy on rounds of its own.
    apart = 0 if schedule.common_numbers else count
    stride = count + 2 * apart
    numbers, size = memory.numbers, len(memory.parameters)
    direction, policies = np.empty(size), np.empty((TRIED, size))
    draws = np.empty(len(states))
    rounds = (states, arrivals, successes, draws)
    backlog, costs = trial[:2]
    for begin in range(0, len(states) - stride + 1, stride):
        n = memory.counters[0]
        done = n / schedule.iterations
        for t in range(begin, begin + stride):
            draws[t] = generator.random()
        cooling = min(done / schedule.cooled_by, 1.0)
        ratio = schedule.last_temperature / schedule.first_temperature
        tau = schedule.first_temperature * ratio**cooling
        omega = schedule.perturbation / (1.0 + n) ** schedule.perturbation_decay
        policies[0] = memory.parameters
        _perturb(generator, schedule, omega, direction, policies)
        y = memory.counters[1] if schedule.carries_over else schedule.start_backlog
        backlog[:] = min(y, rules.capacity)
        roll_out(rules, policies, tau, rounds, begin, count, apart, trial)
        memory.counters[1] = backlog[0]
        privacy, learning = costs[0, 0], costs[0, 1]
        p1, l1, p2, l2 = costs[1, 0], costs[1, 1], costs[2, 0], costs[2, 1]
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
