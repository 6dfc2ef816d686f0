"""Services without rounds: a folder with a database, and the HTTP interface on it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.errors import InvalidInput
from covertfl.files.token import make_token
from covertfl.service.client import Service, find_service, write_address
from covertfl.service.http_process import HttpProcess
from covertfl.service.requests import RequestBody, parse_request
from covertfl.service.store import Store, StoredRequest, Version

TOKEN = "t" * 43
LIMITS = {
    **{"clients": 4, "rows": 100, "changes_data": True, "rolls_back": True, "shape": [2]},
    "classes": ["no", "yes"],
}
SERVICE = {
    **{"task": "toxicity", "policy": "optimal", "round_seconds": 1.0, "trajectories": 2},
    **{"started": "2026-11-17T09:00:00+00:00", "states": 3},
}
POLICY = {
    **{"kind": "optimal", "learn_prob": [[[0.0, 1.0]]], "arrival_sizes": [0, 4], "limit": 3.0},
    **{"arrival_rate": 0.2, "promised_wait": 25.0},
}
RECORD = {
    **{"oracle_state": 2, "backlog": 7, "arrival": 4, "action": 1, "accepted": 3},
    **{"exposure": 0.31, "learner_score": 0.83, "mean_wait": 11.2, "counting": 0.4, "scheme": 0.6},
    "rejected": 5,
}


def make_body(kind: str = "shift", **content: Any) -> RequestBody:
    """Return a request, of four updates if nothing else is said."""
    return parse_request(json.dumps({"kind": kind, "updates": 4, **content}))


def add(store: Store, bodies: Sequence[RequestBody]) -> list[StoredRequest]:
    """Store requests and return them."""
    found = [answer.found for answer in store.change(bodies)]
    return [one for one in found if isinstance(one, StoredRequest)]


def cancel(store: Store, number: int) -> StoredRequest:
    """Cancel a request and return it; raise what refuses it."""
    [answer] = store.change([number])
    if isinstance(answer.found, InvalidInput):
        raise answer.found
    return answer.found


def make_store(folder: Path) -> Store:
    """Return the new database of a service that has played no round."""
    store = Store(folder, is_durable=False, creates=True)
    for name, value in (("limits", LIMITS), ("service", SERVICE), ("policy", POLICY)):
        store.keep_fact(name, value)
    return store


def make_version(number: int, parent: int | None = None, request: int | None = None) -> Version:
    """Return a version that was released in a round of the same number."""
    return Version(number, parent, number, request, {"accuracy": 0.8}, 1.0e9)


def pack_arrays(**arrays: Any) -> str:
    """Return an .npz file in base64."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return base64.b64encode(file.getvalue()).decode()


def open_client(folder: Path, **options: Any) -> Any:
    """Return a client with the token of the HTTP interface of a folder, to be entered."""
    from starlette.testclient import TestClient

    from covertfl.service.api import make_app

    app = make_app(folder, token=TOKEN, **options)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return TestClient(app, base_url="http://localhost:8800", headers=headers)


def refusal(reply: Any, status: int) -> str:
    """Return the sentence of an answer that refuses."""
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}
    sentence = str(reply.json()["error"])
    assert "\n" not in sentence and sentence
    return sentence


class RunningService:
    """The HTTP interface of a new service, and its database; rounds pass when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, make_store(folder)
        self.token = make_token(folder / "token")
        self.process: HttpProcess
        self.port = 0

    @property
    def client(self) -> Service:
        """The service as commands find it."""
        return find_service(str(self.folder))

    def start(self) -> None:
        """Answer, at the same port as before where there was one."""
        self.process = HttpProcess(self.folder, "127.0.0.1", self.port)
        write_address(self.folder, self.process.address)
        self.port = int(self.process.address.rpartition(":")[2])

    def stop(self) -> None:
        """Answer no longer; the database stays."""
        self.process.close()

    def ask(self, kind: str = "shift", **content: Any) -> int:
        """Store a request and return its number."""
        [found] = add(self.store, [make_body(kind, **content)])
        return found.id

    def tick(self, is_learning: bool = True) -> None:
        """Let a round pass; the oldest open request gets one update if the query is true."""
        last = self.store.list_rounds(limit=1)
        number = last[0]["round"] + 1 if last else 1
        self.store.open_round(number - 1)  # so that what has just been asked for is served
        request = self.store.open_round(number)
        if request is not None and (is_learning or not request.size):
            self._serve(request, number)
        backlog = self.store.sum_left()
        shown = {"arrival": 0, "counting": 0.31, "scheme": 0.52, "mean_wait": 9.0 + number % 7}
        self.store.add_round(number, {**RECORD, "backlog": backlog, **shown})

    def _serve(self, request: StoredRequest, number: int) -> None:
        served, left = request.served + bool(request.size), request.left - 1
        if left > 0:
            self.store.advance(request.id, left=left, served=served)
            return
        latest, target = self.store.find_latest() or 0, request.body.version
        version = make_version(latest + 1, latest if target is None else target, request.id)
        self.store.release(replace(version, round=number), finished=number, served=served)


@contextlib.contextmanager
def run_service(folder: Path) -> Iterator[RunningService]:
    """Run the HTTP interface of a new service in a process of its own."""
    service = RunningService(folder)
    with service.store:
        service.start()
        try:
            yield service
        finally:
            service.stop()
