"""Drawing long oracle paths, compiled; `oracle.sample_path` is the plain version."""

from __future__ import annotations

from typing import Any

import numba

compiled: Any = numba.njit(cache=True, nogil=True)


@compiled
def draw_path(generator, cumulative, first_law, episode, state, since_start, states):  # type: ignore[no-untyped-def]
    """Draw an oracle path into `states`, going on from `state` (-1: nowhere yet)."""
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
    return state, since_start
