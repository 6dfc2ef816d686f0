"""What a report is made from: the result files of runs, read without any part that made them.

A file that is not there is no mistake here: a run may be under way, or only its public folder may
have been kept.  What could not be read is noted, so that the page can say so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.errors import InvalidInput
from covertfl.files.format import require_format
from covertfl.files.toml import parse_toml, read_text
from covertfl.runs.folder import SETTINGS
from covertfl.runs.lines import read_lines
from covertfl.runs.summary import SUMMARY

AUDIT = "audit.json"


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0  # type() because true is an int as well


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _is_number_or_none(value: object) -> bool:
    return value is None or _is_number(value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_interval(value: object) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return value is None or is_pair


Checks = Mapping[str, Callable[[object], bool]]
# What a report relies on of each kind of record.
_PUBLIC: Checks = {"round": _is_count}
_METRICS: Checks = {
    "round": _is_count,
    "learner_score": _is_number_or_none,
    "backlog": _is_count,
    "exposure": _is_number,
}
_ROUNDS: Checks = {
    "round": _is_count,
    "oracle_state": _is_count,
    "backlog": _is_count,
    "learn_prob": _is_number,
    "action": _is_text,
    "updated": _is_flag,
    "rejected": _is_list,
}
_UPDATES: Checks = {"came": _is_count, "done": _is_count}
_EAVESDROPPER: Checks = {
    "threat": _is_text,
    "verdict": _is_text,
    "names_true": _is_number_or_none,
    "interval": _is_interval,
    "final_accuracy": _is_number_or_none,
    "final_interval": _is_interval,
    "worst_accuracy": _is_number_or_none,
    "advantage": _is_number_or_none,
}
_COALITION: Checks = {
    "names_true": _is_number_or_none,
    "interval": _is_interval,
    "final_accuracy": _is_number_or_none,
}


@dataclass(frozen=True, eq=False)
class RunRecords:
    """The result files of one run.

    Parameters
    ----------
    name : of its folder
    settings, summary : None where the files are not there
    queries : lines of the public record
    metrics, rounds, updates : records of metrics.jsonl, private/rounds.jsonl and
        private/updates.jsonl, empty where the files are not there
    notes : sentences about what is missing or cannot be read
    """

    name: str
    settings: Mapping[str, Any] | None
    summary: Mapping[str, Any] | None
    queries: int
    metrics: Sequence[Mapping[str, Any]]
    rounds: Sequence[Mapping[str, Any]]
    updates: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = field(default=())

    @property
    def is_public_only(self) -> bool:
        """Whether nothing but what clients were sent is there."""
        return self.settings is None and self.summary is None and not (self.metrics or self.rounds)

    def setting(self, *keys: str) -> Any:
        """One setting by its section and key, None where it is not there."""
        value: Any = self.settings
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def find_runs(folder: Path) -> list[Path]:
    """The runs in a folder: itself, or its sub-folders in the order of their numbers."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: no such folder, the folder of a run is needed")
    if _is_run(folder):
        return [folder]
    found = [child for child in folder.iterdir() if child.is_dir() and _is_run(child)]
    if not found:
        raise InvalidInput(f"{folder} holds no run: public/ or rounds.jsonl is needed")
    return sorted(found, key=lambda child: (len(child.name), child.name))


def _is_run(path: Path) -> bool:
    return (path / "public").is_dir() or (path / "rounds.jsonl").is_file()


def read_run_records(path: Path) -> RunRecords:
    """Everything that a report needs of one run."""
    notes: list[str] = []
    settings = _read_settings(path / SETTINGS)
    summary = _read_object(path / SUMMARY)
    public = path / "public" if (path / "public").is_dir() else path
    if settings is not None and summary is None:
        notes.append(f"{path.name} has not ended; shown are the rounds so far.")
    if settings is not None and not (path / "private" / "rounds.jsonl").is_file():
        notes.append(f"{path.name} has no private records; its actions are not shown.")
    return RunRecords(
        name=path.name,
        settings=settings,
        summary=summary,
        queries=len(_read_records(public / "rounds.jsonl", _PUBLIC, notes)),
        metrics=_read_records(path / "metrics.jsonl", _METRICS, notes),
        rounds=_read_records(path / "private" / "rounds.jsonl", _ROUNDS, notes),
        updates=_read_records(path / "private" / "updates.jsonl", _UPDATES, notes),
        notes=tuple(notes),
    )


def read_audit(folder: Path) -> dict[str, Any] | None:
    """The audit that was kept in a folder, None where there is none."""
    path = folder / AUDIT
    audit = _read_object(path)
    if audit is None:
        return None
    for key, kind in (("runs", int), ("learner", dict), ("eavesdroppers", dict)):
        if not isinstance(audit.get(key), kind):
            raise InvalidInput(f"{path} is not an audit of covertfl: it lacks {key!r}")
    for name, entry in audit["eavesdroppers"].items():
        wrong = _find_wrong(entry, _EAVESDROPPER) if isinstance(entry, dict) else "threat"
        if wrong is not None:
            raise InvalidInput(f"{path}: eavesdropper {name!r} lacks a usable {wrong!r}")
    for size, coalition in (audit.get("coalitions") or {}).items():
        _check_coalition(f"{path}: coalition {size!r}", coalition)
    absent = dict.fromkeys(("bound", "separation", "mismatch", "coalitions", "warnings"))
    return absent | audit


