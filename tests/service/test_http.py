"""The HTTP interface: who may ask, what is answered, and one sentence for every refusal."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import json
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from covertfl.service.store import Store
from tests.support.services import (
    POLICY,
    RECORD,
    TOKEN,
    add,
    cancel,
    make_body,
    make_version,
    open_client,
    refusal,
)

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from covertfl.service import api
from covertfl.service.status import read_mark

SHIFT = {"kind": "shift", "updates": 4}
ROUTES = [
    *(("POST", "/requests"), ("GET", "/requests"), ("GET", "/requests/1")),
    *(("DELETE", "/requests/1"), ("GET", "/status"), ("GET", "/rounds"), ("GET", "/versions")),
    *(("GET", "/policy"), ("GET", "/events"), ("GET", "/nothing"), ("POST", "/"), ("PUT", "/x")),
    *(("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/redoc"), ("HEAD", "/status")),
    *(("GET", "/metrics"), ("HEAD", "/metrics")),
]
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


# --- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic " + TOKEN, "Bearer", TOKEN])
def test_all_but_two_routes_need_the_token(client: Any, given: str | None) -> None:
    del client.headers["Authorization"]
    for method, path in ROUTES:
        headers = {} if given is None else {"Authorization": given}
        reply = client.request(method, path, headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert "Authorization must be Bearer" in refusal(reply, 401)
    for path in ("/status", "/metrics"):
        shown = client.get(path, headers={"Authorization": f"bearer {TOKEN}"})
        assert shown.status_code == 200


def test_no_route_is_forgotten(client: Any) -> None:
    known = {(method, route.path) for route in client.app.routes for method in route.methods}
    asked = {(method, path.replace("/1", "/{number}")) for method, path in ROUTES}
    assert known - asked == {("GET", "/"), ("GET", "/health")}


def test_two_routes_need_no_token_and_show_no_data(client: Any, store: Store) -> None:
    del client.headers["Authorization"]
    before = client.get("/").content, client.get("/health").content
    assert b"<title>" in before[0] and json.loads(before[1]) == {"state": "ok"}
    store.add_round(12, RECORD)
    assert (client.get("/").content, client.get("/health").content) == before


def test_metrics_count_rounds_for_whoever_has_the_token(client: Any, store: Store) -> None:
    """When a round ended tells who can see the query how long the owner worked on it."""
    first = client.get("/metrics").text.splitlines()
    assert "covertfl_rounds_total 0" in first and "covertfl_rejected_replies_total 0" in first
    assert "covertfl_last_round_timestamp_seconds 0.0" in first
    store.add_round(12, RECORD)
    metrics = client.get("/metrics")
    assert metrics.status_code == 200
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in metrics.text.splitlines() if not line.startswith("#")]
    values = dict(line.split() for line in lines)
    assert float(values.pop("covertfl_last_round_timestamp_seconds")) > 1.7e9
    assert values == {
        **{"covertfl_up": "1", "covertfl_rounds_total": "12"},
        **{"covertfl_rejected_replies_total": "5", "process_resident_memory_bytes": "0"},
    }


def test_the_memory_of_the_services_processes_is_told(store: Store, tmp_path: Path) -> None:
    for processes, least in (([os.getpid()], 1_000_000), ([2**30], 0)):
        with open_client(tmp_path, processes=processes) as client:
            last = client.get("/metrics").text.splitlines()[-1].split()
            assert last[0] == "process_resident_memory_bytes"
            assert (int(last[1]) > least) == bool(least)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "127.0.0.2", ""])
def test_other_hosts_are_refused(client: Any, host: str) -> None:
    for path in ("/", "/status", "/metrics"):
        assert "Host must be" in refusal(client.get(path, headers={"Host": host}), 421)


def test_hosts_of_this_machine_are_accepted(client: Any, tmp_path: Path) -> None:
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8800", "[::1]", "[::1]:8800"):
        assert client.get("/status", headers={"Host": host}).status_code == 200
    with open_client(tmp_path, hosts=None) as other:  # where other machines may ask
        assert other.get("/status", headers={"Host": "fl.example:8800"}).status_code == 200


def test_every_answer_has_the_headers_that_keep_browsers_careful(client: Any) -> None:
    for reply in (client.get("/"), client.get("/status"), client.get("/nothing")):
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "access-control-allow-origin" not in reply.headers


def test_only_the_scripts_of_the_page_may_run(client: Any) -> None:
    page = client.get("/")
    [script] = re.findall(rb"<script[^>]*>(.*?)</script>", page.content, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = page.headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}';" in policy and "connect-src 'self'" in policy


# --- asking ---------------------------------------------------------------------------------------


def test_a_repeated_request_is_the_same(client: Any) -> None:
    replies = [client.post("/requests", json={**SHIFT, "key": "k"}) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [201, 200]
    assert replies[0].json() == replies[1].json() == client.get("/requests/1").json()
    other = client.post("/requests", json={**SHIFT, "key": "k", "note": "x"})
    assert "key must be new" in refusal(other, 409)


def test_only_what_waits_can_be_cancelled(client: Any, store: Store) -> None:
    add(store, [make_body(), make_body()])
    for _ in range(2):
        assert client.delete("/requests/1").json()["state"] == "cancelled"
    store.open_round(1)
    store.open_round(2)
    said = refusal(client.delete("/requests/2"), 409)
    assert said == "request 2 must be waiting to be cancelled, got serving"


@pytest.mark.parametrize("number", ["9", "0", "x", "-1", "1.0", "9" * 30, "%31%20", "\u0661"])
def test_an_unknown_request_is_not_found(client: Any, number: str) -> None:
    for method in ("GET", "DELETE"):
        assert "there is no" in refusal(client.request(method, f"/requests/{number}"), 404)


def test_large_bodies_are_refused_with_and_without_a_length(client: Any, store: Store) -> None:
    content = json.dumps({**SHIFT, "note": "x" * 200_000}).encode()
    for large in (content, iter([b" " * 50_000] * 3)):
        reply = client.post("/requests", content=large)
        assert "at most 100000 bytes" in refusal(reply, 413)
    assert store.count_states()["waiting"] == 0
    parts = iter([b'{"kind": "shift", ', b'"updates": 4}'])
    assert client.post("/requests", content=parts).status_code == 201


def receive_parts(sent: list[bytes]) -> Any:
    """Return an endless body in parts of 10 kB, and note those that are taken."""

    async def receive() -> dict[str, Any]:
        if len(sent) >= 30:
            return {"type": "http.disconnect"}
        sent.append(b"x" * 10_000)
        return {"type": "http.request", "body": sent[-1], "more_body": True}

    return receive


def test_an_endless_body_is_refused_before_it_is_read_whole(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a length: the answer is sent as soon as the limit is passed."""
    monkeypatch.setattr(api, "MOST_BODY", 100_000)
    app = api.make_app(tmp_path, token=TOKEN)
    sent: list[bytes] = []
    answers: list[tuple[int, dict[str, Any]]] = []

    async def send(message: Any) -> None:
        answers.append((len(sent), message))

    async def ask() -> None:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/requests"}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""}
        async with app.router.lifespan_context(app):
            await app({**scope, "headers": headers}, receive_parts(sent), send)

    asyncio.run(ask())
    assert [(taken, message["type"]) for taken, message in answers[:2]] == [
        (11, "http.response.start"),
        (11, "http.response.body"),
    ]
    assert answers[0][1]["status"] == 413
    assert (b"connection", b"close") in answers[0][1]["headers"]
    assert "at most 100000 bytes" in json.loads(answers[1][1]["body"])["error"]
    assert store.count_states()["waiting"] == 0


