"""Whole runs: independent of the policy where they must be, and resumable anywhere."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Observation
from covertfl.runs import actions, clients, participation, rounds
from covertfl.runs.records import summarise
from covertfl.runs.state import pack_state, start_run, unpack_state
from covertfl.schemes.policies import RunPolicy
from covertfl.seeding import Stream, make_generator, make_generator_and_seed
from tests.support.played_runs import build, play
from tests.support.small_runs import DRAWN_QUEUE, HORIZON, QUEUE

ALWAYS_SAME = ("round", "oracle_state", "arrival", "clients", "batches", "examples", "accepted")


@pytest.mark.parametrize(
    ("base", "kinds", "changes"),
    [
        (HORIZON, ["optimal", "always-learn", "random", "minority"], {}),
        (HORIZON, ["greedy", "always-obfuscate"], {"federation": {"acceptance": "model"}}),
        (HORIZON, ["greedy", "optimal"], {"decoy": {"kind": "mirrored"}}),
        (QUEUE, ["optimal", "always-learn", "greedy", "always-obfuscate"], {}),
    ],
)
def test_the_federation_does_not_depend_on_the_policy(
    base: dict[str, Any], kinds: list[str], changes: dict[str, Any]
) -> None:
    seen = []
    for kind in kinds:
        _, records, _ = play(build(base, policy={"kind": kind}, **changes))
        seen.append([[record[key] for key in ALWAYS_SAME] for record in records])
        if kind in ("always-learn", "always-obfuscate"):
            assert len({record["action"] for record in records}) == 1
    assert all(other == seen[0] for other in seen)
    assert len({json.dumps(row[1:]) for row in seen[0]}) > 3


@pytest.mark.parametrize("base", [HORIZON, QUEUE])
def test_no_stream_is_drawn_from_twice(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two draws from one stream would tie, say, who takes part to what is sent."""
    federation = build(
        base, rounds=12, policy={"kind": "greedy"}, federation={"acceptance": "model"}
    )
    opened: Counter[tuple[int, ...]] = Counter()

    def open_stream(seed: int, stream: Stream, *place: int) -> np.random.Generator:
        opened[(stream, *place)] += 1
        return make_generator(seed, stream, *place)

    def open_seeded(seed: int, stream: Stream, *place: int) -> tuple[np.random.Generator, int]:
        opened[(stream, *place)] += 1
        return make_generator_and_seed(seed, stream, *place)

    monkeypatch.setattr(clients, "make_generator_and_seed", open_seeded)
    for module in (clients, actions, participation, rounds):
        monkeypatch.setattr(module, "make_generator", open_stream)
    play(federation)
    assert max(opened.values()) == 1
    used = {stream for stream, *_ in opened}
    assert {Stream.ORACLE, Stream.ACTION, Stream.PARTICIPATION} <= used
    assert {Stream.ACCEPTANCE, Stream.CLIENT} <= used


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (HORIZON, {"policy": {"kind": "greedy"}}),
        (HORIZON, {"federation": {"algorithm": "fedsgd"}, "policy": {"kind": "greedy"}}),
        (QUEUE, {}),
        (DRAWN_QUEUE, {"policy": {"kind": "spga", "refresh": 7}}),
        (DRAWN_QUEUE, {"policy": {"kind": "spga", "refresh": 7, "live": "search"}}),
    ],
)
def test_a_run_resumes_from_any_checkpoint(base: dict[str, Any], changes: dict[str, Any]) -> None:
    federation = build(base, **changes)
    final, records, folder = play(federation)
    for checkpoint in folder.checkpoints[:: max(len(records) // 4, 1)]:
        facts = json.loads(json.dumps({**checkpoint.facts, "round": checkpoint.round}))
        state = unpack_state(replace(checkpoint, facts=facts), iter(records[: checkpoint.round]))
        if state.round == len(records):
            continue
        again, later, _ = play(federation, state)
        assert later == records[state.round :]
        assert again.learner.true.tobytes() == final.learner.true.tobytes()
        layout = federation.responder.layout
        assert pack_state(again, layout).facts == pack_state(final, layout).facts
        assert again.seen == final.seen
        assert summarise(federation, again) == summarise(federation, final)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_the_model_moves_in_accepted_learning_rounds_alone(algorithm: str) -> None:
    """Equation (4), with both indicators: no reply of a rejected round is used."""
    changes = {"algorithm": algorithm, "acceptance": "model"}
    federation = build(policy={"kind": "greedy"}, rounds=30, federation=changes)
    final, records, folder = play(federation)
    true = [
        start_run(federation).learner.true,
        *(kept.arrays["true"] for kept in folder.checkpoints),
    ]
    learned = [record["action"] == "learn" for record in records]
    accepted = [record["accepted"] for record in records]
    for number, record in enumerate(records):
        is_moved = true[number].tobytes() != true[number + 1].tobytes()
        assert is_moved == (learned[number] and accepted[number]), number
        assert is_moved == record["updated"] or not learned[number]
    rejected = [r for r in records if r["action"] == "learn" and not r["accepted"]]
    assert sum(record["examples"] > 0 for record in rejected) > 1
    assert final.learner.updates == sum(map(all, zip(learned, accepted, strict=True))) == 4
    assert final.learner.memory is None or final.learner.memory.steps == 4


@pytest.mark.parametrize("method", ["exact", "search"])
def test_a_refreshed_policy_is_cautious_first_and_then_another(method: str) -> None:
    policy = {"kind": "spga", "refresh": 7, "live": method}
    final, records, _ = play(build(DRAWN_QUEUE, policy=policy, queue={"arrival_prob": 0.2}))
    cautious = [float(record["backlog"] > 0) for record in records]
    learn_prob = [record["learn_prob"] for record in records]
    assert learn_prob[:21] == cautious[:21]  # 21 is the first multiple of 7 with rounds enough
    assert learn_prob[21:] != cautious[21:]
    assert final.live.refreshed == 56
    assert len(final.seen) == len(records)


def test_greedy_stops_when_nothing_is_owed() -> None:
    final, records, _ = play(build(policy={"kind": "greedy"}, rounds=30))
    assert final.queue.backlog == 0
    assert final.learner.updates == 4
    assert all((record["action"] == "learn") == (record["backlog"] > 0) for record in records)


def test_always_learn_continues_when_nothing_is_owed() -> None:
    final, records, _ = play(build(policy={"kind": "always-learn"}, rounds=30))
    accepted = sum(record["accepted"] for record in records)
    assert final.learner.updates == accepted > 4
    assert final.exposure == 1.0
    assert [record["updated"] for record in records] == [record["accepted"] for record in records]


def test_always_obfuscate_never_moves_the_model() -> None:
    federation = build(policy={"kind": "always-obfuscate"}, decoy={"gated": True})
    final, records, _ = play(federation)
    assert final.learner.true is not None
    assert final.learner.true.tobytes() == start_run(federation).learner.true.tobytes()
    assert final.exposure == 0.0
    assert summarise(federation, final)["updates_missing"] == 4
    moved = sum(record["accepted"] for record in records)
    assert final.learner.moves == (moved,)


def test_random_uses_every_reply() -> None:
    federation = build(policy={"kind": "random"}, federation={"min_share": 1.0})
    final, records, _ = play(federation)
    learned = [record for record in records if record["action"] == "learn"]
    assert len(learned) == 4
    assert not any(record["accepted"] for record in records)
    assert all(record["updated"] == (record["examples"] > 0) for record in learned)
    assert final.learner.updates > 0


def test_an_ungated_decoy_moves_in_every_obfuscating_round() -> None:
    policy = {"kind": "always-obfuscate"}
    gated, records, _ = play(build(policy=policy, decoy={"gated": True}))
    free, _, _ = play(build(policy=policy, decoy={"gated": False}))
    assert free.learner.moves == (12,)
    assert gated.learner.moves == (sum(record["accepted"] for record in records),)


@dataclass(frozen=True)
class HalfPolicy:
    """A policy that learns in half of the rounds, whatever it observes."""

    def learn_prob(self, observation: Observation) -> FloatArray:
        return np.full(np.shape(observation.oracle_state), 0.5)


@pytest.mark.parametrize("takes_every_reply", [False, True])
def test_a_matched_decoy_moves_as_often_as_the_truth(takes_every_reply: bool) -> None:
    federation = build(DRAWN_QUEUE, rounds=600)
    half = RunPolicy(HalfPolicy(), updates_unowed=True, takes_every_reply=takes_every_reply)
    final, records, _ = play(replace(federation, policy=half))
    queries = final.learning_queries
    of_truth, of_decoy = final.learner.updates / queries, final.learner.moves[0] / (600 - queries)
    assert of_decoy == pytest.approx(of_truth, abs=0.08)
    # Now and then all clients are absent.
    assert 0.9 < of_truth < 1.0 if takes_every_reply else 0.3 < of_truth < 0.7
    # It does not repeat the decision of its round, which the policy knows something about.
    accepted = sum(record["accepted"] for record in records if record["action"] == "obfuscate")
    assert final.learner.moves[0] != accepted


def test_when_a_matched_decoy_moves_follows_from_the_secret() -> None:
    """Clients may know the seed of the data, from which the moves must not be computable."""
    federation = build(DRAWN_QUEUE, rounds=40, policy={"kind": "always-obfuscate"})
    moves = []
    for secret, seed in ((1, 3), (2, 3), (1, 4)):
        settings = replace(federation.settings.with_seed(seed), secret=secret)
        _, _, folder = play(replace(federation, settings=settings))
        moves.append([checkpoint.facts["moves"] for checkpoint in folder.checkpoints])
    assert moves[0] != moves[1]
    assert moves[0] == moves[2]


def test_only_the_trajectory_that_was_queried_moves() -> None:
    _, records, folder = play(build(rounds=30, policy={"kind": "greedy"}))
    arrays = [checkpoint.arrays for checkpoint in folder.checkpoints]
    names = ("true", "decoy-1")
    queried = set()
    for record, before, after in zip(records[1:], arrays, arrays[1:], strict=False):
        for number, name in enumerate(names):
            if number != record["trajectory"]:
                assert before[name].tobytes() == after[name].tobytes()
        queried.add(record["trajectory"])
    assert queried == {0, 1}
