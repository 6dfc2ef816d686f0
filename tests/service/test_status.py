"""What the service reports, before the first round and after."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from covertfl.service.requests import Limits
from covertfl.service.status import (
    describe_answer,
    describe_policy,
    describe_requests,
    describe_rounds,
    describe_status,
    describe_versions,
    format_metrics,
    read_limits,
    read_mark,
)
from covertfl.service.store import Store
from tests.support.services import LIMITS, POLICY, RECORD, add, cancel, make_body, make_version

STATUS_KEYS = {
    *("round", "backlog", "exposure", "mean_wait", "promised_wait", "version", "oracle_state"),
    *("arrival", "states", "accuracy", "learner_score", "round_seconds", "paused", "beliefs"),
    *("counts", "warnings", "mean_request_wait", "started", "task", "policy", "changes"),
}
REQUEST_KEYS = {
    *("id", "kind", "state", "updates", "updates_done", "updates_left", "patience", "note", "due"),
    *("key", "received", "admitted", "begun", "finished", "version", "exact", "restart"),
    *("target_version", "clients", "num_rows", "membership", "is_late"),
}


def test_before_anything_is_known(tmp_path: Path) -> None:
    with Store(tmp_path, is_durable=False, creates=True) as store:
        add(store, [make_body()])
        status = describe_status(store)
        assert set(status) == STATUS_KEYS
        assert [
            status[key] for key in ("round", "backlog", "exposure", "mean_wait", "version")
        ] == [*(0, 4, 0.0, None, 0)]
        assert describe_versions(store) == {"versions": []}
        assert describe_rounds(store, limit=5, before=None) == {"rounds": []}
        assert describe_policy(store) == dict.fromkeys(POLICY)
        assert read_limits(store) is None


def test_before_the_first_round(store: Store) -> None:
    status = describe_status(store)
    assert status["beliefs"] == {"counting": 0.5, "scheme": 0.5, "trajectories": 2}
    assert (status["promised_wait"], status["task"], status["states"]) == (25.0, "toxicity", 3)
    assert describe_policy(store) == POLICY
    limits: dict[str, Any] = {**LIMITS, "shape": (2,), "classes": ("no", "yes")}
    assert read_limits(store) == Limits(**limits)


def test_after_a_round(store: Store) -> None:
    store.release(make_version(0))
    store.release(make_version(3, 0))
    store.add_round(120, RECORD)
    store.keep_fact("request_waits", {"count": 4, "total": 56})
    store.keep_fact("paused", "the disk is full")
    store.warn(100, "arrivals", "too many")
    status = describe_status(store)
    assert set(status) == STATUS_KEYS
    expected: dict[str, Any] = {
        "round": 120,
        "backlog": 7,
        "exposure": 0.31,
        "mean_wait": 11.2,
        "version": 3,
    }
    expected |= {"accuracy": 0.83, "learner_score": 0.83, "mean_request_wait": 14.0, "arrival": 4}
    expected |= {"paused": "the disk is full", "oracle_state": 2}
    assert {key: status[key] for key in expected} == expected
    assert status["beliefs"] == {"counting": 0.4, "scheme": 0.6, "trajectories": 2}
    assert status["warnings"] == [{"round": 100, "kind": "arrivals", "text": "too many"}]


def test_the_backlog_includes_what_has_not_been_counted(store: Store) -> None:
    """Requests that wait to join, or join in the round that is being played."""
    add(store, [make_body()])
    store.open_round(1)
    store.add_round(1, RECORD)
    assert describe_status(store)["backlog"] == 7
    add(store, [make_body()])
    assert describe_status(store)["backlog"] == 11
    store.open_round(2)
    assert describe_status(store)["backlog"] == 11
    store.add_round(2, {**RECORD, "backlog": 10})
    assert describe_status(store)["backlog"] == 10


def test_one_request_has_four_keys(store: Store) -> None:
    add(store, [make_body()])
    assert describe_answer(store.find(1)) == {
        **{"id": 1, "state": "waiting", "updates_left": 4, "version": None}
    }


def test_requests_are_listed_newest_first(store: Store) -> None:
    add(store, [make_body(), make_body("purge", clients=[1, 2], rows=[5], exact=True), make_body()])
    listed = describe_requests(store, limit=2, before=None)
    assert [found["id"] for found in listed["requests"]] == [3, 2]
    assert all(set(found) == REQUEST_KEYS for found in listed["requests"])
    assert listed["counts"]["waiting"] == 3
    purge = listed["requests"][1]
    assert (purge["clients"], purge["num_rows"], purge["exact"]) == ([1, 2], 1, True)
    assert [found["id"] for found in describe_requests(store, limit=9, before=2)["requests"]] == [1]


@pytest.mark.parametrize(("days", "is_late"), [(-1, True), (0, False), (1, False)])
def test_a_request_is_late_after_its_day(store: Store, days: int, is_late: bool) -> None:
    due = datetime.date.today() + datetime.timedelta(days)
    add(store, [make_body(due=due.isoformat())])
    assert describe_requests(store, limit=1, before=None)["requests"][0]["is_late"] is is_late
    cancel(store, 1)
    assert not describe_requests(store, limit=1, before=None)["requests"][0]["is_late"]


def test_versions_contain_the_requests_of_their_ancestors(store: Store) -> None:
    add(store, [make_body() for _ in range(4)])
    for version, parent, request in ((0, None, None), (1, 0, 1), (2, 1, 2), (3, 1, 3), (4, 3, 4)):
        store.release(make_version(version, parent, request))
    store.withdraw([2], 3)
    found = describe_versions(store)["versions"]
    assert [version["requests"] for version in found] == [[], [1], [1, 2], [1, 3], [1, 3, 4]]
    assert [version["withdrawn"] for version in found] == [None, None, 3, None, None]
    assert found[1]["released"] == "2001-09-09T01:46:40+00:00"
    assert found[1]["metrics"] == {"accuracy": 0.8}


def test_rounds_are_listed_oldest_first_without_what_is_internal(store: Store) -> None:
    for number in (1, 2, 3):
        store.add_round(number, RECORD)
    found = describe_rounds(store, limit=2, before=None)["rounds"]
    assert [record["round"] for record in found] == [2, 3]
    assert set(found[0]) == {"round", "time", *RECORD} - {"rejected"}
    assert [record["round"] for record in describe_rounds(store, limit=2, before=3)["rounds"]] == [
        *(1, 2)
    ]


def test_metrics_are_those_alone_that_need_no_token(store: Store) -> None:
    store.add_round(12, RECORD)
    add(store, [make_body()])
    lines = format_metrics(store, [os.getpid()]).splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert set(values) == {
        *("covertfl_up", "covertfl_rounds_total", "covertfl_last_round_timestamp_seconds"),
        *("covertfl_rejected_replies_total", "process_resident_memory_bytes"),
    }
    assert (values["covertfl_rounds_total"], values["covertfl_rejected_replies_total"]) == (
        "12",
        "5",
    )
    assert int(values["process_resident_memory_bytes"]) > 1_000_000
    assert "process_resident_memory_bytes 0\n" in format_metrics(store, [2**30])


def test_the_mark_moves_with_every_change(store: Store) -> None:
    marks = [read_mark(store)]
    for change in (
        lambda: add(store, [make_body()]),
        lambda: store.add_round(1, RECORD),
        lambda: store.add_round(1, RECORD),
        lambda: store.keep_fact("paused", "a sentence"),
    ):
        change()
        marks.append(read_mark(store))
    assert all(one != other for one, other in zip(marks[1:], marks, strict=False))
    assert read_mark(store) == marks[-1]
