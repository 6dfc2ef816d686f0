"""When clients' data change: with replicas between two generations, with a decoy at once.

What a generation of replicas moves by is the average of the replies to one of its queries.  If data
changed within it, the move would show whether that query had come before or after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.state import start_run
from covertfl.runs.train import KernelCache, build_federation, find_task
from covertfl.schemes.exchangeable import Generation
from covertfl.service.changes import RoundChanges
from covertfl.service.store import Store
from tests.service.test_desk import GREEDY
from tests.support.played_services import (
    SERVICE,
    Asked,
    list_requests,
    pack_examples,
    play_service,
    read_run_files,
)
from tests.support.services import add, cancel, make_body
from tests.support.small_runs import make_run, read_rounds

SIZE, ROUNDS = 4, 40
EXCHANGEABLE: dict[str, Any] = {"scheme": "exchangeable", "exchangeable": {"trajectories": SIZE}}
SHIFT = {"kind": "shift", "updates": 30}
Record = dict[str, Any]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Rounds with replicas in which an update is always owed and no data change."""
    return play(tmp_path_factory.mktemp("plain") / "s", {}, **EXCHANGEABLE)


def play(folder: Path, asked: Asked, **changes: Any) -> list[Record]:
    play_service(folder, {1: [SHIFT], **asked}, ROUNDS, **changes)
    return read_rounds(folder)


def follow(records: list[Record], broken: int | None = None) -> Iterator[tuple[int, bool]]:
    """Yield the place of each round in its generation, and whether an update is owed in it.

    A generation ends when as many rounds have been accepted as there are trajectories, when one
    that began with nothing owed comes to owe something, and before the round `broken`.
    """
    place, is_owed = 0, False
    for record in records:
        if record["round"] == broken or (place and record["backlog"] > 0 and not is_owed):
            place = 0
        is_owed = is_owed if place else record["backlog"] > 0
        yield place, is_owed
        place = (place + record["accepted"]) % SIZE


def expect_data(records: list[Record], broken: int | None = None) -> list[int]:
    """Return the round as of which clients hold their data, for each round."""
    found: list[int] = []
    for record, (place, is_owed) in zip(records, follow(records, broken), strict=True):
        found.append(found[-1] if place and is_owed else record["round"])
    return found


def read_data(records: list[Record]) -> list[int]:
    assert all(record["data"] < record["round"] for record in records if "data" in record)
    return [record["data" if "data" in record else "round"] for record in records]


def find_middle(records: list[Record], least: int = 8) -> tuple[int, int, int]:
    """Return a round within a generation, the first one after it, and a client present in both."""
    places = [place for place, _ in follow(records)]
    for number in range(least, ROUNDS):
        end = next((at for at in range(number, ROUNDS) if places[at - 1] == 0), None)
        if end is None or end - number < 2:
            continue
        for client in count_batches(records[number - 1]):
            if min(find_batches(records[at - 1], client) for at in (number, end)) > 1:
                return number, end, client
    raise AssertionError("no generation is long enough")


def count_batches(record: Record) -> dict[int, int]:
    """Return how many batches each client of a round has trained on."""
    return dict(zip(record["clients"], record["batches"], strict=True))


def make_change(kind: str, client: int) -> dict[str, Any]:
    """Return a request that leaves a client no row, or as many as a batch has."""
    if kind == "purge":
        return {"kind": "purge", "clients": [client], "updates": 1}
    examples = find_task(make_run(SERVICE)).validation
    data = pack_examples(examples.features[:20], examples.labels[:20])
    return {"kind": "context", "client": client, "data": data, "replace": True, "updates": 1}


def find_batches(record: Record, client: int) -> int:
    """Return how many batches a client has trained on in a round."""
    return count_batches(record).get(client, 0)


def leave_queue_out(record: Record) -> Record:
    """Return what a record says of a round, but for what is owed and what that costs."""
    queue = ("backlog", "backlog_after", "arrival", "learning_cost")
    return {key: value for key, value in record.items() if key not in queue}


@pytest.mark.parametrize(("kind", "most"), [("purge", 0), ("context", 1)])
def test_data_change_when_the_generation_has_ended(
    plain: list[Record], tmp_path: Path, kind: str, most: int
) -> None:
    number, end, client = find_middle(plain)
    records = play(tmp_path / "s", {number: [make_change(kind, client)]}, **EXCHANGEABLE)
    [_, request] = list_requests(tmp_path / "s")
    assert request.admitted == number
    # Until then rounds are those of a service that was asked for nothing, but for the queue.
    for mine, theirs in zip(records[: end - 1], plain, strict=False):
        assert leave_queue_out(mine) == leave_queue_out(theirs)
    assert find_batches(records[number - 1], client) > 1
    assert client in records[end - 1]["clients"]
    assert max(find_batches(record, client) for record in records[end - 1 :]) == most
    assert read_data(records) == expect_data(records)
    data = read_data(records)
    assert data[number - 1 : end - 1] == [data[number - 2]] * (end - number)
    assert data[number - 2] < number and data[end - 1] == end


