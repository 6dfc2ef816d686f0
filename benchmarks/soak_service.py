"""Run a service for thousands of rounds, and check waits, memory and the size of its database.

    python benchmarks/soak_service.py [--rounds 5000] [--seed 0] [--out out/soak] [--write]

starts `covertfl serve` on the simulated engine and asks it for shifts through its HTTP interface:
requests arrive as a Poisson process at the rate of the problem, each with the updates that the
problem's arrivals have.  The measured mean wait of an update is compared with what the service
promises and with the expected wait under its policy.  `make soak` runs this and writes
results/service/soak.json and docs/images/service-soak.png.  The exit status is 1 if the wait is
longer than promised, memory grows, or the database grows faster than the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import shutil
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from section import DOCUMENTS, read_lines
from service_process import ServiceProcess, running_service, write_service_file

from covertfl import QueueProblem, QueueTable, Run, evaluate_queue_policy
from covertfl.display.plots import PALETTE, new_figure, save_figure, tidy
from covertfl.intervals import t_interval
from covertfl.runs.train import KernelCache, build_federation

ROOT = DOCUMENTS.parent
RESULTS, PICTURE = ROOT / "results/service/soak.json", DOCUMENTS / "images/service-soak.png"
BATCHES = 20  # of waits, for the interval
SAMPLE_ROUNDS = 100
LOOK_SECONDS, TICK_SECONDS = 0.25, 0.002
# Share by which memory may grow over the second half: it grows in few steps of about two MiB, and
# a slope in bytes a round says little.
MOST_GROWTH = 0.01
LEAST_R2 = 0.99
MIB = 2.0**20


@dataclass
class Samples:
    """Sizes in bytes every so many rounds."""

    rounds: list[int] = field(default_factory=list)
    memory_rounds: list[int] = field(default_factory=list)
    memory_http: list[int] = field(default_factory=list)
    database: list[int] = field(default_factory=list)

    def add(self, number: int, running: ServiceProcess) -> None:
        """Take a sample after a round."""
        rounds, http = running.measure_memory()
        self.rounds.append(number)
        self.memory_rounds.append(rounds)
        self.memory_http.append(http)
        self.database.append(measure_database(running.folder / "service.db"))


def measure_database(path: Path) -> int:
    """Return the size of a database in bytes, with what is only in its log so far."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
    return int(pages) * int(size)


class RoundClock:
    """The number of the current round, between two looks extrapolated by the latest pace."""

    def __init__(self, running: ServiceProcess) -> None:
        self._running = running
        self._seen: deque[tuple[float, int]] = deque(maxlen=8)
        self.look()

    def look(self) -> int:
        """Ask the service, and return the round."""
        number = int(self._running.read_status()["round"])
        self._seen.append((time.monotonic(), number))
        return number

    @property
    def now(self) -> float:
        """The round, with its fraction."""
        (first, before), (last, number) = self._seen[0], self._seen[-1]
        pace = (number - before) / (last - first) if last > first else 0.0
        return number + pace * (time.monotonic() - last)

    @property
    def is_due(self) -> bool:
        """Whether the last look is too long ago."""
        return time.monotonic() - self._seen[-1][0] >= LOOK_SECONDS


def soak(running: ServiceProcess, rounds: int, rate: float, size: int, seed: int) -> Samples:
    """Ask for updates until so many rounds have been played.

    Parameters
    ----------
    rate : expected requests per round
    size : updates of each
    """
    generator, samples, clock = np.random.default_rng(seed), Samples(), RoundClock(running)
    due, number, asked = clock.now + generator.exponential(1.0 / rate), 0, 0
    while number < rounds:
        if clock.now >= due:
            asked += 1
            running.service.ask({"kind": "shift", "updates": size, "key": f"soak-{asked}"})
            due += generator.exponential(1.0 / rate)
        elif clock.is_due:
            number = clock.look()
            if number // SAMPLE_ROUNDS > (samples.rounds or [0])[-1] // SAMPLE_ROUNDS:
                samples.add(number, running)
        else:
            time.sleep(TICK_SECONDS)
    return samples


