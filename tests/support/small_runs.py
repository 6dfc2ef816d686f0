"""Small training runs: the digits among six clients, a dozen rounds, a fraction of a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covertfl.kernels.job import Vector
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.files import RunSummary
from covertfl.runs.settings import RunSettings, build_run
from covertfl.runs.train import OnRound, RunProgress
from covertfl.training import train

ORACLE = {
    "transition": [[0.6, 0.4, 0.0], [0.3, 0.4, 0.3], [0.0, 0.4, 0.6]],
    "success": [0.2, 0.5, 0.9],
}
HORIZON: dict[str, Any] = {
    "task": "digits",
    "seed": 3,
    "data": {"model": "logistic"},
    "federation": {"clients": 6, "participation": [2, 4, 6], "batch_size": 20},
    "oracle": ORACLE,
    "cost": {"privacy": [1.8, 0.8, 0.3], "learning": {"shape": "quadratic", "scale": 0.6}},
    "horizon": {"rounds": 12, "updates": 4},
}
QUEUE: dict[str, Any] = {
    **{key: value for key, value in HORIZON.items() if key != "horizon"},
    "rounds": 60,
    "cost": {"privacy": [1.8, 0.8, 0.3], "learning": {"shape": "linear", "scale": 0.6}},
    "queue": {
        "arrival_prob": 0.1,
        "arrival_size": 2,
        "learning_limit": 3.0,
        "capacity": 6,
        "overflow_cost": 5.0,
    },
}
# Few clients, whose rounds are fast and are accepted with the problem's own probabilities.
FEW = {"clients": 2, "participation": [1, 1, 2], "batch_size": 20, "acceptance": "model"}
DRAWN_QUEUE: dict[str, Any] = {**QUEUE, "federation": FEW}


def make_run(base: dict[str, Any] = HORIZON, **changes: Any) -> RunSettings:
    """Return a run with some keys changed; tables are merged, None removes a key."""
    return build_run(merge(base, changes), "run.toml", folder=Path("/"))


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a run file with some keys changed."""
    merged = dict(base)
    for key, value in changes.items():
        before = merged.get(key)
        if isinstance(value, dict) and isinstance(before, dict) and key != "learning":
            merged[key] = merge(before, value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def run_small(
    out: Path, base: dict[str, Any] = HORIZON, *, on_round: OnRound | None = None, **changes: Any
) -> RunSummary:
    """Train a small run into a folder and return its summary."""
    return train(make_run(base, **changes), out, on_round=on_round)[0]


class Stopped(Exception):
    """Raised by `stop_after` to interrupt a run."""


def stop_after(rounds: int) -> OnRound:
    """Return a callback that interrupts a run after some rounds."""

    def stop(progress: RunProgress) -> None:
        if progress.round == rounds:
            raise Stopped

    return stop


def read_arrays(out: Path) -> Mapping[str, Vector]:
    """Return the arrays of a run's checkpoint."""
    checkpoint = read_checkpoint(out)
    assert checkpoint is not None
    return checkpoint.arrays


def read_rounds(out: Path, name: str = "private/rounds.jsonl") -> list[dict[str, Any]]:
    """Return the records of a line file of a run's folder."""
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def read_column(out: Path, key: str) -> list[Any]:
    """Return one entry of every private record."""
    return [record[key] for record in read_rounds(out)]


def read_folder(out: Path) -> dict[str, bytes]:
    """Return every file of a run's folder by name, without the seconds of its summary."""
    files = {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    for name, content in files.items():
        if Path(name).name == "summary.json":
            summary = json.loads(content)
            del summary["seconds"]
            files[name] = json.dumps(summary).encode()
    return files
