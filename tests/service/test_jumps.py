"""Moves of all trajectories at once: what is restored, what only grows, what stays alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation
from covertfl.schemes.replies import ServerMemory
from covertfl.service.changes import land, restart_steps
from tests.service.test_desk import EXCHANGEABLE, GREEDY
from tests.support.played_services import SERVICE, play_service
from tests.support.small_runs import make_run, read_rounds

pytestmark = pytest.mark.slow


def start(**changes: Any) -> tuple[Federation, RunState]:
    """Return a federation and its state, some moves after the first round."""
    federation = build_federation(make_run(SERVICE, **changes), KernelCache())
    state = start_run(federation)
    learner = replace(state.learner, updates=7)
    if federation.responder.replicas is None:
        learner = replace(learner, moves=tuple(range(3, 3 + len(learner.moves))))
    return federation, replace(state, round=20, learner=learner)


def shift(state: RunState, by: float) -> Any:
    """Return the trajectories of a state, elsewhere and with other counts."""
    learner = state.learner
    elsewhere = tuple(decoy + np.float32(2 * by) for decoy in learner.decoys)
    return replace(
        learner, true=learner.true + np.float32(by), decoys=elsewhere, updates=3, moves=(1,)
    )


def test_weights_and_memory_are_restored_and_counts_stay() -> None:
    federation, state = start(**GREEDY, federation={"algorithm": "fedsgd"})
    target = shift(state, 0.5)
    memory = ServerMemory(9, np.full_like(target.true, 2.0), np.full_like(target.true, 3.0))
    landed = land(federation, state, replace(target, memory=memory))
    assert [one.tobytes() for one in landed.learner.trajectories] == [
        one.tobytes() for one in target.trajectories
    ]
    assert landed.learner.memory is memory
    now = state.learner
    assert (landed.learner.updates, landed.learner.moves) == (now.updates, now.moves)
    assert (landed.queue, landed.round, landed.queries) == (state.queue, 20, state.queries)
    score = federation.responder.score
    assert landed.scores == tuple(score(one) for one in target.trajectories)


def test_replicas_stay_images_of_a_truth_that_was_never_sent() -> None:
    federation, state = start(**EXCHANGEABLE)
    replicas = federation.responder.replicas
    assert replicas is not None
    target = shift(state, 0.25)
    landed = land(federation, state, target).learner
    for number, image in enumerate(landed.trajectories):
        assert image.tobytes() == replicas.reflect(target.true, number).tobytes()
    assert landed.updates == state.learner.updates
    assert landed.moves == (landed.updates,) * (replicas.size - 1)
    assert landed.sent is not None
    for number, sent in enumerate(landed.sent):
        assert sent.tobytes() == landed.trajectories[number].tobytes()


def test_a_jump_in_the_middle_of_a_generation_begins_another() -> None:
    federation, state = start(**EXCHANGEABLE)
    generation = replace(state.generation, number=4, place=1, pending=state.learner.true)
    landed = land(federation, replace(state, generation=generation), state.learner)
    assert (landed.generation.number, landed.generation.place) == (5, 0)
    assert landed.generation.pending is None


def test_a_restart_empties_the_memory_and_moves_nothing() -> None:
    _, state = start(**GREEDY, federation={"algorithm": "fedsgd"})
    memory = ServerMemory(9, np.ones_like(state.learner.true), np.ones_like(state.learner.true))
    state = replace(state, learner=replace(state.learner, memory=memory))
    after = restart_steps(state).learner
    assert after.moves == state.learner.moves
    assert after.memory is not None and after.memory.steps == 0
    assert not after.memory.mean.any() and not after.memory.square.any()
    assert all(a is b for a, b in zip(after.trajectories, state.learner.trajectories, strict=True))


def test_jumps_do_not_make_matched_decoys_move_more_often(tmp_path: Path) -> None:
    """The share of learning queries that moved the truth is all that a decoy's draw knows."""
    shift = {"kind": "shift", "updates": 1}
    asked: dict[int, Any] = {1: [shift]}
    asked |= {at: [{"kind": "rollback", "version": 0}] for at in range(20, 60, 2)}
    play_service(tmp_path / "s", asked, 60, **GREEDY)
    checkpoint = read_checkpoint(tmp_path / "s")
    assert checkpoint is not None
    updated = sum(one["updated"] for one in read_rounds(tmp_path / "s"))
    assert checkpoint.facts["updates"] == updated == 1
