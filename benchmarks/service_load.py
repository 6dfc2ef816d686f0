"""A service under load: thousands of requests from many connections while it plays rounds.

    python benchmarks/service_load.py FOLDER REQUESTS

is the client, a process of its own; `python benchmarks/run.py --only service` measures.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from section import Check, Section
from service_process import ServiceProcess, running_service, write_service_file

from covertfl.service.client import Service, find_service

REQUESTS, QUICK_REQUESTS, CONNECTIONS = 10_000, 1_000, 16
CLOCKS = (0.0, 0.05)  # seconds between the starts of two rounds
UPDATES = 4
MOST_SLOWED = 0.10
PAGE = 1_000  # requests in an answer


# --- the client -----------------------------------------------------------------------------------


def post_all(service: Service, numbers: Sequence[int]) -> list[tuple[int, float]]:
    """Post requests one after the other on one connection; return their ids and seconds."""
    parts = urlsplit(service.address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120.0)
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    answers = []
    for number in numbers:
        body = json.dumps({"kind": "shift", "updates": UPDATES, "key": f"load-{number}"})
        started = time.perf_counter()
        connection.request("POST", "/requests", body.encode(), headers)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        seconds = time.perf_counter() - started
        if reply.status != 201:
            raise RuntimeError(f"request {number} was answered with {reply.status}: {answer}")
        answers.append((int(answer["id"]), seconds))
    connection.close()
    return answers


def run_client(folder: str, requests: int) -> None:
    """Post from all connections at once, and print the answers as JSON."""
    service = find_service(folder)
    shares = [range(first, requests, CONNECTIONS) for first in range(CONNECTIONS)]
    started = time.perf_counter()
    with ThreadPoolExecutor(CONNECTIONS) as executor:
        answers = [
            answer
            for answers in executor.map(lambda share: post_all(service, share), shares)
            for answer in answers
        ]
    print(json.dumps({"seconds": time.perf_counter() - started, "answers": answers}))


# --- the measurement ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """What was measured with one clock.

    Parameters
    ----------
    latencies : seconds of each request
    seconds : from the first request to the last answer
    loaded, full, idle : rounds per second meanwhile, afterwards with a long queue, and of a service
        that is left alone for as long
    is_complete : whether the ids are 1, 2, ... and the service lists each of them once
    """

    round_seconds: float
    latencies: tuple[float, ...]
    seconds: float
    loaded: float
    full: float
    idle: float
    is_complete: bool

    @property
    def slowed(self) -> float:
        """The share of the rounds that the load costs: against the same queue without requests."""
        return 1.0 - self.loaded / self.full


def count_rounds(running: ServiceProcess, seconds: float) -> float:
    """Return the rounds per second that a service plays in so many seconds."""
    first, started = running.read_status()["round"], time.perf_counter()
    time.sleep(seconds)
    played = running.read_status()["round"] - first
    return float(played / (time.perf_counter() - started))


def list_ids(service: Service) -> list[int]:
    """Return the ids of all requests that a service knows, newest first."""
    ids: list[int] = []
    while True:
        before = f"&before={ids[-1]}" if ids else ""
        page = service.get(f"/requests?limit={PAGE}{before}")["requests"]
        if not page:
            return ids
        ids += [request["id"] for request in page]


def load_service(running: ServiceProcess, requests: int) -> dict[str, Any]:
    """Run the client against a service; return its answers and the rounds played meanwhile."""
    command = [sys.executable, __file__, str(running.folder), str(requests)]
    first, started = running.read_status()["round"], time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    played = running.read_status()["round"] - first
    return {**json.loads(done.stdout), "loaded": played / (time.perf_counter() - started)}


def measure_clock(folder: Path, round_seconds: float, requests: int) -> Load:
    """Load a service, then leave another one with the same settings alone."""
    file = write_service_file(folder / "service.toml", round_seconds=round_seconds)
    with running_service(file, folder / "loaded") as running:
        found = load_service(running, requests)
        known = list_ids(running.service)
        full = count_rounds(running, found["seconds"])
    with running_service(file, folder / "idle") as running:
        idle = count_rounds(running, found["seconds"])
    ids, latencies = zip(*found["answers"], strict=True)
    expected = list(range(1, requests + 1))
    return Load(
        round_seconds=round_seconds,
        latencies=latencies,
        seconds=found["seconds"],
        loaded=found["loaded"],
        full=full,
        idle=idle,
        is_complete=sorted(ids) == expected and known == expected[::-1],
    )


def measure(*, quick: bool) -> Section:
    """Measure a service under load, with and without a clock."""
    requests = QUICK_REQUESTS if quick else REQUESTS
    with tempfile.TemporaryDirectory() as place:
        loads = []
        for clock in CLOCKS:
            folder = Path(place) / f"clock-{clock:g}"
            folder.mkdir()
            loads.append(measure_clock(folder, clock, requests))
    return Section(
        title="A service under load",
        columns=(
            "round_seconds",
            "requests/s",
            "p50",
            "p99",
            "rounds/s loaded",
            "long queue",
            "idle",
            "slowed by",
        ),
        rows=tuple(map(make_row, loads)),
        checks=tuple(check for load in loads for check in make_checks(load, requests)),
        ratios={
            f"rounds under load, round_seconds = {load.round_seconds:g}": load.loaded / load.full
            for load in loads
        },
    )


def make_row(load: Load) -> tuple[str, ...]:
    """Return a row of the table."""
    middle, late = np.quantile(load.latencies, [0.5, 0.99]) * 1e3
    return (
        f"{load.round_seconds:g}",
        f"{len(load.latencies) / load.seconds:.0f}",
        f"{middle:.1f} ms",
        f"{late:.1f} ms",
        f"{load.loaded:.1f}",
        f"{load.full:.1f}",
        f"{load.idle:.1f}",
        f"{load.slowed:.1%}",
    )


def make_checks(load: Load, requests: int) -> list[Check]:
    """Return what must hold for a clock."""
    clock = f"with round_seconds = {load.round_seconds:g}"
    return [
        Check(f"{clock} the ids 1 to {requests:,} are acknowledged and listed", load.is_complete),
        Check(f"{clock} rounds are slowed by less than 10%", load.slowed < MOST_SLOWED),
    ]


if __name__ == "__main__":
    run_client(sys.argv[1], int(sys.argv[2]))
