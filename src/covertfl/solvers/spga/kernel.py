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

# Beyond this many temperatures from a threshold its sigmoid is 0 or 1 to all digits.
REACH = 37.0


@compiled
def make_trial(rules):  # type: ignore[no-untyped-def]
    """Room to try some policies in: backlogs, costs, and the policies as `_prepare` has them."""
    columns = 2 * len(rules.privacy_cost)
    return (
        np.zeros(TRIED, dtype=np.int64),
        np.zeros((TRIED, 2)),
        np.zeros((TRIED, columns, 2), dtype=np.int64),
        np.zeros((TRIED, columns, 3)),
    )


@compiled
def tabulate_odds(temperature):  # type: ignore[no-untyped-def]
    """exp(-d/tau) at whole distances d = -R ... R, as far as a sigmoid is neither 0 nor 1."""
    reach = np.int64(np.ceil(REACH * temperature)) + 1
    odds = np.ones(2 * reach + 1)
    fall = np.exp(-1.0 / temperature)
    for d in range(1, reach + 1):
        odds[reach + d] = odds[reach + d - 1] * fall
        odds[reach - d] = odds[reach - d + 1] / fall
    return odds


@compiled
def _prepare(policies, temperature, nearest, odds):  # type: ignore[no-untyped-def]
    """Split each threshold into the nearest backlog and the odds at it; h stands beside them."""
    third = policies.shape[1] // 3
    for i in range(TRIED):
        for k in range(third):
            for j in range(2):
                theta = policies[i, j * third + k]
                whole = np.floor(theta + 0.5)
                nearest[i, k, j] = np.int64(whole)
                odds[i, k, j] = np.exp((theta - whole) / temperature)
            odds[i, k, 2] = policies[i, 2 * third + k]


@compiled
def _is_below(draw, y, i, k, nearest, odds, table):  # type: ignore[no-untyped-def]
    """Whether a draw falls below the chance of learning (14) of policy i; never at backlog 0.

    With the odds a = exp((theta_1 - y)/tau) and b alike, the chance is h/(1 + a) + (1 - h)/(1 + b).
    An a is the product of the threshold's own odds and those of a whole distance, so no
    exponential is worked out in a round, and nothing is divided.
    """
    reach = len(table) // 2
    near = min(max(y - nearest[i, k, 0], -reach), reach) + reach
    far = min(max(y - nearest[i, k, 1], -reach), reach) + reach
    a = 1.0 + odds[i, k, 0] * table[np.uintp(near)]
    b = 1.0 + odds[i, k, 1] * table[np.uintp(far)]
    h = odds[i, k, 2]
    return (draw * a * b < h * b + (1.0 - h) * a) & (y > 0)


