"""What requests do to rounds, and services that are killed between any two of their writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.folder import RunFolder
from covertfl.runs.queue import OwedTask
from covertfl.runs.train import KernelCache, build_federation, find_task
from covertfl.service import versions
from covertfl.service.changes import RoundChanges, make_task
from covertfl.service.replay import Replay
from covertfl.service.store import Store
from tests.service.test_desk import EXCHANGEABLE, GREEDY
from tests.support.played_services import (
    SERVICE,
    ask,
    list_requests,
    pack_examples,
    play_service,
    read_run_files,
)
from tests.support.services import make_body
from tests.support.slow_cases import IS_SOAK
from tests.support.small_runs import make_run, read_rounds

# Everything that a service writes, but for the requests themselves.
WRITES: tuple[tuple[Any, str], ...] = (
    *((Store, name) for name in ("open_round", "release", "finish", "advance", "withdraw")),
    *((Store, name) for name in ("keep_membership", "add_round", "keep_fact")),
    (RunFolder, "note"),
    (RunFolder, "seal"),
    (versions, "write_atomically"),
)


class Killed(BaseException):
    """Ends a service between two writes, as signal 9 does."""


def count_writes(patch: pytest.MonkeyPatch, kill_at: int | None = None) -> list[str]:
    """Count the writes of services from now on, and end them before the one of a number."""
    done: list[str] = []

    def wrap(owner: Any, name: str) -> None:
        write = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            done.append(name)
            if len(done) - 1 == kill_at:
                raise Killed
            return write(*given, **named)

        patch.setattr(owner, name, wrapped)

    for owner, name in WRITES:
        wrap(owner, name)
    return done


def plan_requests() -> dict[int, Any]:
    task = find_task(make_run(SERVICE))
    rows = task.clients[2][:15].tolist()
    data = pack_examples(task.validation.features[:40], task.validation.labels[:40])
    return {
        1: [{"kind": "shift", "updates": 1}, {"kind": "shift", "updates": 3}],
        3: [2, {"kind": "context", "client": 1, "data": data, "updates": 1}],
        6: [{"kind": "purge", "rows": rows, "exact": True, "updates": 1}],
        8: [{"kind": "rollback", "version": 0}, {"kind": "rollback", "version": 0, "updates": 1}],
    }


def kill_everywhere(folder: Path, places: int, changes: dict[str, Any]) -> None:
    """Kill a service before some of its writes, evenly chosen, and compare what it becomes."""
    asked = plan_requests()
    with pytest.MonkeyPatch.context() as patch:
        done = count_writes(patch)
        play_service(folder / "whole", asked, 16, **changes)
    whole = read_run_files(folder / "whole")
    fates = [(one.state, one.served, one.version) for one in list_requests(folder / "whole")]
    chosen = range(1, len(done), max(len(done) // places, 1))
    for at in chosen:
        out = folder / f"killed {at}"
        with pytest.MonkeyPatch.context() as patch:
            count_writes(patch, kill_at=at)
            with pytest.raises(Killed):
                play_service(out, asked, 16, **changes)
        if not (out / "service.db").exists():
            continue
        if read_checkpoint(out) is None:  # nothing was asked for yet, or nothing was begun
            continue
        play_service(out, asked, 16, **changes)
        assert read_run_files(out) == whole, (at, done[at])
        found = [(one.state, one.served, one.version) for one in list_requests(out)]
        assert found == fates, (at, done[at])


def test_a_service_killed_between_two_writes_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    kill_everywhere(tmp_path, 5, GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [GREEDY, EXCHANGEABLE])
def test_services_killed_between_many_writes(tmp_path: Path, changes: dict[str, Any]) -> None:
    kill_everywhere(tmp_path, 10_000 if IS_SOAK else 30, changes)


def test_a_request_cancelled_before_its_round_was_decided_never_joins(tmp_path: Path) -> None:
    """The round is opened, the service is killed, the request is cancelled: it is not served."""
    folder = tmp_path / "s"
    play_service(folder, {}, 4, **GREEDY)
    ask(folder, {"kind": "shift", "updates": 2}, {"kind": "shift", "updates": 1})
    with Store(folder) as store:
        store.open_round(5)
    ask(folder, 1)
    play_service(folder, {}, 30, **GREEDY)
    first, second = list_requests(folder)
    assert (first.state, first.admitted, first.removed) == ("cancelled", 5, 5)
    assert (second.state, second.served) == ("done", 1)
    assert [one["task"] for one in read_rounds(folder, "private/updates.jsonl")] == [2]
    checkpoint = read_checkpoint(folder)
    assert checkpoint is not None and checkpoint.facts["queue"] == []


def test_a_round_that_was_decided_is_repeated_although_the_service_ended_before(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "s"
    play_service(folder, {1: [{"kind": "shift", "updates": 3}]}, 6, **GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "seal", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            play_service(folder, {}, 20, **GREEDY)
    note = json.loads((folder / "checkpoint/pending.json").read_text())
    assert note["round"] == 7
    play_service(folder, {}, 6, **GREEDY)  # is ended at once
    assert json.loads((folder / "checkpoint/pending.json").read_text()) == note
    play_service(folder, {}, 8, **GREEDY)
    assert not (folder / "checkpoint/pending.json").exists()


@pytest.mark.parametrize("changes", [GREEDY, EXCHANGEABLE, {"federation": {"acceptance": "data"}}])
def test_rounds_go_on_when_all_clients_are_purged(tmp_path: Path, changes: dict[str, Any]) -> None:
    task = find_task(make_run(SERVICE))
    data = pack_examples(task.validation.features[:60], task.validation.labels[:60])
    asked: dict[int, Any] = {
        3: [{"kind": "purge", "clients": list(range(6)), "updates": 1}],
        12: [{"kind": "context", "client": one, "data": data, "updates": 1} for one in range(6)],
    }
    play_service(tmp_path / "s", asked, 45, **changes)
    batches = [sum(one["batches"]) for one in read_rounds(tmp_path / "s")]
    assert len(batches) == 45 and not any(batches[2:11]) and any(batches[11:])
    if changes is GREEDY:  # what is owed is done once somebody has data again
        assert {one.state for one in list_requests(tmp_path / "s")} == {"done"}


def test_a_cancelled_exact_purge_has_its_rows_back_in_a_later_replay(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    rows = find_task(make_run(SERVICE)).clients[3]
    purge = {"kind": "purge", "exact": True, "updates": 1}
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 40}],
        6: [{**purge, "rows": rows[:10].tolist()}],
        9: [2],
    }
    play_service(folder, asked, 12, **GREEDY)
    federation = build_federation(make_run(SERVICE, **GREEDY), KernelCache())
    with Store(folder) as store:
        forgetting = RoundChanges(federation, store, lambda _: None, frozenset({2}))
        plain = RoundChanges(federation, store, lambda _: None)
        held = {
            name: [len(changes.edit_clients(at).task.clients[3]) for at in (3, 8, 9, 12)]
            for name, changes in (("forgetting", forgetting), ("plain", plain))
        }
    whole = len(rows)
    assert held["forgetting"] == [whole - 10, whole - 10, whole, whole]
    assert held["plain"] == [whole, whole - 10, whole, whole]


def test_rounds_played_again_count_as_uses_of_all_that_took_part(tmp_path: Path) -> None:
    """Their records are not what the model rests on any more."""
    folder = tmp_path / "s"
    task = find_task(make_run(SERVICE))
    exact = {"kind": "purge", "exact": True, "updates": 1}
    asked: dict[int, Any] = {
        1: [{"kind": "shift", "updates": 3}],
        9: [{**exact, "rows": task.clients[0][:9].tolist()}],
    }
    play_service(folder, asked, 14, **GREEDY)
    ask(folder, {**exact, "rows": task.clients[1][:2].tolist()})
    federation = build_federation(make_run(SERVICE, **GREEDY), KernelCache())
    with Store(folder) as store:
        store.open_round(15)
        [purge] = store.list_admitted(15)
        changes = RoundChanges(federation, store, lambda _: None)
        found = Replay(folder, changes).find_first_use(purge, 14)
    present = [one["round"] for one in read_rounds(folder) if 1 in one["clients"]]
    assert found == present[0] < 9


def test_the_task_of_a_request_owes_what_it_asks_for(tmp_path: Path) -> None:
    bodies = [{}, {"patience": 3, "updates": 9}, {"patience": 7, "updates": 5}]
    with Store(tmp_path, creates=True) as store:
        store.change([make_body("shift", **one) for one in bodies])
        found = [make_task(store.find(number), 6) for number in (1, 2, 3)]
    assert found == [
        OwedTask(1, 6, 4, 4),
        OwedTask(2, 6, 3, 3, patience=3, most=9),
        OwedTask(3, 6, 5, 5, patience=7, most=5),
    ]


def test_a_loss_that_is_no_number_is_no_improvement() -> None:
    task = OwedTask(1, 0, 2, 2, patience=2, most=9)
    for loss in (float("nan"), float("inf")):
        task = task.serve(loss)
    assert task.left == 0 and task.best is None
    task = OwedTask(1, 0, 2, 2, patience=2, most=9).serve(1.0).serve(float("nan")).serve(0.5)
    assert (task.left, task.best) == (2, 0.5)
