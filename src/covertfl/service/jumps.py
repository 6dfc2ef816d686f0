"""Moves of all trajectories at once: a rollback, a replayed state, a new start of the step sizes.

Whatever happens to the true trajectory happens to every decoy in the same round, so that clients
cannot tell from it which is which.  A jump counts as one move of each: numbers of moves only grow,
because replicas hide behind noise that is drawn by them.
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
    moves = tuple(max(pair) + 1 for pair in zip(now.moves, target.moves, strict=True))
    restarted = None
    if now.restarted is not None:
        before = target.restarted or target.moves
        steps = [moved - start for moved, start in zip(target.moves, before, strict=True)]
        restarted = tuple(moved - taken for moved, taken in zip(moves, steps, strict=True))
    learner = replace(
        target, updates=max(now.updates, target.updates) + 1, moves=moves, restarted=restarted
    )
    if replicas is not None:
        learner = show(replace(learner, shown=None, sent=None), replicas)
    return replace(
        state,
        learner=learner,
        scores=tuple(federation.responder.score(weights) for weights in learner.trajectories),
        generation=Generation(state.generation.number + 1),
    )


def restart_steps(state: RunState) -> RunState:
    """Return the state with the step sizes of all trajectories starting anew."""
    learner, memory = state.learner, state.learner.memory
    if memory is not None:
        memory = ServerMemory(0, np.zeros_like(memory.mean), np.zeros_like(memory.square))
    return replace(state, learner=replace(learner, memory=memory, restarted=learner.moves))
