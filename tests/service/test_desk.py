"""Requests on their way through a service: admitted, served in order, released as versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covertfl.errors import InvalidInput
from covertfl.models.export import export_model
from covertfl.runs.checkpoint import read_checkpoint, read_state
from covertfl.runs.folder import RunFolder
from covertfl.runs.queue import OwedTask, UpdateQueue
from covertfl.runs.state import pack_state, start_run, unpack_state
from covertfl.runs.train import KernelCache, build_federation, find_task
from covertfl.service.store import Store, Version
from covertfl.training import train
from tests.support.played_services import (
    SERVICE,
    ask,
    list_requests,
    pack_examples,
    play_service,
    read_run_files,
)
from tests.support.small_runs import (
    DRAWN_QUEUE,
    QUEUE,
    make_run,
    merge,
    read_arrays,
    read_column,
    read_rounds,
)

GREEDY: dict[str, Any] = {"policy": {"kind": "greedy"}}
EXCHANGEABLE: dict[str, Any] = {"scheme": "exchangeable", "exchangeable": {"trajectories": 2}}
LIVE: dict[str, Any] = {"policy": {"kind": "spga", "refresh": 20}}
DRAWN: dict[str, Any] = merge(
    DRAWN_QUEUE,
    {
        "queue": {"capacity": "auto", "overflow_cost": None},
        "rounds": None,
        "service": {"round_seconds": 0.0},
        "policy": {"kind": "greedy"},
    },
)


def list_versions(folder: Path) -> list[Version]:
    with Store(folder) as store:
        return store.list_versions()


def read_version_arrays(folder: Path, version: int) -> dict[str, bytes]:
    checkpoint = read_state(folder / "versions" / str(version) / "state.safetensors")
    assert checkpoint is not None
    return {name: array.tobytes() for name, array in checkpoint.arrays.items()}


def test_requests_are_served_in_order_and_nothing_arrives_by_draw(tmp_path: Path) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 2}, {"kind": "shift", "updates": 1}],
        20: [{"kind": "shift", "updates": 3, "note": "third"}],
    }
    play_service(tmp_path / "s", asked, 60, **GREEDY)
    done = list_requests(tmp_path / "s")
    assert [(one.state, one.served, one.version) for one in done] == [
        ("done", 2, 1),
        ("done", 1, 2),
        ("done", 3, 3),
    ]
    assert [one.admitted for one in done] == [1, 1, 20]
    begun, finished = [one.begun for one in done], [one.finished for one in done]
    assert begun[0] == 2 and begun == sorted(begun)  # type: ignore[type-var]
    assert finished == sorted(finished)  # type: ignore[type-var]
    arrivals = read_column(tmp_path / "s", "arrival")
    assert arrivals[0] == 3 and arrivals[19] == 3 and sum(arrivals) == 6
    updates = read_rounds(tmp_path / "s", "private/updates.jsonl")
    assert [one["task"] for one in updates] == [1, 1, 2, 3, 3, 3]
    versions = list_versions(tmp_path / "s")
    assert [(one.version, one.parent, one.request) for one in versions] == [
        (0, None, None),
        (1, 0, 1),
        (2, 1, 2),
        (3, 2, 3),
    ]
    assert versions[3].metrics["accuracy"] == read_column_of_metrics(tmp_path / "s", versions[3])


def read_column_of_metrics(folder: Path, version: Version) -> float:
    return float(read_rounds(folder, "metrics.jsonl")[version.round - 1]["learner_score"])


def test_a_request_is_cancelled_only_while_it_waits(tmp_path: Path) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 3}, {"kind": "shift", "updates": 2}],
        3: [2],
        4: [{"kind": "shift", "updates": 1}, 3],
    }
    play_service(tmp_path / "s", asked, 40, **GREEDY)
    first, second, third = list_requests(tmp_path / "s")
    assert (first.state, second.state, third.state) == ("done", "cancelled", "cancelled")
    assert second.removed == 3 and second.served == 0
    assert third.admitted is None  # it was cancelled before the round began
    assert {one["task"] for one in read_rounds(tmp_path / "s", "private/updates.jsonl")} == {1}
    with pytest.raises(InvalidInput, match="request 1 must be waiting to be cancelled, got done"):
        ask(tmp_path / "s", 1)
    with pytest.raises(InvalidInput, match="there is no request 9"):
        ask(tmp_path / "s", 9)


@pytest.mark.parametrize("changes", [GREEDY, EXCHANGEABLE])
def test_a_rollback_moves_all_trajectories_in_one_round(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 2}],
        30: [{"kind": "shift", "updates": 3}],
    }
    play_service(tmp_path / "s", asked, 80, **changes)
    first, latest = (read_version_arrays(tmp_path / "s", number) for number in (1, 2))
    assert first["true"] != latest["true"]
    ask(tmp_path / "s", {"kind": "rollback", "version": 1})
    play_service(tmp_path / "s", {}, 82, **changes)  # joins in round 81, is done in round 82
    assert read_arrays(tmp_path / "s")["true"].tobytes() == first["true"]
    sent = read_rounds(tmp_path / "s")[81]
    assert sent["trajectory"] == 1 or changes is EXCHANGEABLE
    if changes is GREEDY:  # the decoy is where it was at the version, too
        query = read_query(tmp_path / "s", sent["weights"])
        assert query == first["decoy-1"] != latest["decoy-1"]
    rollback, version = list_requests(tmp_path / "s")[2], list_versions(tmp_path / "s")[3]
    assert (rollback.state, rollback.begun, rollback.version) == ("done", 82, 3)
    assert (version.parent, version.request) == (1, 3)
    assert read_version_arrays(tmp_path / "s", 3) == first


def read_query(folder: Path, name: str) -> bytes:
    """Return the weights of a query, in the order of the model's parameters."""
    from safetensors.numpy import load_file

    arrays = load_file(folder / "public/weights" / f"{name}.safetensors")
    checkpoint = read_checkpoint(folder)
    assert checkpoint is not None
    return b"".join(arrays[key].tobytes() for key, _ in checkpoint.facts["parameters"])


