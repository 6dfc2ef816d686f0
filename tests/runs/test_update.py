"""Which trajectory moves after a round: equation (1) of the paper."""

from __future__ import annotations

from covertfl.runs.federation import start_run
from covertfl.runs.records import summarise
from tests.support.played_runs import build, play


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
    federation = build(policy={"kind": "always-obfuscate"})
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
    gated, records, _ = play(build(policy=policy))
    free, _, _ = play(build(policy=policy, decoy={"gated": False}))
    assert free.learner.moves == (12,)
    assert gated.learner.moves == (sum(record["accepted"] for record in records),)


def test_only_the_trajectory_that_was_queried_moves() -> None:
    _, records, folder = play(build(decoy={"count": 2}, rounds=30, policy={"kind": "greedy"}))
    arrays = [checkpoint.arrays for checkpoint in folder.checkpoints]
    names = ("true", "decoy-1", "decoy-2")
    queried = set()
    for record, before, after in zip(records[1:], arrays, arrays[1:], strict=False):
        for number, name in enumerate(names):
            if number != record["trajectory"]:
                assert before[name].tobytes() == after[name].tobytes()
        queried.add(record["trajectory"])
    assert queried == {0, 1, 2}
