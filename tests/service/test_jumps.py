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
from covertfl.schemes.exchangeable import Exchangeable, Orbit
from covertfl.schemes.replies import ServerMemory
from covertfl.schemes.scheduled import Trajectories
from covertfl.schemes.scheme import Restart
from covertfl.service.changes import roll_back
from tests.service.test_desk import EXCHANGEABLE, GREEDY
from tests.support.played_services import SERVICE, play_service
from tests.support.small_runs import make_run, read_rounds

pytestmark = pytest.mark.slow


def start(**changes: Any) -> tuple[Federation, RunState]:
    """Return a federation and its state, some moves after the first round."""
    federation = build_federation(make_run(SERVICE, **changes), KernelCache())
    state = start_run(federation)
    scheme = replace(state.scheme, updates=7)
    if isinstance(scheme, Trajectories):
        scheme = replace(scheme, moves=3)
    return federation, replace(state, round=20, scheme=scheme, updates=7)


def shift(state: Trajectories, by: float) -> Trajectories:
    """Return trajectories elsewhere and with other counts."""
    true, decoy = state.true + np.float32(by), state.decoy + np.float32(2 * by)
    return replace(state, true=true, decoy=decoy, updates=3, moves=1)


def test_weights_and_memory_are_restored_and_counts_stay() -> None:
    federation, state = start(**GREEDY, federation={"algorithm": "fedsgd"})
    target = shift(state.scheme, 0.5)
    memory = ServerMemory(9, np.full_like(target.true, 2.0), np.full_like(target.true, 3.0))
    landed = roll_back(federation, state, replace(target, memory=memory))
    models = federation.scheme.models
    assert [one.tobytes() for one in models(landed.scheme)] == [
        one.tobytes() for one in models(target)
    ]
    assert landed.scheme.memory is memory
    now = state.scheme
    assert (landed.scheme.updates, landed.scheme.moves) == (now.updates, now.moves) == (7, 3)
    assert (landed.queue, landed.round, landed.queries) == (state.queue, 20, state.queries)
    assert landed.updates == 7
    score = federation.validation.score
    assert landed.scores == tuple(score(one) for one in models(target))


def test_replicas_stay_images_of_a_truth_that_was_never_sent() -> None:
    federation, state = start(**EXCHANGEABLE)
    assert isinstance(federation.scheme, Exchangeable)
    replicas, true = federation.scheme.replicas, state.scheme.true + np.float32(0.25)
    # Of the target the truth alone counts: its images are made anew.
    target = replace(state.scheme, weights=(true, *state.scheme.weights[1:]), updates=3)
    landed = roll_back(federation, state, target).scheme
    assert isinstance(landed, Orbit) and len(landed.weights) == replicas.size
    for number, image in enumerate(landed.weights):
        assert image.tobytes() == replicas.reflect(true, number).tobytes()
    assert landed.updates == state.scheme.updates == 7
    for number, sent in enumerate(federation.scheme.shown(landed)):
        assert sent.tobytes() == landed.weights[number].tobytes()


def test_a_jump_in_the_middle_of_a_generation_begins_another() -> None:
    federation, state = start(**EXCHANGEABLE)
    generation = replace(state.scheme.generation, number=4, place=1, pending=state.scheme.true)
    begun = replace(state, scheme=replace(state.scheme, generation=generation))
    landed = roll_back(federation, begun, state.scheme).scheme.generation
    assert (landed.number, landed.place) == (5, 0)
    assert landed.pending is None


@pytest.mark.parametrize("changes", [GREEDY, EXCHANGEABLE])
def test_a_restart_empties_the_memory_and_moves_nothing(changes: dict[str, Any]) -> None:
    federation, state = start(**changes, federation={"algorithm": "fedsgd"})
    models = federation.scheme.models(state.scheme)
    memory = ServerMemory(9, np.ones_like(models[0]), np.ones_like(models[0]))
    before = replace(state.scheme, memory=memory)
    after = federation.scheme.change(before, Restart())
    assert after is not None and after.updates == before.updates
    assert after.memory is not None and after.memory.steps == 0
    assert not after.memory.mean.any() and not after.memory.square.any()
    assert all(a is b for a, b in zip(federation.scheme.models(after), models, strict=True))
    kept = {name: value for name, value in vars(after).items() if name != "memory"}
    assert kept == {name: value for name, value in vars(before).items() if name != "memory"}


def test_jumps_do_not_make_matched_decoys_move_more_often(tmp_path: Path) -> None:
    """The share of learning queries that moved the truth is all that a decoy's draw knows."""
    shift = {"kind": "shift", "updates": 1}
    asked: dict[int, Any] = {1: [shift]}
    asked |= {at: [{"kind": "rollback", "version": 0}] for at in range(20, 60, 2)}
    play_service(tmp_path / "s", asked, 60, **GREEDY)
    checkpoint = read_checkpoint(tmp_path / "s")
    assert checkpoint is not None
    updated = sum(one["updated"] for one in read_rounds(tmp_path / "s"))
    assert checkpoint.facts["updates"] == checkpoint.facts["scheme"]["updates"] == updated == 1
