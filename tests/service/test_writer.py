"""Group commit: many changes in one transaction, each answered after it is on the disk."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from covertfl.errors import InvalidInput
from covertfl.service import access as module
from covertfl.service.access import Writer
from covertfl.service.requests import RequestBody
from covertfl.service.schema import StorageFull
from covertfl.service.store import Answer, Conflict, Store, StoredRequest, Unknown
from tests.support.services import make_body


class Gate:
    """Holds the writer back before each transaction, and notes how many changes it has."""

    def __init__(self, change: Callable[..., list[Answer]]) -> None:
        self.open, self.sizes, self._change = threading.Event(), list[int](), change
        self.reached = threading.Event()

    @property
    def pass_through(self) -> Callable[..., list[Answer]]:
        """A method that can stand in a class in place of the real one."""

        def change(store: Store, changes: Sequence[RequestBody | int]) -> list[Answer]:
            return self.change(store, changes)

        return change

    def change(self, store: Store, changes: Sequence[RequestBody | int]) -> list[Answer]:
        self.reached.set()
        assert self.open.wait(10)
        self.sizes.append(len(changes))
        return self._change(store, changes)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(Store.change)
    monkeypatch.setattr(Store, "change", gate.pass_through)
    return gate


@pytest.fixture
def writer(store: Store, tmp_path: Path) -> Iterator[Writer]:
    with contextlib.closing(Writer(tmp_path)) as writer:
        yield writer


def test_one_change_is_answered(writer: Writer, store: Store) -> None:
    answer = asyncio.run(writer.change(make_body()))
    assert answer.is_new and answer.found == store.find(1)
    assert isinstance(asyncio.run(writer.change(9)).found, Unknown)


def test_the_writer_waits_for_the_disk(writer: Writer) -> None:
    assert writer._store.connection.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_what_waits_is_written_together(writer: Writer, store: Store, gate: Gate) -> None:
    futures = [writer.submit(make_body())]
    assert gate.reached.wait(10)
    futures += [writer.submit(make_body(key=str(number))) for number in range(300)]
    futures.append(writer.submit(1))
    assert not any(future.done() for future in futures)
    assert store.count_states()["waiting"] == 0
    gate.open.set()
    found = [future.result(10).found for future in futures]
    assert gate.sizes == [1, 256, 45]
    assert [answer.id for answer in found if isinstance(answer, StoredRequest)] == [
        *range(1, 302),
        1,
    ]
    assert store.find(1).state == "cancelled"


def test_an_answer_comes_after_the_commit(store: Store, writer: Writer) -> None:
    """At the moment of the answer, another connection sees the request."""
    seen: list[int] = []
    for _ in range(5):
        writer.submit(make_body()).add_done_callback(
            lambda _: seen.append(store.count_states()["waiting"])
        )
    writer.close()
    assert all(count >= number for number, count in enumerate(seen, start=1)) and len(seen) == 5


def test_repeats_in_one_batch_are_one_request(writer: Writer, gate: Gate) -> None:
    first = writer.submit(make_body())
    assert gate.reached.wait(10)
    rest = [writer.submit(make_body(key="k", updates=count)) for count in (3, 3, 5)]
    gate.open.set()
    assert first.result(10).is_new
    answers = [future.result(10) for future in rest]
    assert [answer.is_new for answer in answers] == [True, False, False]
    assert isinstance(answers[2].found, Conflict)


def test_a_full_disk_refuses_those_alone_that_do_not_fit(
    writer: Writer, store: Store, gate: Gate
) -> None:
    connection = writer._store.connection
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    first = writer.submit(make_body())
    assert gate.reached.wait(10)
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    futures = [writer.submit(make_body(note="x" * size)) for size in (1, 900, 900) * 6]
    futures += [writer.submit(make_body("purge", rows=list(range(100_000))))]
    futures += [writer.submit(1)]
    gate.open.set()
    first.result(10)
    errors = [future.exception(10) for future in futures]
    kept = [error is None for error in errors]
    assert kept[0] and kept[-1] and not kept[-2]
    assert all(error is None or isinstance(error, StorageFull) for error in errors)
    stored = [future.result().found for future in futures[:-1] if future.exception() is None]
    listed = store.list_requests(limit=100)
    assert {found.id for found in listed} == {1} | {
        found.id for found in stored if isinstance(found, StoredRequest)
    }


def test_one_bad_change_does_not_refuse_the_others(writer: Writer, gate: Gate) -> None:
    """A context whose data the store cannot read fails in the transaction itself."""
    first = writer.submit(make_body())
    assert gate.reached.wait(10)
    bodies: list[Any] = [make_body(), make_body("context", client=1, data="AAAA"), make_body()]
    futures = [writer.submit(body) for body in bodies]
    gate.open.set()
    assert first.result(10).is_new
    assert isinstance(futures[1].exception(10), InvalidInput)
    assert futures[0].result(10).is_new and futures[2].result(10).is_new
    assert gate.sizes == [1, 3, 1, 1, 1]


def test_who_has_left_is_not_served(writer: Writer, store: Store, gate: Gate) -> None:
    first = writer.submit(make_body())
    assert gate.reached.wait(10)
    gone, other = writer.submit(make_body(note="gone")), writer.submit(make_body())
    assert gone.cancel()
    gate.open.set()
    first.result(10), other.result(10)
    assert [found.body.note for found in store.list_requests(limit=9)] == ["", ""]


def test_what_waits_at_the_end_is_written(store: Store, tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    futures = [writer.submit(make_body()) for _ in range(module.MOST_TOGETHER + 10)]
    writer.close()
    writer.close()
    assert all(future.result(0).is_new for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(make_body())