@pytest.mark.slow
def test_a_rollback_with_updates_is_trained_further(tmp_path: Path) -> None:
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 2}, {"kind": "shift", "updates": 2}],
        40: [{"kind": "rollback", "version": 1, "updates": 1, "restart": True}],
    }
    play_service(tmp_path / "s", asked, 60, **GREEDY)
    version = list_versions(tmp_path / "s")[-1]
    assert (version.parent, version.request, version.round) == (1, 3, version.round)
    assert version.round > 41
    assert (
        read_version_arrays(tmp_path / "s", 3)["true"]
        != read_version_arrays(tmp_path / "s", 1)["true"]
    )


@pytest.mark.slow
def test_a_task_with_patience_ends_when_the_loss_no_longer_falls(tmp_path: Path) -> None:
    asked: dict[int, Any] = {1: [{"kind": "shift", "patience": 2, "updates": 30}]}
    changes = {**GREEDY, "federation": {"optimizer": {"lr": 0.05}}}
    play_service(tmp_path / "s", asked, 150, **changes)
    [request] = list_requests(tmp_path / "s")
    assert request.state == "done" and 2 < request.served <= 30
    # What the queue does with losses, against its definition.
    queue = UpdateQueue((OwedTask(1, 0, 2, 2, patience=2, most=6),))
    left = []
    for number, loss in enumerate([5.0, 4.0, 4.5, 3.0, 3.0, 2.0], 1):
        queue, done = queue.serve(number, loss)
        left.append(queue.backlog)
    assert left == [2, 2, 1, 2, 1, 0] and done.finished


def test_purged_rows_are_used_no_more_and_cancelling_brings_them_back(tmp_path: Path) -> None:
    task = find_task(make_run(SERVICE))
    rows = task.clients[0].tolist()
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 200}],
        5: [{"kind": "purge", "clients": [1], "rows": rows, "updates": 1}],
        21: [2],
    }
    play_service(tmp_path / "s", asked, 40, **GREEDY)
    rounds = read_rounds(tmp_path / "s")
    for record in rounds:
        active = [
            client
            for client, batches in zip(record["clients"], record["batches"], strict=True)
            if batches
        ]
        if 5 <= record["round"] < 21:
            assert not {0, 1} & set(active)
    assert any({0, 1} & set(used(record)) for record in rounds[:4] + rounds[20:])
    found = list_requests(tmp_path / "s")[1].membership
    assert found is not None and 0.3 < (found["before"] or 0.0) < 0.8 and found["after"] is None


def used(record: dict[str, Any]) -> list[int]:
    pairs = zip(record["clients"], record["batches"], strict=True)
    return [client for client, batches in pairs if batches]


def test_new_rows_come_to_a_client(tmp_path: Path) -> None:
    task = find_task(make_run(SERVICE))
    features, labels = task.validation.features[:100], task.validation.labels[:100]
    data = pack_examples(features, labels)
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 100}],
        4: [{"kind": "context", "client": 2, "data": data, "replace": True, "updates": 2}],
    }
    play_service(tmp_path / "s", asked, 30, **GREEDY)
    play_service(tmp_path / "plain", {1: asked[1]}, 30, **GREEDY)
    assert (
        read_arrays(tmp_path / "s")["true"].tobytes()
        != read_arrays(tmp_path / "plain")["true"].tobytes()
    )
    batches = {
        client: number
        for record in read_rounds(tmp_path / "s")[3:]
        for client, number in zip(record["clients"], record["batches"], strict=True)
        if client == 2
    }
    assert max(batches.values()) <= 5  # 100 rows in batches of 20
    with Store(tmp_path / "s") as store:
        assert store.read_fact("limits")["rows"] == len(task.train) + 100