@pytest.mark.parametrize(("kind", "most"), [("purge", 0), ("context", 1)])
def test_with_a_decoy_data_change_at_once(
    plain: list[Record], tmp_path: Path, kind: str, most: int
) -> None:
    number, _, client = find_middle(plain)
    records = play(tmp_path / "s", {number: [make_change(kind, client)]}, **GREEDY)
    held = [find_batches(record, client) for record in records]
    assert max(held[: number - 1]) > 1 and client in records[number - 1]["clients"]
    assert held[number - 1] == max(held[number - 1 :]) == most
    assert not any("data" in record for record in records)
    checkpoint = read_checkpoint(tmp_path / "s")
    assert checkpoint is not None and checkpoint.facts["data"] == ROUNDS


@pytest.mark.parametrize("changes", [EXCHANGEABLE, GREEDY])
def test_a_cancellation_ends_the_generation_and_gives_the_data_back(
    plain: list[Record], tmp_path: Path, changes: dict[str, Any]
) -> None:
    _, _, client = find_middle(plain)
    purged = play(tmp_path / "purged", {2: [make_change("purge", client)]}, **changes)
    assert not any(find_batches(record, client) for record in purged[2:])
    present = [record["round"] for record in purged if client in record["clients"]]
    places = [place for place, _ in follow(purged)]
    number = next(at for at in present if at > 10 and (places[at - 1] > 1 or changes is GREEDY))
    asked: dict[int, Any] = {2: [make_change("purge", client)], number: [2]}
    records = play(tmp_path / "s", asked, **changes)
    assert list_requests(tmp_path / "s")[1].removed == number
    assert find_batches(records[number - 1], client) > 0
    if changes is GREEDY:
        assert not any("data" in record for record in records)
        return
    assert read_data(records) == expect_data(records, broken=number)
    assert read_data(records)[number - 1] == number
    # A whole generation follows, with an update at its end and none before.
    accepted = [record for record in records[number - 1 :] if record["accepted"]][:SIZE]
    assert {record["trajectory"] for record in accepted} == set(range(SIZE))
    assert [record["updated"] for record in accepted] == [False] * (SIZE - 1) + [True]


def test_an_exact_purge_ends_the_generation_and_takes_its_rows_at_once(
    plain: list[Record], tmp_path: Path
) -> None:
    number, _, client = find_middle(plain)
    exact = {**make_change("purge", client), "exact": True}
    records = play(tmp_path / "s", {number: [exact]}, **EXCHANGEABLE)
    assert not any(find_batches(record, client) for record in records[number - 1 :])
    assert read_data(records) == expect_data(records, broken=number)
    accepted = [record for record in records[number - 1 :] if record["accepted"]][:SIZE]
    assert {record["trajectory"] for record in accepted} == set(range(SIZE))


def test_a_service_that_was_ended_within_the_generation_keeps_the_data_till_its_end(
    plain: list[Record], tmp_path: Path
) -> None:
    number, end, client = find_middle(plain)
    asked: dict[int, Any] = {1: [SHIFT], number: [make_change("purge", client)]}
    play_service(tmp_path / "whole", asked, ROUNDS, **EXCHANGEABLE)
    for last in (number, end - 1, None):
        play_service(tmp_path / "parts", asked, ROUNDS, stop_after=last, **EXCHANGEABLE)
        checkpoint = read_checkpoint(tmp_path / "parts")
        assert checkpoint is not None
        if last is not None:
            assert checkpoint.facts["data"] < number
    assert read_run_files(tmp_path / "parts") == read_run_files(tmp_path / "whole")


@pytest.mark.parametrize(
    ("generation", "is_changed"),
    [
        (Generation(number=3, place=0, is_owed=True), True),
        (Generation(number=3, place=0), True),
        (Generation(number=3, place=1, is_owed=True), False),
        (Generation(number=3, place=SIZE - 1, is_owed=True), False),
        (Generation(number=3, place=2), True),  # nothing is owed: replies are ignored
    ],
)
def test_the_data_of_a_state_are_as_of_the_last_round_that_could_change_them(
    tmp_path: Path, generation: Generation, is_changed: bool
) -> None:
    federation = build_federation(make_run(SERVICE, **EXCHANGEABLE), KernelCache())
    state = start_run(federation)
    scheme = replace(state.scheme, generation=generation)
    state = replace(state, round=20, data=19, scheme=scheme)
    with Store(tmp_path, creates=True) as store:
        add(store, [make_body("shift"), make_body("purge", clients=[3])])
        changes = RoundChanges(federation, store, lambda _: None)
        store.open_round(21)
        begun = changes.begin_round(changes.change_state(state))
        assert begun.state.data == (21 if is_changed else 19)
        assert (len(begun.clients.task.clients[3]) == 0) == is_changed
        assert (begun.clients is federation.clients) == (not is_changed)
        assert begun.joining is not None and [task.task for task in begun.joining] == [1, 2]
        # The purge is cancelled in the next round: what waits is dropped, and all rows are back.
        cancel(store, 2)
        store.open_round(22)
        begun = changes.begin_round(changes.change_state(replace(begun.state, round=21)))
        assert begun.state.data == 22 and begun.clients is federation.clients
        assert begun.state.scheme.generation.place == 0
        assert begun.state.scheme.generation.pending is None