def test_all_bodies_together_have_a_limit(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MOST_HELD", 1000)
    large = {**SHIFT, "note": "x" * 990}
    for _ in range(3):
        assert "too many bodies" in refusal(client.post("/requests", json=large), 503)
        assert client.post("/requests", json=SHIFT).status_code == 201


# --- reading --------------------------------------------------------------------------------------


def test_before_the_first_round(client: Any, store: Store) -> None:
    status = client.get("/status").json()
    assert set(status) == STATUS_KEYS
    assert status["beliefs"] == {"counting": 0.5, "scheme": 0.5, "trajectories": 2}
    assert (status["promised_wait"], status["task"], status["states"]) == (25.0, "toxicity", 3)
    assert client.get("/policy").json() == POLICY
    assert client.get("/versions").json() == {"versions": []}
    assert client.get("/rounds").json() == {"rounds": []}
    store.connection.execute("DELETE FROM facts")  # before anything is known
    add(store, [make_body()])
    status = client.get("/status").json()
    assert set(status) == STATUS_KEYS
    found = [status[key] for key in ("round", "backlog", "exposure", "mean_wait", "version")]
    assert found == [0, 4, 0.0, None, 0]
    assert client.get("/policy").json() == dict.fromkeys(POLICY)


def test_after_a_round(client: Any, store: Store) -> None:
    store.release(make_version(3))
    store.add_round(120, RECORD)
    store.keep_fact("request_waits", {"count": 2, "total": 28})
    store.keep_fact("paused", "the disk is full")
    store.warn(100, "arrivals", "too many")
    status = client.get("/status").json()
    assert set(status) == STATUS_KEYS
    for key, value in {
        **{"round": 120, "backlog": 7, "exposure": 0.31, "mean_wait": 11.2, "version": 3},
        **{"accuracy": 0.83, "learner_score": 0.83, "mean_request_wait": 14.0, "arrival": 4},
        **{"paused": "the disk is full", "oracle_state": 2},
        "beliefs": {"counting": 0.4, "scheme": 0.6, "trajectories": 2},
        "warnings": [{"round": 100, "kind": "arrivals", "text": "too many"}],
    }.items():
        assert status[key] == value, key


def test_the_backlog_includes_what_has_not_been_counted(client: Any, store: Store) -> None:
    """Requests that wait to join, or join in the round that is being played."""

    def read_backlog() -> int:
        return int(client.get("/status").json()["backlog"])

    add(store, [make_body()])
    store.open_round(1)
    store.add_round(1, RECORD)
    assert read_backlog() == 7
    add(store, [make_body()])
    assert read_backlog() == 11
    store.open_round(2)
    assert read_backlog() == 11
    store.add_round(2, {**RECORD, "backlog": 10})
    assert read_backlog() == 10


def test_requests_are_listed_in_pages_newest_first(client: Any, store: Store) -> None:
    purge = make_body("purge", clients=[1, 2], rows=[5], exact=True)
    add(store, [make_body(), purge, make_body(), make_body()])
    first = client.get("/requests?limit=2").json()
    assert [found["id"] for found in first["requests"]] == [4, 3]
    assert first["counts"] == {"waiting": 4, "serving": 0, "done": 0, "cancelled": 0}
    second = client.get("/requests?limit=9&before=3").json()["requests"]
    assert [found["id"] for found in second] == [2, 1]
    assert all(set(found) == REQUEST_KEYS for found in second)
    assert [second[0][key] for key in ("clients", "num_rows", "exact")] == [[1, 2], 1, True]


@pytest.mark.parametrize(("days", "is_late"), [(-1, True), (0, False), (1, False)])
def test_a_request_is_late_after_its_day(
    client: Any, store: Store, days: int, is_late: bool
) -> None:
    due = datetime.date.today() + datetime.timedelta(days)
    add(store, [make_body(due=due.isoformat())])
    assert client.get("/requests").json()["requests"][0]["is_late"] is is_late
    cancel(store, 1)
    assert not client.get("/requests").json()["requests"][0]["is_late"]


def test_versions_contain_the_requests_of_their_ancestors(client: Any, store: Store) -> None:
    add(store, [make_body() for _ in range(4)])
    for version, parent, request in ((0, None, None), (1, 0, 1), (2, 1, 2), (3, 1, 3), (4, 3, 4)):
        store.release(make_version(version, parent, request))
    store.withdraw([2], 3)
    found = client.get("/versions").json()["versions"]
    assert [version["requests"] for version in found] == [[], [1], [1, 2], [1, 3], [1, 3, 4]]
    assert [version["withdrawn"] for version in found] == [None, None, 3, None, None]
    assert found[1]["released"] == "2001-09-09T01:46:40+00:00"
    assert found[1]["metrics"] == {"accuracy": 0.8}
    paged = client.get("/versions?limit=2&before=3").json()["versions"]
    assert [version["version"] for version in paged] == [1, 2]


def test_rounds_are_listed_oldest_first_without_what_is_internal(client: Any, store: Store) -> None:
    for number in (1, 2, 3):
        store.add_round(number, RECORD)
    found = client.get("/rounds?limit=2").json()["rounds"]
    assert [record["round"] for record in found] == [2, 3]
    assert set(found[0]) == {"round", "time", *RECORD} - {"rejected"}
    found = client.get("/rounds", params={"limit": 2, "before": 3}).json()["rounds"]
    assert [record["round"] for record in found] == [1, 2]


def test_the_mark_moves_with_every_change(store: Store) -> None:
    """Listeners are told of what changes it."""
    marks = [read_mark(store)]
    for change in (
        lambda: add(store, [make_body()]),
        lambda: store.open_round(1),
        lambda: store.release(make_version(0)),
        lambda: store.withdraw([0], 1),
        lambda: store.warn(1, "arrivals", "a sentence"),
        lambda: store.add_round(1, RECORD),
        lambda: store.add_round(1, RECORD),
        lambda: store.keep_fact("paused", "a sentence"),
    ):
        change()
        marks.append(read_mark(store))
    assert all(one != other for one, other in zip(marks[1:], marks, strict=False))
    assert read_mark(store) == marks[-1]


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1001", "before=-1", "limit=", "limit=1.5"]
)
def test_bad_queries_are_refused(client: Any, query: str) -> None:
    assert "must be a whole number in" in refusal(client.get(f"/requests?{query}"), 422)
    assert client.get("/requests?limit=1000&before=0").status_code == 200  # the ends are allowed


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "/nothing", 404), ("GET", "/status/", 404), ("GET", "/docs", 404)),
        *(("GET", "/openapi.json", 404), ("PUT", "/requests", 405), ("POST", "/status", 405)),
    ],
)
def test_wrong_paths_and_methods_are_refused_in_json(
    client: Any, method: str, path: str, status: int
) -> None:
    refusal(client.request(method, path), status)