@pytest.mark.slow
@pytest.mark.parametrize("changes", [GREEDY, EXCHANGEABLE, LIVE])
def test_a_service_that_was_ended_continues_with_the_same_bytes(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    rows = find_task(make_run(SERVICE)).clients[2][:20].tolist()
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 9}, {"kind": "shift", "updates": 3}],
        9: [2],
        12: [{"kind": "purge", "rows": rows, "exact": True, "updates": 2}],
        22: [{"kind": "rollback", "version": 0, "updates": 1, "restart": True}],
        30: [{"kind": "shift", "patience": 2}],
    }
    play_service(tmp_path / "whole", asked, 60, **changes)
    for end in (4, 11, 12, 21, 23, 40, None):
        play_service(tmp_path / "parts", asked, 60, stop_after=end, **changes)
    assert read_run_files(tmp_path / "parts") == read_run_files(tmp_path / "whole")
    states = [(one.state, one.served, one.version) for one in list_requests(tmp_path / "whole")]
    assert states == [
        (one.state, one.served, one.version) for one in list_requests(tmp_path / "parts")
    ]


def test_a_version_can_be_exported(tmp_path: Path) -> None:
    asked: dict[int, Any] = {1: [{"kind": "shift", "updates": 1}, {"kind": "shift", "updates": 2}]}
    play_service(tmp_path / "s", asked, 40, **GREEDY)
    exported = export_model(tmp_path / "s", tmp_path / "model.safetensors", version=1)
    assert exported.updates_done == 1
    assert "0." in (tmp_path / "model.md").read_text()
    with pytest.raises(InvalidInput, match=r"has no version 7.*versions there are 0, 1, 2"):
        export_model(tmp_path / "s", tmp_path / "model.safetensors", version=7)


@pytest.mark.slow
def test_the_optimizer_starts_anew_only_where_a_task_asks_for_it(tmp_path: Path) -> None:
    two = [{"kind": "shift", "updates": 3}, {"kind": "shift", "updates": 3}]
    anew = [two[0], {**two[1], "restart": True}]
    changes: dict[str, Any] = {**GREEDY, "federation": {"algorithm": "fedsgd"}}
    steps = {}
    for name, asked in (("on", two), ("anew", anew)):
        play_service(tmp_path / name, {1: asked}, 60, **changes)
        checkpoint = read_checkpoint(tmp_path / name)
        assert checkpoint is not None and checkpoint.facts["updates"] == 6
        steps[name] = checkpoint.facts["scheme"]["memory_steps"]
    assert steps == {"on": 6, "anew": 3}


def test_a_long_queue_is_packed_in_few_rows() -> None:
    tasks = tuple(OwedTask(number, 3, 4, 4) for number in range(5, 1000))
    tasks = (OwedTask(4, 1, 4, 2), *tasks, OwedTask(1001, 9, 3, 3, patience=3, most=9, best=0.5))
    queue = UpdateQueue(tasks, arrived=1001, lost=0)
    federation = build_federation(make_run(SERVICE, **GREEDY), KernelCache())
    state = replace(start_run(federation), queue=queue)
    packed = pack_state(federation, state)
    assert len(packed.facts["queue"]) == 3
    assert unpack_state(packed, iter(()), federation).queue == queue
    short = pack_state(federation, replace(state, queue=UpdateQueue(tasks[:1])))
    assert short.facts["queue"] == [[4, 1, 4, 2]]


def test_a_service_is_not_trained_and_a_run_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="start it with covertfl serve"):
        train(make_run(SERVICE), tmp_path / "run")
    play_service(tmp_path / "s", {}, 3, **GREEDY)
    plain = make_run(QUEUE, queue={"capacity": "auto", "overflow_cost": None}, **GREEDY)
    with pytest.raises(InvalidInput, match="holds a service: continue it with covertfl serve"):
        train(plain, tmp_path / "s", resume=True)
    with pytest.raises(InvalidInput, match="holds a service, whose requests would be lost"):
        RunFolder(tmp_path / "s").require_replaceable()
    train(replace(plain), tmp_path / "run")
    with pytest.raises(InvalidInput, match="holds another run and cannot be resumed"):
        play_service(tmp_path / "run", {}, 3, seed=99, **GREEDY)
