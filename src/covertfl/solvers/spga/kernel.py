"""The inner loops of the structured policy gradient and of its simulator, compiled.

All randomness comes from a generator argument, and each run has its own, so results do not depend
on how many runs are computed at once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")

# Policies tried in an iteration: the current one, and one on either side along the direction.
TRIED = 3

# Beyond this many temperatures from a threshold its sigmoid is 0 or 1 in floating point.
REACH = 37.0


@compiled
def make_trial(rules):  # type: ignore[no-untyped-def]
    """Allocate what a rollout writes: backlogs, costs, and the policies in `_prepare`'s form."""
    columns = len(rules.arrival_support) * len(rules.privacy_cost)
    return (
        np.zeros(TRIED, dtype=np.int64),
        np.zeros((TRIED, 2)),
        np.zeros((TRIED, columns, 2), dtype=np.int64),
        np.zeros((TRIED, columns, 3)),
    )


@compiled
def tabulate_odds(temperature):  # type: ignore[no-untyped-def]
    """Tabulate exp(-d/tau) at distances d = -R ... R, as far as a sigmoid is neither 0 nor 1."""
    reach = np.int64(np.ceil(REACH * temperature)) + 1
    odds = np.ones(2 * reach + 1)
    fall = np.exp(-1.0 / temperature)
    for d in range(1, reach + 1):
        odds[reach + d] = odds[reach + d - 1] * fall
        odds[reach - d] = odds[reach - d + 1] / fall
    return odds


