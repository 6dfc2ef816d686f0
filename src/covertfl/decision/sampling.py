"""Drawing long oracle paths, compiled; `oracle.sample_path` is the plain version."""

from __future__ import annotations

from typing import Any

import numba

compiled: Any = numba.njit(cache=True, nogil=True)


@compiled
def _locate(distributions, row, draw):  # type: ignore[no-untyped-def]
    """Where a draw falls in a cumulative law; counted, as no processor guesses where that is."""
    place = 0
    for j in range(distributions.shape[1] - 1):
        place += draw >= distributions[row, j]
    return place


@compiled
def _draw_path(generator, cumulative, first_probs, episode, state, since_start, states):  # type: ignore[no-untyped-def]
    t = 0
    while t < len(states):
        if state < 0 or (episode > 0 and since_start >= episode):
            state, since_start = _locate(first_probs, 0, generator.random()), 1
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
def draw_rounds(generator, cumulative, first_probs, episode, state, since_start, probs, rounds):  # type: ignore[no-untyped-def]
    """Draw an oracle path, arrivals and would-be successes, going on from `state` (-1: nowhere).

    `first_law` has one row.  `chances` are the arrivals' chance and size and the success chances,
    `rounds` the three arrays that are written to.
    """
    arrival_prob, arrival_size, success = probs
    states, arrivals, successes = rounds
    state, since_start = _draw_path(
        generator, cumulative, first_probs, episode, state, since_start, states
    )
    for t in range(len(states)):
        arrivals[t] = arrival_size * (generator.random() < arrival_prob)
    for t in range(len(states)):
        successes[t] = generator.random() < success[states[t]]
    return state, since_start