def _check_coalition(where: str, coalition: object) -> None:
    if not isinstance(coalition, dict) or not _is_number(coalition.get("rounds_seen")):
        raise InvalidInput(f"{where} lacks a usable 'rounds_seen'")
    for name, entry in (coalition.get("eavesdroppers") or {}).items():
        wrong = _find_wrong(entry, _COALITION) if isinstance(entry, dict) else "names_true"
        if wrong is not None:
            raise InvalidInput(f"{where}: eavesdropper {name!r} lacks a usable {wrong!r}")


def _read_settings(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = parse_toml(read_text(path, "a run file"), str(path))
    require_format("run", content.get("format", 1), str(path))
    return content


def _read_object(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(read_text(path, "a result file"))
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} must hold an object")
    return content


def _read_records(path: Path, checks: Checks, notes: list[str]) -> tuple[dict[str, Any], ...]:
    """The lines of a file; from one that cannot be read on, none, with a note.

    The last line of a run under way may be half written.
    """
    if not path.is_file():
        return ()
    records: list[dict[str, Any]] = []
    try:
        for number, record in enumerate(read_lines(path), start=1):
            wrong = _find_wrong(record, checks)
            if wrong is not None:
                raise InvalidInput(f"{path} line {number} lacks a usable {wrong!r}")
            records.append(record)
    except InvalidInput as error:
        notes.append(f"{error}; that line and what follows it are left out.")
    return tuple(records)


def _find_wrong(record: Mapping[str, Any], checks: Checks) -> str | None:
    """The first key that is missing or not as it should be."""
    return next((key for key, is_right in checks.items() if not is_right(record.get(key))), None)


def stack_by_round(runs: Sequence[RunRecords], key: str) -> FloatArray:
    """One entry of the metrics, (runs, rounds), NaN where a run has none."""
    length = max((len(run.metrics) for run in runs), default=0)
    table = np.full((len(runs), length), np.nan)
    for row, run in zip(table, runs, strict=True):
        values = [record[key] for record in run.metrics]
        row[: len(values)] = [np.nan if value is None else value for value in values]
    return table


def list_waits(runs: Sequence[RunRecords]) -> FloatArray:
    """Rounds that each update waited, of all runs."""
    waits = [record["done"] - record["came"] for run in runs for record in run.updates]
    return np.array(waits, dtype=np.float64)


def find_little_wait(runs: Sequence[RunRecords]) -> float | None:
    """Little's law: backlog summed over rounds, for each update that was done."""
    done = sum(len(run.updates) for run in runs)
    if not done:
        return None
    return float(sum(record["backlog"] for run in runs for record in run.rounds)) / done


def average_policy(runs: Sequence[RunRecords]) -> tuple[FloatArray, int]:
    """Mean chance of learning by (oracle state, backlog), NaN where never seen, and the rounds."""
    records = [record for run in runs for record in run.rounds]
    if not records:
        return np.empty((0, 0)), 0
    states = np.array([record["oracle_state"] for record in records])
    backlogs = np.array([record["backlog"] for record in records])
    probs = np.array([record["learn_prob"] for record in records], dtype=np.float64)
    known = [len(run.setting("oracle", "success") or ()) for run in runs]
    shape = (max(*known, int(states.max()) + 1, 1), int(backlogs.max()) + 1)
    totals, visits = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (states, backlogs), probs)
    np.add.at(visits, (states, backlogs), 1.0)
    means = np.divide(totals, visits, out=np.full(shape, np.nan), where=visits > 0)
    return means, len(records)


def find_backlog_limit(run: RunRecords) -> float | None:
    """Mean backlog that the limit allows, where the learning cost is linear in the backlog."""
    limit, cost = run.setting("queue", "learning_limit"), run.setting("cost", "learning")
    if limit is None or not isinstance(cost, Mapping):
        return None
    linear = cost.get("shape") == "linear" and cost.get("charged", "always") == "always"
    return float(limit) / float(cost["scale"]) if linear and cost.get("scale") else None


def find_wait_limit(run: RunRecords) -> float | None:
    """Mean wait that the limit allows: Little's law at the rate at which updates come."""
    backlog = find_backlog_limit(run)
    rate = float(run.setting("queue", "arrival_prob") or 0.0) * float(
        run.setting("queue", "arrival_size") or 0.0
    )
    return None if backlog is None or rate == 0.0 else backlog / rate


def find_guess(run: RunRecords) -> float:
    """Chance of naming the true one of all trajectories without knowing anything."""
    count = run.setting("decoy", "count")
    return 1.0 / (1 + count) if _is_count(count) else 0.5
