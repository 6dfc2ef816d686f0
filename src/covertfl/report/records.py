"""The result files of runs and their audit, read without any module that wrote them.

A missing file is not an error here: a run may be in progress, or only its public folder may have
been kept.  What could not be read is noted, and the page shows the note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.text import is_number, parse_toml, read_object, read_text, require_format
from covertfl.runs.files import SETTINGS, SUMMARY, check_values, read_lines

AUDIT = "audit.json"
Audit = Mapping[str, Any]


# Largest count that a page is drawn for: tables have as many columns as the largest backlog.
MOST, MOST_STATES = 10**6, 1000


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 0 to a million."""
    return type(value) is int and 0 <= value <= MOST  # type() because true is an int as well


def _is_state(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_STATES


def _is_number_or_none(value: object) -> bool:
    return value is None or is_number(value)


def _is_list_or_none(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(map(is_number, value)))


def _is_list_of_texts_or_none(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(text, str) for text in value)
    )


def _is_object_or_none(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_interval(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_number, value))


def _is_interval_or_none(value: object) -> bool:
    return value is None or _is_interval(value)


# The keys that a report needs in each kind of record, with the type or a check of their values.
Checks = Mapping[str, type | Callable[[object], bool]]
PUBLIC: Checks = {"round": is_count}
METRICS: Checks = {
    "round": is_count,
    "learner_score": _is_number_or_none,
    "backlog": is_count,
    "exposure": is_number,
}
ROUNDS: Checks = {
    "round": is_count,
    "oracle_state": _is_state,
    "backlog": is_count,
    "learn_prob": is_number,
    "action": str,
    "updated": bool,
    "rejected": list,
}
UPDATES: Checks = {"came": is_count, "done": is_count}
COALITION: Checks = {
    "names_true": _is_number_or_none,
    "interval": _is_interval_or_none,
    "final_accuracy": _is_number_or_none,
}
LEARNER: Checks = {"interval": _is_interval_or_none, "exposure_by_round": _is_list_or_none}
BOUND: Checks = {"value": is_number, "interval": _is_interval}
SEPARATION: Checks = {"right_share": _is_number_or_none}
MISMATCH: Checks = {"statistic": is_number, "degrees": is_count, "p_value": is_number}
EAVESDROPPER: Checks = {
    "threat": str,
    "verdict": str,
    **COALITION,
    "final_interval": _is_interval_or_none,
    "worst_accuracy": _is_number_or_none,
    "advantage": _is_number_or_none,
    "tier": str,
    "gain": _is_number_or_none,
    **dict.fromkeys(("final_balanced_accuracy", "final_auc", "final_f1"), _is_number_or_none),
    "accuracy_by_round": _is_list_or_none,
    "simulated": _is_object_or_none,
}
MEMBERS: Checks = {"rounds_seen": is_number, "eavesdroppers": dict}
TIER: Checks = {"title": str, "verdict": str}
AUDITED: Checks = {
    "runs": is_count,
    "learner": dict,
    "eavesdroppers": dict,
    "warnings": _is_list_of_texts_or_none,
    **dict.fromkeys(("coalitions", "tiers", "bound", "separation", "mismatch"), _is_object_or_none),
}
PARTS: Mapping[str, Checks] = {
    "learner": LEARNER,
    "bound": BOUND,
    "separation": SEPARATION,
    "mismatch": MISMATCH,
}


def _find_wrong(record: Mapping[str, Any], checks: Checks) -> str | None:
    """Return the first key that is missing or has an invalid value, None if all are valid."""
    for key, check in checks.items():
        value = record.get(key)
        if not (isinstance(value, check) if isinstance(check, type) else check(value)):
            return key
    return None


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
    notes: Sequence[str] = ()

    @property
    def is_public_only(self) -> bool:
        """Return whether only the record of what clients received is available."""
        return self.settings is None and self.summary is None and not (self.metrics or self.rounds)

    @property
    def scheme_words(self) -> dict[str, str]:
        """What the run's scheme is called, and the kinds of its parts, by section."""
        tables, name = self.settings or {}, self.setting("scheme")
        kinds = {
            key: table["kind"]
            for key, table in tables.items()
            if key != "engine" and _has_kind(table)  # who answers is no part of it
        }
        return {**({"scheme": str(name)} if name else {}), **kinds}

    @property
    def trajectories(self) -> int:
        """Number of trajectories: what a section of the run file says, two where none does."""
        tables = [table for table in (self.settings or {}).values() if isinstance(table, Mapping)]
        found = [table["trajectories"] for table in tables if is_count(table.get("trajectories"))]
        return max(found[0], 1) if found else 2

    def setting(self, *keys: str) -> Any:
        """Return one setting by its section and key, None if it is missing."""
        value: Any = self.settings
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def _has_kind(table: object) -> bool:
    return isinstance(table, Mapping) and isinstance(table.get("kind"), str)


