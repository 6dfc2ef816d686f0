"""A service in memory that speaks the HTTP contract; rounds pass only when a test says so."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from covertfl.service.page import read_page

TOKEN = "a-token-of-tests"
STATES = ("waiting", "serving", "done", "cancelled")
KINDS = ("shift", "purge", "context", "rollback")
BRIEF = ("id", "state", "updates_left", "version")
STARTED = "2026-11-01T08:00:00+00:00"
Json = dict[str, Any]


class Refused(Exception):
    """An answer that is an error: a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def make_table(oracle: int = 3, sizes: int = 2, backlogs: int = 31) -> list[list[list[float]]]:
    """Return probabilities that look like those of a policy with thresholds."""

    def find(state: int, arrival: int, backlog: int) -> float:
        return min(1.0, max(0.0, 0.5 + 0.09 * (backlog + 3 * arrival - 16 + 6 * state)))

    return [
        [[find(state, arrival, backlog) for backlog in range(backlogs)] for arrival in range(sizes)]
        for state in range(oracle)
    ]


def check_body(body: Json, num_versions: int) -> None:
    if body.get("kind") not in KINDS:
        raise Refused(422, f"kind: one of {', '.join(KINDS)} is allowed, not {body.get('kind')!r}.")
    least = 0 if body["kind"] == "rollback" else 1
    updates = body.get("updates")
    if not isinstance(updates, int) or updates < least:
        raise Refused(422, f"updates: a number of at least {least} is allowed, not {updates}.")
    if body["kind"] == "purge" and not (body.get("rows") or body.get("clients")):
        raise Refused(422, "rows: a purge needs rows or clients, not neither.")
    if body["kind"] == "context" and not body.get("data"):
        raise Refused(422, "data: the base64 text of an .npz file is needed.")
    if body["kind"] == "rollback" and body.get("version") not in range(num_versions):
        raise Refused(422, f"version: one that was released is allowed, not {body.get('version')}.")


def open_request(number: int, body: Json, round_: int) -> Json:
    clients = body.get("clients") or ([body["client"]] if "client" in body else [])
    return {
        "id": number,
        "kind": body["kind"],
        "state": "waiting",
        "updates": body["updates"],
        "updates_done": 0,
        "updates_left": body["updates"],
        "patience": body.get("patience"),
        "note": body.get("note", ""),
        "due": body.get("due"),
        "key": body.get("key"),
        "received": STARTED,
        "admitted": round_,
        "begun": None,
        "finished": None,
        "version": None,
        "exact": body.get("exact", False),
        "restart": body.get("restart", False),
        "target_version": body.get("version"),
        "clients": clients,
        "num_rows": len(body.get("rows") or []),
        "membership": {"before": 0.71, "after": None} if body["kind"] == "purge" else None,
        "is_late": (body.get("due") or "9999") < STARTED,
    }


def make_version(number: int, parent: int | None, accuracy: float, round_: int) -> Json:
    return {
        "version": number,
        "parent": parent,
        "round": round_,
        "request": None,
        "requests": [],
        "metrics": {"accuracy": accuracy, "loss": 1.0 - accuracy},
        "released": STARTED,
        "withdrawn": None,
    }


