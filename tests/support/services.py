"""Services without rounds: a folder with a database, and the HTTP interface on it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.service.client import Service, find_service, write_address
from covertfl.service.http_process import HttpProcess, make_token
from covertfl.service.journal import Version
from covertfl.service.requests import RequestBody, parse_request
from covertfl.service.store import Store

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


@dataclass(frozen=True)
class RunningService:
    """The HTTP interface of a folder, and the database behind it."""

    folder: Path
    store: Store
    process: HttpProcess
    client: Service


@contextlib.contextmanager
def run_service(folder: Path) -> Iterator[RunningService]:
    """Run the HTTP interface of a new service in a process of its own."""
    with make_store(folder) as store:
        make_token(folder)
        with HttpProcess(folder, "127.0.0.1", 0) as process:
            write_address(folder, process.address)
            yield RunningService(folder, store, process, find_service(str(folder)))
