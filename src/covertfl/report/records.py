"""The result files of runs, read without any module that wrote them.

A missing file is not an error here: a run may be in progress, or only its public folder may have
been kept.  What could not be read is noted, and the page shows the note.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.format import require_format
from covertfl.files.toml import parse_toml, read_text
from covertfl.report.checks import METRICS, PUBLIC, ROUNDS, UPDATES, Checks, find_wrong
from covertfl.runs.lines import read_lines
from covertfl.runs.locate import SETTINGS
from covertfl.runs.summary import SUMMARY


@dataclass(frozen=True, eq=False)
class RunRecords:
    """The result files of one run.

    Parameters
    ----------
    name : of the run's folder
    settings, summary : None if the files are missing
    queries : number of lines in the public record
    metrics, rounds, updates : records of metrics.jsonl, private/rounds.jsonl and
        private/updates.jsonl, empty if the files are missing
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
        """Return whether only the record of what clients received is available."""
        return self.settings is None and self.summary is None and not (self.metrics or self.rounds)

    def setting(self, *keys: str) -> Any:
        """Return one setting by its section and key, None if it is missing."""
        value: Any = self.settings
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run_records(path: Path) -> RunRecords:
    """Read everything that a report needs of one run."""
    notes: list[str] = []
    settings = _read_settings(path / SETTINGS)
    summary = read_object(path / SUMMARY)
    public = path / "public" if (path / "public").is_dir() else path
    if settings is not None and summary is None:
        notes.append(f"{path.name} has not ended; the page covers the rounds so far.")
    if settings is not None and not (path / "private" / "rounds.jsonl").is_file():
        notes.append(f"{path.name} has no private records; its actions are not shown.")
    return RunRecords(
        name=path.name,
        settings=settings,
        summary=summary,
        queries=len(_read_records(public / "rounds.jsonl", PUBLIC, notes)),
        metrics=_read_records(path / "metrics.jsonl", METRICS, notes),
        rounds=_read_records(path / "private" / "rounds.jsonl", ROUNDS, notes),
        updates=_read_records(path / "private" / "updates.jsonl", UPDATES, notes),
        notes=tuple(notes),
    )


def _read_settings(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    content = parse_toml(read_text(path, "a run file"), str(path))
    require_format("run", content.get("format", 1), str(path))
    return content


def read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON file that holds an object, None if there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(read_text(path, "a result file"))
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} must hold a JSON object")
    return content


def _read_records(path: Path, checks: Checks, notes: list[str]) -> tuple[dict[str, Any], ...]:
    """Return the lines of a file up to the first that cannot be read, which gets a note.

    The last line of a run in progress may be half written.
    """
    if not path.is_file():
        return ()
    records: list[dict[str, Any]] = []
    try:
        for number, record in enumerate(read_lines(path), start=1):
            wrong = find_wrong(record, checks)
            if wrong is not None:
                raise InvalidInput(f"{path} line {number} lacks a valid {wrong!r}")
            records.append(record)
    except InvalidInput as error:
        notes.append(f"{error}; this line and all later ones are left out.")
    return tuple(records)


def is_function(runs: Sequence[RunRecords]) -> bool:
    """Return whether scores are values of a function instead of accuracies."""
    return any(run.setting("task") == "function" for run in runs)
