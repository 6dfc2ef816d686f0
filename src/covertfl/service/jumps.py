"""Moves of all trajectories at once: a rollback, a replayed state, a new start of the optimizer.

Whatever happens to the true trajectory happens to every decoy in the same round, so that clients
cannot tell from it which is which.  Numbers of moves stay as they are: matched decoys move as often
as learning queries have moved the truth.  With replicas a jump counts as one move, because they
hide behind noise that is drawn by the number of moves, and no noise may be sent twice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from covertfl.runs.federation import Federation, RunState
from covertfl.runs.generations import Generation, show
from covertfl.runs.learner import LearnerState, ServerMemory


def land(federation: Federation, state: RunState, target: LearnerState) -> RunState:
    """Return the state with all trajectories where they are in `target`.

    The queue and everything that counts rounds stay as they are; a generation starts anew.
    """
    now, replicas = state.learner, federation.responder.replicas
    learner = replace(target, updates=now.updates, moves=now.moves)
    if replicas is not None:
        unseen = replace(learner, updates=now.updates + 1, shown=None, sent=None)
        learner = show(unseen, replicas)
    return replace(
        state,
        learner=learner,
        scores=tuple(federation.responder.score(weights) for weights in learner.trajectories),
        generation=Generation(state.generation.number + 1),
    )


def restart_steps(state: RunState) -> RunState:
    """Return the state with the memory of the server's optimizer empty."""
    memory = state.learner.memory
    if memory is None:
        return state
    empty = ServerMemory(0, np.zeros_like(memory.mean), np.zeros_like(memory.square))
    return replace(state, learner=replace(state.learner, memory=empty))
