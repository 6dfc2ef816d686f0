"""Compiled sampling of long oracle paths; `oracle.sample_path` is the plain version."""

from __future__ import annotations

from typing import Any

import numba

compiled: Any = numba.njit(cache=True, nogil=True)


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
    """Sample an oracle path, arrivals and would-be successes, continuing from `state`.

    Parameters
    ----------
    oracle : cumulative rows of P^O, the cumulative first distribution as one row, and g
    arrival : probability and size of an arrival
    episode : rounds after which the path restarts; 0 for never
    state, since_start : last state (-1 before the first round), and rounds since the last start
    rounds : three arrays that are written to: states, arrivals and successes

    Returns
    -------
    `state` and `since_start` after the last round
    """
    cumulative, first_cumulative, success = oracle
    arrival_prob, arrival_size = arrival
    states, arrivals, successes = rounds
    state, since_start = _draw_path(
        generator, cumulative, first_cumulative, episode, state, since_start, states
    )
    for t in range(len(states)):
        arrivals[t] = arrival_size * (generator.random() < arrival_prob)
    for t in range(len(states)):
        successes[t] = generator.random() < success[states[t]]
    return state, since_start