@compiled
def _prepare(policies, temperature, nearest, odds):  # type: ignore[no-untyped-def]
    """Split each threshold into the nearest backlog and the odds at it; h follows them."""
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
    """Return whether a draw falls below policy i's learning probability, equation (14).

    With the odds a = exp((theta_1 - y)/tau) and b = exp((theta_2 - y)/tau), the probability is
    h/(1 + a) + (1 - h)/(1 + b), and 0 at backlog 0 (deviation D15).  Each of a and b is the product
    of the threshold's own odds and those of a whole distance, so a round computes no exponential
    and no division.
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
    """Run three policies (14), one in each row, on the same rounds, from the backlogs in `trial`.

    Writes their average privacy and learning costs and their last backlogs to `trial`.  The three
    advance together, so that the processor works on one while another waits, and are written out,
    so that their state stays in registers.  Indices are unsigned because a signed index is first
    checked for counting from the end.
    """
    states, arrivals, successes, draws = rounds
    backlog, costs, nearest, odds = trial
    _prepare(policies, temperature, nearest, odds)
    # Arrays taken out of a tuple inside the loop would be reference-counted in every round.
    privacy_cost, end_cost = rules.privacy_cost, rules.end_cost
    # States, actions and backlogs in one row: a branch on the action could not be predicted.
    learning_cost, width = rules.learning_cost.reshape(-1), rules.capacity + 1
    support, num_arrivals = rules.arrival_support, len(rules.arrival_support)
    capacity, overflow_cost, episode = rules.capacity, rules.overflow_cost, rules.rounds
    y0, y1, y2 = backlog[0], backlog[1], backlog[2]
    privacy0 = privacy1 = privacy2 = learning0 = learning1 = learning2 = 0.0
    for t in range(count):
        if episode > 0 and t % episode == 0:
            y0 = y1 = y2 = capacity
        at = np.uintp(first + t)
        o, arrived, draw = states[at], arrivals[at], draws[at]
        k = o * num_arrivals
        for j in range(num_arrivals - 1):  # the arrival index, counted because a search branches
            k += arrived > support[j]
        k = np.uintp(k)
        u0 = _is_below(draw, y0, 0, k, nearest, odds, table)
        u1 = _is_below(draw, y1, 1, k, nearest, odds, table)
        u2 = _is_below(draw, y2, 2, k, nearest, odds, table)
        cost = privacy_cost[np.uintp(o)]
        privacy0 += cost * u0
        privacy1 += cost * u1
        privacy2 += cost * u2
        row = 2 * o * width
        learning0 += learning_cost[np.uintp(row + u0 * width + y0)]
        learning1 += learning_cost[np.uintp(row + u1 * width + y1)]
        learning2 += learning_cost[np.uintp(row + u2 * width + y2)]
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
    """Run three policies, each on rounds of its own, as Algorithm 1 is printed.

    All three run on every stretch and one result is kept: this variant need not be fast.
    """
    backlog, costs = trial[:2]
    y, found = backlog.copy(), np.empty((TRIED, 2))
    last = y.copy()
    for i in range(TRIED):
        backlog[:] = y
        roll_out(rules, policies, temperature, table, rounds, first + i * count, count, trial)
        found[i], last[i] = costs[i], backlog[i]
    costs[:], backlog[:] = found, last


# Parameters are flat arrays of 3 W A numbers, [theta_1, theta_2, h][oracle][arrival]: plain loops
# over them compile much faster than array expressions.


@compiled
def _place(value, number, size, largest):  # type: ignore[no-untyped-def]
    """Project parameter `number` onto its box; the last third of the parameters are shares h."""
    if 3 * number >= 2 * size:
        return min(max(value, 0.0), 1.0)
    return min(max(value, -0.1 * largest), largest)


@compiled
def _unit(number, size, normalises):  # type: ignore[no-untyped-def]
    """Return the unit of a parameter: thresholds are measured in backlog, h is a share."""
    return 0.1 if normalises and 3 * number >= 2 * size else 1.0


@compiled
def _perturb(generator, schedule, omega, direction, policies):  # type: ignore[no-untyped-def]
    """Draw a direction, of signs or of the printed 0 and 1, and step both ways from policy 0."""
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
    """Move the parameters against the estimated gradient, first line of equation (15)."""
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
def _update_multiplier(schedule, multiplier, excess, decay):  # type: ignore[no-untyped-def]
    """Return the next multiplier, second line of equation (15) (deviation D12)."""
    if schedule.printed_multiplier:
        step = schedule.step * decay
        return max((1.0 - step / schedule.penalty) * multiplier, multiplier + step * excess)
    return max(0.0, multiplier + schedule.multiplier_step * decay * excess)


@compiled
def _record(schedule, memory, done, privacy, learning, weight, history):  # type: ignore[no-untyped-def]
    """Add the iterate to the average and write the iteration to the history."""
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
def _find_temperature(schedule, done):  # type: ignore[no-untyped-def]
    """Return tau of equation (14), falling geometrically with the share of iterations done."""
    cooling = min(done / schedule.cooled_by, 1.0)
    ratio = schedule.last_temperature / schedule.first_temperature
    return schedule.first_temperature * ratio**cooling


@compiled
def _find_decay(schedule, n, done):  # type: ignore[no-untyped-def]
    """Return the factor by which the step sizes of equation (15) have fallen."""
    if schedule.printed_step:
        return 1.0 / (n + 1.0)
    return 1.0 / (1.0 + schedule.step_decay * done)


@compiled
def _try_policies(rules, schedule, memory, policies, tau, table, rounds, first, trial):  # type: ignore[no-untyped-def]
    """Roll out the current policy and the two perturbed ones, and keep the current backlog."""
    backlog, count = trial[0], schedule.rollout
    y = memory.counters[1] if schedule.carries_over else schedule.start_backlog
    backlog[:] = min(y, rules.capacity)
    if schedule.common_numbers:
        roll_out(rules, policies, tau, table, rounds, first, count, trial)
    else:
        _roll_out_apart(rules, policies, tau, table, rounds, first, count, trial)
    memory.counters[1] = backlog[0]


@compiled
def _estimate_slope(rules, schedule, memory, costs, omega):  # type: ignore[no-untyped-def]
    """Estimate the slope of the Lagrangian along the direction, as in Algorithm 1.

    Returns the slope, the constrained cost of the current policy and the weight of that cost.
    """
    minimised, constrained = (0, 1) if rules.minimises_privacy else (1, 0)
    spent, numbers = costs[0, constrained], memory.numbers
    numbers[1] += schedule.smoothing * (spent - numbers[1])
    weight = max(0.0, numbers[0] + schedule.penalty * (numbers[1] - rules.limit))
    slope = costs[1, minimised] - costs[2, minimised]
    slope += weight * (costs[1, constrained] - costs[2, constrained])
    if schedule.divides:
        slope /= 2.0 * omega
    return slope, spent, weight


@compiled
def advance(generator, rules, schedule, memory, experience, history):  # type: ignore[no-untyped-def]
    """Run as many iterations of Algorithm 1 as the experience lasts for.

    A row of `history` is (privacy, learning, multiplier, parameters ...).
    """
    states, arrivals, successes = experience
    stride = schedule.rollout if schedule.common_numbers else TRIED * schedule.rollout
    trial = make_trial(rules)
    size, costs = len(memory.parameters), trial[1]
    direction, policies = np.empty(size), np.empty((TRIED, size))
    draws = np.empty(len(states))
    rounds = (states, arrivals, successes, draws)
    tau, table = 0.0, np.empty(0)
    for begin in range(0, len(states) - stride + 1, stride):
        n = memory.counters[0]
        done = n / schedule.iterations
        for t in range(begin, begin + stride):
            draws[t] = generator.random()
        previous, tau = tau, _find_temperature(schedule, done)
        if tau != previous:
            table = tabulate_odds(tau)
        omega = schedule.perturbation / (1.0 + n) ** schedule.perturbation_decay
        policies[0] = memory.parameters
        _perturb(generator, schedule, omega, direction, policies)
        _try_policies(rules, schedule, memory, policies, tau, table, rounds, begin, trial)
        slope, spent, weight = _estimate_slope(rules, schedule, memory, costs, omega)
        decay = _find_decay(schedule, n, done)
        _move(schedule, memory, slope, direction, schedule.step * decay)
        memory.numbers[0] = _update_multiplier(
            schedule, memory.numbers[0], spent - rules.limit, decay
        )
        _record(schedule, memory, done, costs[0, 0], costs[0, 1], weight, history)
        memory.counters[0] = n + 1


@compiled
def _locate(cumulative, row, draw):  # type: ignore[no-untyped-def]
    """Return the state that a draw selects from a row of cumulative probabilities.

    It counts instead of searching, because the branches of a search cannot be predicted.
    """
    state = 0
    for j in range(cumulative.shape[1] - 1):
        state += draw >= cumulative[row, j]
    return state


@compiled
def _draw_path(generator, cumulative, first_cumulative, episode, state, since_start, states):  # type: ignore[no-untyped-def]
    t = 0
    while t < len(states):
        if state < 0 or (episode > 0 and since_start >= episode):
            state, since_start = _locate(first_cumulative, 0, generator.random()), 1
            states[t] = state
            t += 1
        stretch = len(states) - t
        if episode > 0:
            stretch = min(stretch, episode - since_start)
        for u in range(t, t + stretch):
            state = _locate(cumulative, state, generator.random())
            states[u] = state
        since_start += stretch
        t += stretch
    return state, since_start


@compiled
def draw_rounds(generator, oracle, arrival, episode, state, since_start, rounds):  # type: ignore[no-untyped-def]
    """Sample an oracle path, arrivals and would-be successes, and write them to `rounds`.

    Parameters
    ----------
    oracle : cumulative rows of P^O, the cumulative first distribution as one row, and g
    arrival : cumulative probabilities of the sizes, and the sizes
    episode : rounds after which the path restarts; 0 for never
    state, since_start : last state (-1 before the first round), and rounds since the last start;
        both are returned as they are after the last round
    """
    cumulative, first_cumulative, success = oracle
    reached, sizes = arrival
    states, arrivals, successes = rounds
    state, since_start = _draw_path(
        generator, cumulative, first_cumulative, episode, state, since_start, states
    )
    for t in range(len(states)):
        draw, arrivals[t] = generator.random(), 0
        for j in range(len(sizes)):
            if draw < reached[j]:
                arrivals[t] = sizes[j]
                break
    for t in range(len(states)):
        successes[t] = generator.random() < success[states[t]]
    return state, since_start
