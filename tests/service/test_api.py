"""The HTTP interface: who may ask, what is answered, and one sentence for every refusal."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covertfl.service.requests import MOST_UPDATES
from covertfl.service.store import Store
from tests.support.services import POLICY, RECORD, add, make_body, make_version, pack_arrays

pytest.importorskip("fastapi")
pytest.importorskip("httpx2")

from starlette.testclient import TestClient

from covertfl.service import api
from covertfl.service.api import make_app

TOKEN = "t" * 43
PAGE = (Path(api.__file__).with_name("page.html")).read_bytes()
SHIFT = {"kind": "shift", "updates": 4}
FOUR = {"id", "state", "updates_left", "version"}
ROUTES = [
    *(("POST", "/requests"), ("GET", "/requests"), ("GET", "/requests/1")),
    *(("DELETE", "/requests/1"), ("GET", "/status"), ("GET", "/rounds"), ("GET", "/versions")),
    *(("GET", "/policy"), ("GET", "/events"), ("GET", "/nothing"), ("POST", "/"), ("PUT", "/x")),
    *(("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/redoc"), ("HEAD", "/status")),
]


def open_client(folder: Path, **options: Any) -> TestClient:
    app = make_app(folder, token=TOKEN, **options)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(app, base_url="http://localhost:8800", headers=headers)


@pytest.fixture
def client(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(api, "MOST_BODY", 100_000)
    with open_client(tmp_path) as client:
        yield client


def refusal(reply: Any, status: int) -> str:
    assert reply.status_code == status
    assert set(reply.json()) == {"error"}
    sentence = str(reply.json()["error"])
    assert "\n" not in sentence and sentence
    return sentence


# --- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic " + TOKEN, "Bearer", TOKEN])
def test_all_but_three_routes_need_the_token(client: TestClient, given: str | None) -> None:
    del client.headers["Authorization"]
    for method, path in ROUTES:
        headers = {} if given is None else {"Authorization": given}
        reply = client.request(method, path, headers=headers)
        assert reply.status_code == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert "Authorization must be Bearer" in refusal(reply, 401)


def test_no_route_is_forgotten(client: TestClient) -> None:
    app: Any = client.app
    known = {(method, route.path) for route in app.routes for method in route.methods}
    asked = {(method, path.replace("/1", "/{number}")) for method, path in ROUTES}
    assert known - asked == {("GET", "/"), ("GET", "/metrics"), ("GET", "/health")}


def test_three_routes_need_no_token_and_show_no_data(client: TestClient, store: Store) -> None:
    del client.headers["Authorization"]
    store.add_round(12, RECORD)
    assert client.get("/").content == PAGE
    assert client.get("/health").json() == {"state": "ok"}
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "covertfl_rounds_total 12\n" in metrics.text
    assert not [word for word in ("backlog", "exposure", "request") if word in metrics.text]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:80", "127.0.0.2", ""])
def test_other_hosts_are_refused(client: TestClient, host: str) -> None:
    for path in ("/", "/status", "/metrics"):
        assert "Host must be" in refusal(client.get(path, headers={"Host": host}), 421)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8800", "[::1]", "[::1]:8800"]
)
def test_hosts_of_this_machine_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/status", headers={"Host": host}).status_code == 200


def test_any_host_is_accepted_where_other_machines_may_ask(store: Store, tmp_path: Path) -> None:
    with open_client(tmp_path, hosts=None) as client:
        assert client.get("/status", headers={"Host": "fl.example:8800"}).status_code == 200


def test_every_answer_has_the_headers_that_keep_browsers_careful(client: TestClient) -> None:
    for reply in (client.get("/"), client.get("/status"), client.get("/nothing")):
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "access-control-allow-origin" not in reply.headers


def test_only_the_scripts_of_the_page_may_run(client: TestClient) -> None:
    [script] = re.findall(rb"<script[^>]*>(.*?)</script>", PAGE, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = client.get("/").headers["content-security-policy"]
    assert f"script-src 'sha256-{digest}';" in policy
    assert "connect-src 'self'" in policy


# --- asking ---------------------------------------------------------------------------------------


def test_a_request_is_stored_and_answered_with_four_keys(client: TestClient, store: Store) -> None:
    reply = client.post("/requests", json=SHIFT)
    expected = {"id": 1, "state": "waiting", "updates_left": 4, "version": None}
    assert (reply.status_code, reply.json()) == (201, expected)
    assert client.get("/requests/1").json() == expected
    assert store.find(1).body.kind == "shift"
    reply = client.delete("/requests/1")
    assert (reply.status_code, reply.json()) == (200, {**expected, "state": "cancelled"})


def test_a_repeated_request_is_the_same(client: TestClient) -> None:
    replies = [client.post("/requests", json={**SHIFT, "key": "k"}) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [201, 200]
    assert replies[0].json() == replies[1].json()
    other = client.post("/requests", json={**SHIFT, "key": "k", "note": "x"})
    assert "key must be new" in refusal(other, 409)


def test_what_is_being_served_cannot_be_cancelled(client: TestClient, store: Store) -> None:
    add(store, [make_body()])
    store.open_round(1)
    store.open_round(2)
    assert "must be waiting" in refusal(client.delete("/requests/1"), 409)
    assert client.get("/requests/1").json()["state"] == "serving"


@pytest.mark.parametrize("number", ["9", "0", "x", "-1", "1.0", "9" * 30, "%31%20", "\u0661"])
def test_an_unknown_request_is_not_found(client: TestClient, number: str) -> None:
    for method in ("GET", "DELETE"):
        assert "there is no" in refusal(client.request(method, f"/requests/{number}"), 404)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[" * 50_000, "the body is not JSON"),
        (b'{"kind": "shift"}', "updates is missing"),
        (b'{"kind": "shift", "updates": 0}', f"1..{MOST_UPDATES}, got 0"),
        (b'{"kind": "purge", "updates": 1, "rows": [100]}', "rows must lie in 0..99, got 100"),
        (b'{"kind": "rollback", "version": 3}', "version must be one that was released, got 3"),
        (b'{"kind": "context", "updates": 1, "client": 1, "data": "!"}', "data must be an .npz"),
    ],
)
def test_bad_input_is_refused(client: TestClient, content: bytes, said: str) -> None:
    assert said in refusal(client.post("/requests", content=content), 422)


def test_a_rollback_goes_to_a_version_that_may_be_used(client: TestClient, store: Store) -> None:
    store.release(make_version(0))
    store.release(make_version(1, 0))
    store.withdraw([1], 7)
    assert client.post("/requests", json={"kind": "rollback", "version": 0}).status_code == 201
    withdrawn = client.post("/requests", json={"kind": "rollback", "version": 1})
    assert "which request 7 withdrew" in refusal(withdrawn, 422)


def test_a_context_is_stored_with_its_data(client: TestClient, store: Store) -> None:
    data = pack_arrays(features=[[1.0, 2.0]] * 3, labels=[0, 1, 1])
    body = {"kind": "context", "updates": 2, "client": 3, "data": data}
    assert client.post("/requests", json=body).status_code == 201
    assert store.find(1).data == data
    [found] = client.get("/requests").json()["requests"]
    assert (found["clients"], found["num_rows"]) == ([3], 3)


def test_before_the_limits_are_known_nothing_is_accepted(tmp_path: Path) -> None:
    with Store(tmp_path, is_durable=False, creates=True), open_client(tmp_path) as client:
        assert "is starting" in refusal(client.post("/requests", json=SHIFT), 503)
        assert client.get("/status").json()["round"] == 0


# --- bodies that are too large --------------------------------------------------------------------


def test_a_large_body_is_refused(client: TestClient, store: Store) -> None:
    content = json.dumps({**SHIFT, "note": "x" * 200_000}).encode()
    assert "at most 100000 bytes" in refusal(client.post("/requests", content=content), 413)
    assert store.count_states()["waiting"] == 0
    assert client.post("/requests", json=SHIFT).status_code == 201


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
    app = make_app(tmp_path, token=TOKEN)
    sent: list[bytes] = []
    answers: list[tuple[int, dict[str, Any]]] = []

    async def send(message: Any) -> None:
        answers.append((len(sent), message))

    async def ask() -> None:
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {TOKEN}".encode())]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": "/requests",
            "headers": headers,
        }
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": ""}
        async with app.router.lifespan_context(app):
            await app(scope, receive_parts(sent), send)

    asyncio.run(ask())
    assert [(taken, message["type"]) for taken, message in answers[:2]] == [
        (11, "http.response.start"),
        (11, "http.response.body"),
    ]
    assert answers[0][1]["status"] == 413
    assert (b"connection", b"close") in answers[0][1]["headers"]
    assert "at most 100000 bytes" in json.loads(answers[1][1]["body"])["error"]
    assert store.count_states()["waiting"] == 0


def test_a_chunked_body_is_refused_or_read(client: TestClient) -> None:
    reply = client.post("/requests", content=iter([b'{"kind": "shift", ', b'"updates": 4}']))
    assert reply.status_code == 201
    reply = client.post("/requests", content=iter([b" " * 50_000] * 3))
    assert "at most 100000 bytes" in refusal(reply, 413)


def test_all_bodies_together_have_a_limit(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covertfl.service.api.MOST_HELD", 1000)
    large = {**SHIFT, "note": "x" * 990}
    for _ in range(3):
        assert "too many bodies" in refusal(client.post("/requests", json=large), 503)
        assert client.post("/requests", json=SHIFT).status_code == 201


# --- reading --------------------------------------------------------------------------------------


def test_what_the_service_does_is_read(client: TestClient, store: Store) -> None:
    store.release(make_version(0))
    for number in (1, 2, 3):
        store.add_round(number, RECORD)
    assert client.get("/status").json()["round"] == 3
    assert client.get("/policy").json() == POLICY
    assert [found["version"] for found in client.get("/versions").json()["versions"]] == [0]
    rounds = client.get("/rounds", params={"limit": 2, "before": 3}).json()["rounds"]
    assert [found["round"] for found in rounds] == [1, 2]


def test_requests_are_listed_in_pages(client: TestClient, store: Store) -> None:
    add(store, [make_body() for _ in range(5)])
    first = client.get("/requests?limit=2").json()
    assert [found["id"] for found in first["requests"]] == [5, 4]
    assert first["counts"] == {"waiting": 5, "serving": 0, "done": 0, "cancelled": 0}
    second = client.get("/requests?limit=2&before=4").json()
    assert [found["id"] for found in second["requests"]] == [3, 2]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=1001", "before=-1", "limit=", "limit=1.5"]
)
def test_bad_queries_are_refused(client: TestClient, query: str) -> None:
    assert "must be a whole number in" in refusal(client.get(f"/requests?{query}"), 422)


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "/nothing", 404), ("GET", "/status/", 404), ("GET", "/docs", 404)),
        *(("GET", "/openapi.json", 404), ("GET", "/redoc", 404), ("PUT", "/requests", 405)),
        *(("POST", "/status", 405), ("POST", "/", 405), ("OPTIONS", "/requests", 405)),
    ],
)
def test_wrong_paths_and_methods_are_refused_in_json(
    client: TestClient, method: str, path: str, status: int
) -> None:
    refusal(client.request(method, path), status)


def test_an_internal_error_keeps_its_details_in_the_log(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Store, **_options: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("covertfl.service.api.describe_versions", fail)
    with caplog.at_level(logging.ERROR):
        reply = client.get("/versions")
    assert refusal(reply, 500) == "internal error"
    assert reply.headers["x-frame-options"] == "DENY"
    assert "secret detail" in caplog.text


def test_a_full_disk_is_said_and_nothing_is_half_stored(client: TestClient, store: Store) -> None:
    app: Any = client.app
    connection = app.state.api._writer._store.connection
    [pages] = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    replies = [client.post("/requests", json={**SHIFT, "note": "x" * 900}) for _ in range(30)]
    stored = [reply.json()["id"] for reply in replies if reply.status_code == 201]
    refused = [reply for reply in replies if reply.status_code != 201]
    assert stored and refused
    assert all("the disk is full" in refusal(reply, 507) for reply in refused)
    assert [found.id for found in store.list_requests(limit=99)] == stored[::-1]
    assert client.get("/status").json()["counts"]["waiting"] == len(stored)
    connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    assert client.post("/requests", json=SHIFT).status_code == 201


def test_a_locked_database_is_not_the_senders_fault(client: TestClient, store: Store) -> None:
    app: Any = client.app
    app.state.api._writer._store.connection.execute("PRAGMA busy_timeout = 10")
    store.connection.execute("BEGIN IMMEDIATE")
    assert refusal(client.post("/requests", json=SHIFT), 500) == "internal error"
    store.connection.execute("ROLLBACK")
    assert client.post("/requests", json=SHIFT).status_code == 201