def test_an_internal_error_keeps_its_details_in_the_log(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Store, **_options: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(api, "describe_versions", fail)
    with caplog.at_level(logging.ERROR):
        reply = client.get("/versions")
    assert refusal(reply, 500) == "internal error"
    assert reply.headers["x-frame-options"] == "DENY"
    assert "secret detail" in caplog.text


def test_a_full_disk_is_said_and_nothing_is_half_stored(client: Any, store: Store) -> None:
    connection = client.app.state.api._writer._store.connection
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    replies = [client.post("/requests", json={**SHIFT, "note": "x" * 900}) for _ in range(30)]
    stored = [reply.json()["id"] for reply in replies if reply.status_code == 201]
    refused = [reply for reply in replies if reply.status_code != 201]
    assert stored and refused
    assert all("the disk is full" in refusal(reply, 507) for reply in refused)
    assert [found.id for found in store.list_requests(limit=99)] == stored[::-1]
    assert client.get("/status").json()["counts"]["waiting"] == len(stored)
    assert client.delete("/requests/1").json()["state"] == "cancelled"
    connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert client.post("/requests", json=SHIFT).status_code == 201
    assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_locked_database_is_not_the_senders_fault(client: Any, store: Store) -> None:
    client.app.state.api._writer._store.connection.execute("PRAGMA busy_timeout = 10")
    store.connection.execute("BEGIN IMMEDIATE")
    assert refusal(client.post("/requests", json=SHIFT), 500) == "internal error"
    store.connection.execute("ROLLBACK")
    assert client.post("/requests", json=SHIFT).status_code == 201