def read_run_records(path: Path) -> RunRecords:
    """Read everything that a report needs of one run."""
    notes: list[str] = []
    settings = _read_settings(path / SETTINGS)
    summary = _read_summary(path / SUMMARY)
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
    if not path.exists():
        return None
    content = parse_toml(read_text(path, "a run file"), str(path))
    require_format("run", content.get("format"), str(path))
    return content


def _read_summary(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    content = read_object(path, "a result file")
    try:
        check_values(content)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is not the summary of a run: {error}") from error
    return content


def _read_records(path: Path, checks: Checks, notes: list[str]) -> tuple[dict[str, Any], ...]:
    """Return the lines of a file up to the first that cannot be read, which gets a note.

    The last line of a run in progress may be half written.
    """
    if not path.exists():
        return ()
    records: list[dict[str, Any]] = []
    try:
        for number, record in enumerate(read_lines(path), start=1):
            wrong = _find_wrong(record, checks)
            if wrong is not None:
                raise InvalidInput(f"{path} line {number} lacks a valid {wrong!r}")
            records.append(record)
    except InvalidInput as error:
        notes.append(f"{error}; this line and all later ones are left out.")
    return tuple(records)


def read_audit(folder: Path) -> Audit | None:
    """Read the audit that `covertfl audit` wrote into a folder, None if there is none."""
    path = folder / AUDIT
    if not path.exists():
        return None
    found = read_object(path, "an audit")
    audit = _complete(found, AUDITED, f"{path} is not an audit of covertfl: it")
    for key, checks in PARTS.items():
        if audit[key] is not None:
            audit[key] = _complete(audit[key], checks, f"{path}: {key}")
    audit["tiers"] = _complete_all(audit["tiers"], TIER, f"{path}: tier")
    listeners = _complete_all(audit["eavesdroppers"], EAVESDROPPER, f"{path}: eavesdropper")
    for name, entry in listeners.items():
        if entry["simulated"] is not None:
            where = f"{path}: simulated {name!r}"
            entry["simulated"] = _complete(entry["simulated"], COALITION, where)
    audit["eavesdroppers"] = _sort_by_tier(listeners)
    coalitions = _complete_all(audit["coalitions"], MEMBERS, f"{path}: coalition")
    for size, coalition in coalitions.items():
        where = f"{path}: coalition {size!r}: eavesdropper"
        coalition["eavesdroppers"] = _complete_all(coalition["eavesdroppers"], COALITION, where)
    return audit | {"coalitions": coalitions}


def _sort_by_tier(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return eavesdroppers by tier."""
    return dict(sorted(entries.items(), key=lambda entry: entry[1]["tier"]))


def _complete_all(
    entries: Mapping[str, Any] | None, checks: Checks, where: str
) -> dict[str, dict[str, Any]]:
    """Return entries by name, each as `_complete` returns it."""
    return {
        name: _complete(entry, checks, f"{where} {name!r}")
        for name, entry in (entries or {}).items()
    }


def _complete(entry: object, checks: Checks, where: str) -> dict[str, Any]:
    """Return an object, checked and with None for what may be absent; `where` is for messages."""
    wrong = _find_wrong(entry, checks) if isinstance(entry, dict) else next(iter(checks))
    if wrong is not None:
        raise InvalidInput(f"{where} lacks a valid {wrong!r}")
    assert isinstance(entry, dict)
    return {**dict.fromkeys(checks), **entry}