def list_waits(records: Sequence[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the round of completion and the wait of every update, first come, first served."""
    owed: deque[int] = deque()
    waits = []
    for record in records:
        served = record["backlog"] + record["arrival"] - record["backlog_after"]
        waits += [(record["round"], record["round"] - owed.popleft()) for _ in range(served)]
        owed.extend([record["round"]] * record["arrival"])
    return waits


def summarise_waits(waits: Sequence[tuple[int, int]]) -> tuple[float, float, float]:
    """Return the mean wait and its interval, from means of batches, which depend little."""
    values = np.array([wait for _, wait in waits], dtype=np.float64)
    mean = float(values.mean())
    middle, low, _ = t_interval([part.mean() for part in np.array_split(values, BATCHES)])
    return mean, mean - (middle - low), mean + (middle - low)


def find_expected_wait(file: Path) -> dict[str, Any]:
    """Return the expected wait under the policy, with the success probabilities in force."""
    federation = build_federation(Run.load(file).settings, KernelCache())
    problem, policy = federation.problem, federation.scheme.describe().policy
    assert isinstance(problem, QueueProblem) and isinstance(policy, QueueTable)
    found = evaluate_queue_policy(problem.with_capacity(policy.table.shape[2] - 1), policy)
    return {
        "success": problem.oracle.success.tolist(),
        "expected_wait": found.mean_backlog / problem.load,
        "load": problem.load,
    }


def fit_line(rounds: Sequence[int], values: Sequence[int]) -> tuple[float, float]:
    """Return slope and R^2 of the straight line through values by round."""
    x, y = np.asarray(rounds, dtype=np.float64), np.asarray(values, dtype=np.float64)
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    rest = float(((y - slope * x - start) ** 2).sum())
    return float(slope), 1.0 - rest / spread if spread > 0.0 else 1.0


def measure_growth(samples: Samples) -> dict[str, float]:
    """Return how memory grows in the second half, and the database all the time, in bytes."""
    half = len(samples.rounds) // 2
    late = samples.rounds[half:]
    slope, straight = fit_line(samples.rounds, samples.database)
    growth = {}
    for name in ("memory_rounds", "memory_http"):
        values = getattr(samples, name)[half:]
        growth[f"{name}_per_round"] = fit_line(late, values)[0]
        growth[f"{name}_growth"] = growth[f"{name}_per_round"] * (late[-1] - late[0]) / values[0]
    return {**growth, "database_per_round": slope, "database_r2": straight}


def judge(found: dict[str, Any]) -> dict[str, bool]:
    """Return the sentences that hold, and those that do not."""
    wait, promised = found["wait"], found["promised_wait"]
    return {
        f"the mean wait is within the promise ({promised:g} rounds)": wait["low"] <= promised,
        "the expected wait under the policy lies in the interval": (
            wait["low"] <= found["expected_wait"] <= wait["high"]
        ),
        "the service and the records agree on the mean wait": (
            abs(wait["mean"] - found["status_mean_wait"]) < 1e-9
        ),
        "no request is lost": found["requests"] == found["requests_known"],
        "memory of the rounds is flat (grows by less than 1%)": found["memory_rounds_growth"]
        < MOST_GROWTH,
        "memory of the HTTP interface is flat (grows by less than 1%)": found["memory_http_growth"]
        < MOST_GROWTH,
        "the database grows linearly": found["database_r2"] > LEAST_R2,
    }


def measure(out: Path, rounds: int, seed: int) -> dict[str, Any]:
    """Run the service in a new folder and return all that was found."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    file = write_service_file(out / "service.toml", round_seconds=0.0, seed=seed)
    problem = Run.load(file).problem
    assert isinstance(problem, QueueProblem)
    size = int(problem.arrival_support[-1])
    started = time.monotonic()
    with running_service(file, out / "service") as running:
        samples = soak(running, rounds, problem.load / size, size, seed)
        status = running.read_status()
        known = running.service.get("/requests?limit=1")
    seconds = time.monotonic() - started
    records = read_lines(out / "service" / "private" / "rounds.jsonl")
    waits = [wait for wait in list_waits(records) if wait[0] <= status["round"]]
    mean, low, high = summarise_waits(waits)
    found = {
        "date": datetime.date.today().isoformat(),
        "rounds": status["round"],
        "seconds": round(seconds, 1),
        "requests": known["requests"][0]["id"],
        "requests_known": sum(known["counts"].values()),
        "requests_done": known["counts"]["done"],
        "updates": len(waits),
        "arrived_per_round": sum(record["arrival"] for record in records) / len(records),
        "wait": {"mean": mean, "low": low, "high": high, "batches": BATCHES},
        "status_mean_wait": status["mean_wait"],
        "promised_wait": status["promised_wait"],
        **find_expected_wait(file),
        **measure_growth(samples),
        "samples": dataclasses.asdict(samples),
        "waits": waits,
    }
    return {**found, "checks": judge(found)}


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw waits against the promise, memory and database size over rounds."""
    figure = new_figure(8.0, 7.0)
    waits, memory, database = figure.subplots(3, 1, sharex=True)
    done, lengths = (np.array(part, dtype=np.float64) for part in zip(*found["waits"], strict=True))
    _draw_waits(waits, done, lengths, found)
    samples = found["samples"]
    for name, label, colour, mark in (
        ("memory_rounds", "rounds", PALETTE[1], "o"),
        ("memory_http", "HTTP interface", PALETTE[0], "^"),
    ):
        values = np.array(samples[name]) / MIB
        memory.plot(samples["rounds"], values, color=colour, marker=mark, ms=3, label=label)
    memory.set(ylabel="resident memory, MiB", ylim=(0.0, None))
    size = np.array(samples["database"]) / MIB
    database.plot(samples["rounds"], size, color=PALETTE[2], marker="s", ms=3, label="service.db")
    database.set(ylabel="database, MiB", ylim=(0.0, None), xlabel="round")
    for axes in (waits, memory, database):
        tidy(axes)
        axes.legend(frameon=False, fontsize=8, loc="best")
    save_figure(figure, path)


def _draw_waits(axes: Any, done: Any, lengths: Any, found: dict[str, Any]) -> None:
    """Draw single waits, their mean so far, and what was promised."""
    so_far = np.cumsum(lengths) / np.arange(1, 1 + len(lengths))
    axes.plot(done, lengths, ".", color="#999999", ms=2, label="an update")
    axes.plot(done, so_far, color=PALETTE[1], label="mean so far")
    promised = found["promised_wait"]
    axes.axhline(promised, color=PALETTE[0], ls="--", label=f"promised: {promised:g}")
    wait = found["wait"]
    axes.errorbar(
        [done[-1]],
        [wait["mean"]],
        yerr=[[wait["mean"] - wait["low"]], [wait["high"] - wait["mean"]]],
        color=PALETTE[6],
        capsize=4,
        label="95% interval at the end",
    )
    axes.set(ylabel="wait of an update, rounds", ylim=(0.0, None))


def describe(found: dict[str, Any]) -> str:
    """Return the result as lines of text."""
    wait = found["wait"]
    lines = [
        f"{found['rounds']} rounds in {found['seconds']:.0f} s, {found['requests']} requests, "
        f"{found['updates']} updates done",
        f"mean wait {wait['mean']:.1f} rounds, 95% {wait['low']:.1f} to {wait['high']:.1f}; "
        f"promised {found['promised_wait']:g}, expected {found['expected_wait']:.2f}",
        f"arrivals {found['arrived_per_round']:.3f} updates per round, problem {found['load']:g}",
        f"memory per round in the second half: rounds {found['memory_rounds_per_round']:.0f} "
        f"bytes, HTTP interface {found['memory_http_per_round']:.0f} bytes",
        f"database: {found['database_per_round']:.0f} bytes per round, "
        f"R^2 of a line {found['database_r2']:.5f}",
    ]
    answers = {True: "yes", False: "NO"}
    return "\n".join([*lines, *(f"{answers[met]}: {say}" for say, met in found["checks"].items())])


def main() -> int:
    """Soak, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="run a service for thousands of rounds")
    parser.add_argument("--rounds", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "soak")
    parser.add_argument("--write", action="store_true", help="write the results and the picture")
    asked = parser.parse_args()
    found = measure(asked.out, asked.rounds, asked.seed)
    print(describe(found))
    (asked.out / "soak.json").write_text(json.dumps(found) + "\n")
    if asked.write:
        draw(found, PICTURE)
        kept = {name: value for name, value in found.items() if name != "waits"}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if all(found["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
