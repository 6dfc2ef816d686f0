"""Drawing long oracle paths, compiled; `oracle.sample_path` is the plain version."""

from __future__ import annotations

from typing import Any

import numba

compiled: Any = numba.njit(cache=True, nogil=True)


@compiled
def draw_rounds(generator, cumulative, first_law, episode, state, since_start, chances, rounds):  # type: ignore[no-untyped-def]
    """Draw an oracle path, arrivals and would-be successes, going on from `state` (-1: nowhere).

    `chances` are the arrivals' chance and size and the success chances, `rounds` the three arrays
    that are written to.
    """
    arrival_prob, arrival_size, success = chances
    states, arrivals, successes = rounds
    num_states = len(cumulative)
    for t in range(len(states)):
        restart = state < 0 or (episode > 0 and since_start >= episode)
        law = first_law if restart else cumulative[state]
        draw = generator.random()
        following = 0
        while following < num_states - 1 and draw >= law[following]:
            following += 1
        state = following
        since_start = 1 if restart else since_start + 1
        states[t] = state
    for t in range(len(states)):
        arrivals[t] = arrival_size if generator.random() < arrival_prob else 0
    for t in range(len(states)):
        successes[t] = generator.random() < success[states[t]]
    return state, since_start