@dataclass
class FakeService:
    """The state of the service and, while it is started, its server.

    Attributes
    ----------
    bodies : what POST /requests was sent, in order
    """

    learn_prob: list[list[list[float]]] | None = field(default_factory=make_table)
    token: str = TOKEN
    paused: str | None = None
    warnings: list[Json] = field(default_factory=list)
    requests: list[Json] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)
    rounds: list[Json] = field(default_factory=list)
    versions: list[Json] = field(default_factory=lambda: [make_version(0, None, 0.61, 0)])
    version: int = 0
    changes: int = 0
    port: int = 0
    draws: random.Random = field(default_factory=lambda: random.Random(7))
    changed: threading.Condition = field(default_factory=threading.Condition)
    server: ThreadingHTTPServer | None = None
    thread: threading.Thread | None = None
    is_stopping: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        """Serve, at the same port as before where there was one."""
        service = self

        class BoundHandler(Handler):
            fake = service

        self.is_stopping = False
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), BoundHandler)
        self.server.daemon_threads = False  # so that closing waits for all connections
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def stop(self) -> None:
        """Close all connections; the state stays."""
        if self.server is None or self.thread is None:
            return
        with self.changed:
            self.is_stopping = True
            self.changed.notify_all()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.server = self.thread = None

    # What the service does

    def find_open(self) -> list[Json]:
        return [request for request in self.requests if request["state"] in STATES[:2]]

    def count(self) -> dict[str, int]:
        found = [request["state"] for request in self.requests]
        return {state: found.count(state) for state in STATES}

    def add(self, body: Json) -> tuple[int, Json]:
        check_body(body, len(self.versions))
        for request, before in zip(self.requests, self.bodies, strict=True):
            if body.get("key") is not None and request["key"] == body["key"]:
                if before != body:
                    raise Refused(409, f"key: {body['key']} is that of another request.")
                return 200, request
        self.bodies.append(body)
        self.requests.append(open_request(len(self.requests) + 1, body, len(self.rounds)))
        self.announce(1)
        return 201, self.requests[-1]

    def cancel(self, number: int) -> Json:
        request = self.find(number)
        if request["state"] != "waiting":
            raise Refused(409, f"Request {number} is {request['state']}: it cannot be cancelled.")
        request["state"] = "cancelled"
        self.announce(1)
        return request

    def find(self, number: int) -> Json:
        if not 1 <= number <= len(self.requests):
            raise Refused(404, f"There is no request {number}.")
        return self.requests[number - 1]

    def announce(self, changes: int = 0) -> None:
        with self.changed:
            self.changes += changes
            self.changed.notify_all()

    def tick(self, is_learning: bool = True) -> None:
        """One round passes; the oldest open request gets one update if the query is true."""
        request = next(iter(self.find_open()), None)
        if request and is_learning:
            self.serve(request)
        self.rounds.append(self.measure(bool(request and is_learning)))
        self.announce(1 if request and is_learning else 0)

    def serve(self, request: Json) -> None:
        if request["updates_left"]:
            request["state"] = "serving"
            request["updates_done"] += 1
            request["updates_left"] -= 1
        if not request["updates_left"]:
            self.release(request)

    def release(self, request: Json) -> None:
        number, target = len(self.versions), request["target_version"]
        parent = self.version if target is None else target
        step = {"shift": 0.04, "context": 0.03, "purge": -0.02, "rollback": 0.0}[request["kind"]]
        accuracy = round(self.versions[parent]["metrics"]["accuracy"] + step, 3)
        if target is not None:
            for version in self.versions[target + 1 :]:
                version["withdrawn"] = version["withdrawn"] or request["id"]
        self.versions.append(make_version(number, parent, accuracy, len(self.rounds)))
        self.versions[-1]["request"] = request["id"]
        self.version = number
        request.update(state="done", version=number, finished=len(self.rounds), is_late=False)
        if request["membership"]:
            request["membership"]["after"] = 0.52

    def measure(self, is_learning: bool) -> Json:
        backlog = sum(request["updates_left"] for request in self.find_open())
        before: Json = self.rounds[-1] if self.rounds else {"exposure": 0.0, "mean_wait": None}
        count, last = len(self.rounds), before["mean_wait"]
        wait = (last or 9.0) + self.draws.uniform(-0.6, 0.65)
        return {
            "round": count + 1,
            "time": STARTED,
            "oracle_state": self.draws.randrange(3),
            "backlog": backlog,
            "arrival": self.draws.randrange(2),
            "action": int(is_learning),
            "accepted": is_learning,
            "exposure": (before["exposure"] * count + is_learning) / (count + 1),
            "learner_score": self.versions[self.version]["metrics"]["accuracy"],
            "mean_wait": wait if is_learning or last is not None else None,
            "counting": 0.31,
            "scheme": 0.52,
        }

    # What the service answers

    def show_status(self) -> Json:
        last = self.rounds[-1] if self.rounds else {}
        return {
            "round": len(self.rounds),
            "backlog": sum(request["updates_left"] for request in self.find_open()),
            "exposure": last.get("exposure", 0.0),
            "mean_wait": last.get("mean_wait"),
            "promised_wait": 25.0 if self.learn_prob else None,
            "version": self.version,
            "oracle_state": last.get("oracle_state", 0),
            "arrival": last.get("arrival", 0),
            "states": 3,
            "accuracy": self.versions[self.version]["metrics"]["accuracy"],
            "learner_score": self.versions[self.version]["metrics"]["accuracy"],
            "round_seconds": 1.0,
            "paused": self.paused,
            "beliefs": {"counting": 0.31, "scheme": 0.52, "trajectories": 2},
            "counts": self.count(),
            "warnings": self.warnings,
            "mean_request_wait": 14.0 if self.version else None,
            "started": STARTED,
            "task": "toxicity",
            "policy": "optimal" if self.learn_prob else "exchangeable",
            "changes": self.changes,
        }

    def show_policy(self) -> Json:
        return {
            "kind": "optimal" if self.learn_prob else "exchangeable",
            "learn_prob": self.learn_prob,
            "arrival_sizes": [0, 4],
            "limit": 3.0,
            "arrival_rate": 0.2,
            "promised_wait": 25.0 if self.learn_prob else None,
        }

    def show_requests(self, limit: int, before: int | None) -> Json:
        older = [row for row in self.requests if before is None or row["id"] < before]
        return {"requests": older[::-1][:limit], "counts": self.count()}

    def show_rounds(self, limit: int, before: int | None) -> Json:
        older = [row for row in self.rounds if before is None or row["round"] < before]
        return {"rounds": older[-limit:]}


