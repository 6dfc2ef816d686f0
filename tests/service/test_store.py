"""The database: requests and their keys, the queue, its file and a full disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covertfl.errors import InvalidInput
from covertfl.service.schema import FORMAT, StorageFull, connect
from covertfl.service.store import Conflict, Store, StoredRequest, Unknown
from tests.support.services import add, cancel, make_body, make_version, pack_arrays


def stored(answer: StoredRequest | InvalidInput) -> StoredRequest:
    assert isinstance(answer, StoredRequest)
    return answer


# --- asking ---------------------------------------------------------------------------------------


def test_a_request_waits_and_owes_its_updates(store: Store) -> None:
    [first, second] = add(store, [make_body(), make_body(patience=2, updates=9)])
    assert (first.id, first.state, first.left, first.version) == (1, "waiting", 4, None)
    assert (second.id, second.size, second.left) == (2, 9, 2)
    assert store.find(1) == first


def test_the_database_is_for_its_owner_alone(store: Store) -> None:
    assert store.path.stat().st_mode & 0o777 == 0o600


def test_data_is_kept_and_lists_are_brief(store: Store) -> None:
    data = pack_arrays(features=[[1.0, 2.0]], labels=[1])
    add(store, [make_body("context", client=1, data=data), make_body("purge", rows=[1, 2, 3])])
    assert store.find(1).data == data
    assert store.find(2).body.rows == [1, 2, 3]
    brief = store.list_requests(limit=5)
    assert [(found.data, found.body.rows, found.num_rows) for found in brief] == [
        (None, [], 3),
        (None, [], 1),
    ]
    assert store.find(1, is_brief=True).data is None


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


def test_only_what_waits_can_be_cancelled(store: Store) -> None:
    add(store, [make_body(), make_body()])
    assert cancel(store, 1).state == cancel(store, 1).state == "cancelled"
    store.open_round(1)
    store.open_round(2)
    with pytest.raises(Conflict, match="must be waiting to be cancelled, got serving"):
        cancel(store, 2)
    with pytest.raises(Unknown, match="there is no request 3"):
        cancel(store, 3)


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


def test_changes_are_counted(store: Store) -> None:
    seen = [store.count_changes()]
    for change in (
        lambda: add(store, [make_body()]),
        lambda: store.open_round(1),
        lambda: store.release(make_version(0)),
        lambda: store.withdraw([0], 1),
        lambda: store.warn(1, "arrivals", "a sentence"),
    ):
        change()
        seen.append(store.count_changes())
    assert seen == sorted(set(seen))


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


# --- a full disk ----------------------------------------------------------------------------------


def test_a_full_disk_refuses_whole_requests(store: Store) -> None:
    [pages] = store.connection.execute("PRAGMA page_count").fetchone()
    store.connection.execute(f"PRAGMA max_page_count = {pages + 3}")
    done = 0
    with pytest.raises(StorageFull, match="cannot be written"):
        for _ in range(100):
            add(store, [make_body(note="x" * 900)])
            done += 1
    assert store.count_states()["waiting"] == done > 0
    with pytest.raises(StorageFull):
        add(store, [make_body(note="y" * 900) for _ in range(20)])
    assert store.count_states()["waiting"] == done
    assert cancel(store, 1).state == "cancelled"
    store.connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert add(store, [make_body(note="x" * 900)])[0].state == "waiting"
    assert store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