@compiled
def roll_out(rules, policies, temperature, table, rounds, first, count, trial):  # type: ignore[no-untyped-def]
    """Try three policies (14), one a row, on the same rounds from the backlogs of `trial` on.

    Their average privacy and learning costs and their last backlogs are left in `trial`.  They go
    forward together, so that the processor works on one while another waits, and written out, so
    that it does so without going to memory.  Indices are unsigned because a signed one is first
    asked whether it counts from the end.
    """
    states, arrivals, successes, draws = rounds
    backlog, costs, nearest, odds = trial
    _prepare(policies, temperature, nearest, odds)
    # Arrays taken out of a tuple within the loop would be counted in and out in every round.
    privacy_cost, end_cost = rules.privacy_cost, rules.end_cost
    # Actions times backlogs in one row: the action is no branch, as it cannot be guessed.
    learning_cost, width = rules.learning_cost.reshape(-1), rules.capacity + 1
    capacity, overflow_cost, episode = rules.capacity, rules.overflow_cost, rules.rounds
    y0, y1, y2 = backlog[0], backlog[1], backlog[2]
    privacy0 = privacy1 = privacy2 = learning0 = learning1 = learning2 = 0.0
    for t in range(count):
        if episode > 0 and t % episode == 0:
            y0 = y1 = y2 = capacity
        at = np.uintp(first + t)
        o, arrived, draw = states[at], arrivals[at], draws[at]
        k = np.uintp(2 * o + (arrived > 0))
        u0 = _is_below(draw, y0, 0, k, nearest, odds, table)
        u1 = _is_below(draw, y1, 1, k, nearest, odds, table)
        u2 = _is_below(draw, y2, 2, k, nearest, odds, table)
        cost = privacy_cost[np.uintp(o)]
        privacy0 += cost * u0
        privacy1 += cost * u1
        privacy2 += cost * u2
        learning0 += learning_cost[np.uintp(u0 * width + y0)]
        learning1 += learning_cost[np.uintp(u1 * width + y1)]
        learning2 += learning_cost[np.uintp(u2 * width + y2)]
        succeeds = successes[at]
        y0 += arrived - (u0 & succeeds)
        y1 += arrived - (u1 & succeeds)
        y2 += arrived - (u2 & succeeds)
        if max(y0, y1, y2) > capacity:
            learning0 += overflow_cost * max(y0 - capacity, 0)
            learning1 += overflow_cost * max(y1 - capacity, 0)
            learning2 += overflow_cost * max(y2 - capacity, 0)
            y0, y1, y2 = min(y0, capacity), min(y1, capacity), min(y2, capacity)
        if episode > 0 and (t + 1) % episode == 0:
            privacy0 += end_cost[y0]
            privacy1 += end_cost[y1]
            privacy2 += end_cost[y2]
    backlog[0], backlog[1], backlog[2] = y0, y1, y2
    costs[0, 0], costs[1, 0], costs[2, 0] = privacy0, privacy1, privacy2
    costs[0, 1], costs[1, 1], costs[2, 1] = learning0, learning1, learning2
    costs /= count


@compiled
def _roll_out_apart(rules, policies, temperature, table, rounds, first, count, trial):  # type: ignore[no-untyped-def]
    """The same with rounds of its own for each policy, as the printed algorithm has it.

    All are tried on every stretch and one is looked at, since no one is in a hurry here.
    """
    backlog, costs = trial[:2]
    y, found = backlog.copy(), np.empty((TRIED, 2))
    last = y.copy()
    for i in range(TRIED):
        backlog[:] = y
        roll_out(rules, policies, temperature, table, rounds, first + i * count, count, trial)
        found[i], last[i] = costs[i], backlog[i]
    costs[:], backlog[:] = found, last


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
    stride = count if schedule.common_numbers else TRIED * count
    numbers, size = memory.numbers, len(memory.parameters)
    direction, policies = np.empty(size), np.empty((TRIED, size))
    draws = np.empty(len(states))
    rounds = (states, arrivals, successes, draws)
    backlog, costs = trial[:2]
    tau, table = 0.0, np.empty(0)
    for begin in range(0, len(states) - stride + 1, stride):
        n = memory.counters[0]
        done = n / schedule.iterations
        for t in range(begin, begin + stride):
            draws[t] = generator.random()
        cooling = min(done / schedule.cooled_by, 1.0)
        ratio = schedule.last_temperature / schedule.first_temperature
        before, tau = tau, schedule.first_temperature * ratio**cooling
        if tau != before:
            table = tabulate_odds(tau)
        omega = schedule.perturbation / (1.0 + n) ** schedule.perturbation_decay
        policies[0] = memory.parameters
        _perturb(generator, schedule, omega, direction, policies)
        y = memory.counters[1] if schedule.carries_over else schedule.start_backlog
        backlog[:] = min(y, rules.capacity)
        if schedule.common_numbers:
            roll_out(rules, policies, tau, table, rounds, begin, count, trial)
        else:
            _roll_out_apart(rules, policies, tau, table, rounds, begin, count, trial)
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