def to_brief(request: Json) -> Json:
    return {name: request[name] for name in BRIEF}


class Handler(BaseHTTPRequestHandler):
    """Answers as the contract says; `fake` is set by the service."""

    fake: FakeService
    timeout = 1  # a browser opens connections that it does not use; these must not keep `stop`

    def log_message(self, format: str, *args: object) -> None:
        """Leave the tests' output alone."""

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/":
            return self.send(200, read_page(), "text/html; charset=utf-8")
        if urlsplit(self.path).path == "/events" and self.is_allowed():
            return self.stream()
        return self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def is_allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.fake.token}"

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        try:
            if not self.is_allowed():
                raise Refused(401, "The header Authorization needs the token of the service.")
            status, found = self.route(body)
        except Refused as refused:
            status, found = refused.status, {"error": str(refused)}
        self.send(status, json.dumps(found).encode(), "application/json")

    def route(self, body: Json) -> tuple[int, Json]:
        parts = urlsplit(self.path)
        query = {name: int(values[0]) for name, values in parse_qs(parts.query).items()}
        name, _, number = parts.path.strip("/").partition("/")
        page = (query.get("limit", 100), query.get("before"))
        if name == "requests" and self.command == "POST":
            status, request = self.fake.add(body)
            return status, to_brief(request)
        if name == "requests" and number:
            act = self.fake.cancel if self.command == "DELETE" else self.fake.find
            return 200, to_brief(act(int(number)))
        answers: dict[str, Callable[[], Json]] = {
            "status": self.fake.show_status,
            "policy": self.fake.show_policy,
            "versions": lambda: {"versions": self.fake.versions},
            "requests": lambda: self.fake.show_requests(*page),
            "rounds": lambda: self.fake.show_rounds(*page),
        }
        if name not in answers:
            raise Refused(404, f"There is nothing at {parts.path}.")
        return 200, answers[name]()

    def send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        sent = ""
        with contextlib.suppress(ConnectionError):
            while not self.fake.is_stopping:
                now = json.dumps(self.fake.show_status())
                text = f"event: status\ndata: {now}\n\n" if now != sent else ": still here\n\n"
                self.wfile.write(text.encode())
                sent = now
                with self.fake.changed:
                    if not self.fake.is_stopping:
                        self.fake.changed.wait(0.25)


def make_busy() -> FakeService:
    """Return a service after 300 rounds: 15 requests of all kinds and six versions or more."""
    service = FakeService()
    service.warnings = [
        {"round": 100, "kind": "arrivals", "text": "Requests arrive faster than the plan expects."},
        {"round": 212, "kind": "participation", "text": "Fewer clients took part than expected."},
    ]
    bodies: list[Json] = [
        {"kind": "shift", "updates": 9, "note": "weekly retraining"},
        {"kind": "purge", "updates": 6, "rows": list(range(12)), "note": "data subject 18-221"},
        {"kind": "context", "updates": 8, "client": 3, "data": "AA==", "note": "comments of May"},
        {"kind": "shift", "updates": 7, "note": "<script>alert(1)</script> & <b>bold</b>"},
        {"kind": "rollback", "updates": 0, "version": 2, "note": "complaints about version 4"},
        {"kind": "shift", "updates": 40, "patience": 5, "note": "until nothing improves"},
        {"kind": "purge", "updates": 6, "clients": [4, 7], "exact": True, "due": "2026-10-20"},
        {"kind": "shift", "updates": 4, "due": "2026-12-01", "note": "a long note " * 9},
    ]
    for turn in range(300):
        if turn % 20 == 0:
            service.add({**bodies[turn // 20 % len(bodies)], "key": str(turn)})
        for request in service.find_open():
            if request["patience"] and request["updates_done"] >= 11:
                request["updates_left"] = 1
        service.tick(service.draws.random() < 0.15)
    service.cancel(next(row["id"] for row in service.requests if row["state"] == "waiting"))
    return service


@contextlib.contextmanager
def serving(service: FakeService) -> Iterator[FakeService]:
    """Serve while the block runs."""
    service.start()
    try:
        yield service
    finally:
        service.stop()
