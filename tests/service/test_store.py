"""The database: keys of requests, the queue, its file, and many changes in one transaction."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from covertfl.errors import InvalidInput
from covertfl.service.access import MOST_TOGETHER, Writer
from covertfl.service.requests import RequestBody
from covertfl.service.schema import FORMAT, StorageFull, connect
from covertfl.service.store import Answer, Conflict, Store, StoredRequest, Unknown
from tests.support.services import add, cancel, make_body, make_version, pack_arrays


def stored(answer: StoredRequest | InvalidInput) -> StoredRequest:
    assert isinstance(answer, StoredRequest)
    return answer


# --- asking ---------------------------------------------------------------------------------------


def test_the_database_is_for_its_owner_alone(store: Store) -> None:
    assert store.path.stat().st_mode & 0o777 == 0o600


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 2)), max_size=8))
def test_a_key_stands_for_one_request(asked: list[tuple[str | None, int]]) -> None:
    """Whatever is asked in which order, the first body with a key is the one that is kept."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Store(Path(folder), is_durable=False, creates=True) as store,
    ):
        kept: dict[str, tuple[int, int]] = {}
        for key, updates in asked:
            [answer] = store.change([make_body(key=key, updates=updates)])
            if key is None or key not in kept:
                assert answer.is_new
                if key is not None:
                    kept[key] = (stored(answer.found).id, updates)
            elif kept[key][1] == updates:
                assert not answer.is_new and stored(answer.found).id == kept[key][0]
            else:
                assert isinstance(answer.found, Conflict)
        new = len({key for key, _ in asked if key}) + sum(key is None for key, _ in asked)
        assert store.count_states()["waiting"] == new


def test_a_key_with_other_data_is_a_conflict(store: Store) -> None:
    one, other = (pack_arrays(features=[[value, 2.0]], labels=[1]) for value in (1.0, 5.0))
    bodies = [make_body("context", client=1, data=data, key="k") for data in (one, one, other)]
    found = [answer.found for answer in store.change(bodies)]
    assert found[0] == found[1] == store.find(1)
    assert isinstance(found[2], Conflict)


def test_a_key_is_known_even_if_the_version_has_gone(store: Store) -> None:
    store.release(make_version(0))
    body = make_body("rollback", version=0, key="k")
    assert store.change([body])[0].is_new
    store.withdraw([0], 9)
    assert not store.change([body])[0].is_new
    [answer] = store.change([make_body("rollback", version=0)])
    assert "which request 9 withdrew" in str(answer.found)
    [answer] = store.change([make_body("rollback", version=3)])
    assert str(answer.found) == "version must be one that was released, got 3"


def test_only_numbers_that_json_has_are_kept(store: Store) -> None:
    for keep in (store.keep_fact, store.add_round):
        with pytest.raises(ValueError, match="not JSON compliant"):
            keep(1, {"loss": float("nan")})  # type: ignore[arg-type]


def test_a_refused_change_does_not_undo_the_others(store: Store) -> None:
    answers = store.change([make_body(key="k"), 77, make_body(key="k", updates=9), 1])
    kinds = [type(answer.found) for answer in answers]
    assert kinds == [StoredRequest, Unknown, Conflict, StoredRequest]
    assert store.count_states() == {"waiting": 0, "serving": 0, "done": 0, "cancelled": 1}


# --- the queue ------------------------------------------------------------------------------------


def test_a_request_passes_through_the_queue(store: Store) -> None:
    add(store, [make_body(), make_body()])
    assert store.find_head(9) is None
    assert store.open_round(3) is None
    assert [found.id for found in store.list_admitted(3)] == [1, 2]
    assert store.find_head(3) is None
    for number in (4, 5):  # the second changes nothing
        head = store.open_round(number)
        assert head is not None
        assert (head.id, head.state, head.begun) == (1, "serving", 4)
    store.advance(1, left=1, served=3)
    assert store.sum_left() == 5 and store.sum_left(since=4) == 0
    store.release(make_version(1, 0, request=1), finished=6, served=4)
    done = store.find(1)
    assert (done.state, done.left, done.finished, done.version) == ("done", 0, 6, 1)
    cancel(store, 2)
    assert store.open_round(7) is None
    assert [found.id for found in store.list_removed(7)] == [2]
    assert store.find(2).is_active(6) and not store.find(2).is_active(7)


def test_a_snapshot_sees_one_moment(store: Store, tmp_path: Path) -> None:
    with Store(tmp_path, is_durable=False) as other:
        with store.snapshot():
            before = store.count_states()
            add(other, [make_body()])
            assert store.count_states() == before
        assert store.count_states()["waiting"] == 1


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [0, FORMAT + 1])
def test_a_database_of_another_format_is_refused(store: Store, tmp_path: Path, found: int) -> None:
    Store(tmp_path, creates=True).close()  # its own is not
    store.connection.execute(f"PRAGMA user_version = {found}")
    with pytest.raises(InvalidInput, match=f"its format must be {FORMAT}, got {found}"):
        Store(tmp_path, creates=True)


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be opened"):
        Store(tmp_path)
    (tmp_path / "service.db").write_text("no database " * 100)
    with pytest.raises(InvalidInput, match="cannot be used as a service's database"):
        Store(tmp_path)


def test_what_is_acknowledged_is_on_the_disk(tmp_path: Path) -> None:
    for is_durable, level in ((True, 2), (False, 1)):
        connection = connect(tmp_path / "service.db", is_durable=is_durable, creates=True)
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == level
        connection.close()


# --- many changes in one transaction --------------------------------------------------------------


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
    futures = [writer.submit(make_body()) for _ in range(MOST_TOGETHER + 10)]
    writer.close()
    writer.close()
    assert all(future.result(0).is_new for future in futures)
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(make_body())
