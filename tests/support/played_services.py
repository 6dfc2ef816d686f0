"""Small services: the digits among six clients, requests in chosen rounds, no HTTP."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.runs.train import RunProgress
from covertfl.service.loop import as_service, run_simulated
from covertfl.service.requests import parse_request
from covertfl.service.store import Store, StoredRequest
from tests.support.services import add, cancel
from tests.support.small_runs import QUEUE, make_run, merge, read_folder

SERVICE: dict[str, Any] = merge(
    QUEUE,
    {
        "queue": {"capacity": "auto", "overflow_cost": None},
        "rounds": None,
        "service": {"round_seconds": 0.0, "listen": "127.0.0.1:0"},
    },
)
# What is asked for before a round: bodies of requests, or numbers of requests to cancel.
Asked = Mapping[int, Sequence[Mapping[str, Any] | int]]
# Files that differ between two services with the same requests.
OWN_FILES = ("service.db", "token", "address", "version.json", "run.toml", "summary.json")


def ask(folder: Path, *asked: Mapping[str, Any] | int) -> None:
    """Store requests, or cancel those that are given by number."""
    with Store(folder) as store:
        for one in asked:
            if isinstance(one, int):
                cancel(store, one)
            else:
                add(store, [parse_request(json.dumps(one))])


def play_service(
    folder: Path,
    asked: Asked,
    rounds: int,
    *,
    base: dict[str, Any] = SERVICE,
    stop_after: int | None = None,
    **changes: Any,
) -> None:
    """Play the rounds of a service, or continue one; `stop_after` ends it in an earlier round."""
    settings = as_service(make_run(base, **changes)).with_rounds(rounds)
    ending = threading.Event()
    is_new = not (folder / "service.db").exists()

    def on_start() -> None:
        if is_new:
            ask(folder, *asked.get(1, ()))

    def on_round(progress: RunProgress) -> None:
        ask(folder, *asked.get(progress.round + 1, ()))
        if progress.round == stop_after:
            ending.set()

    run_simulated(settings, folder, ending, on_start=on_start, on_round=on_round)


def list_requests(folder: Path) -> list[StoredRequest]:
    """Return all requests, oldest first."""
    with Store(folder) as store:
        return store.list_requests(limit=100_000)[::-1]


def read_run_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a service that follow from its requests."""
    found = read_folder(folder)
    return {
        name: content
        for name, content in found.items()
        if Path(name).name.removesuffix("-wal").removesuffix("-shm") not in OWN_FILES
        # Left by a service that was killed as it wrote a file, or stopped within a round, which
        # it would repeat as noted.
        and not Path(name).name.startswith(".")
        and name != "checkpoint/pending.json"
    }


def pack_examples(features: Any, labels: Any, **others: Any) -> str:
    """Return an .npz file in base64."""
    stream = io.BytesIO()
    np.savez(stream, features=np.asarray(features), labels=np.asarray(labels), **others)
    return base64.b64encode(stream.getvalue()).decode()
