"""The audit of runs, as `covertfl audit` wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.report.checks import COALITION, EAVESDROPPER, find_wrong, is_number
from covertfl.report.records import read_object

AUDIT = "audit.json"


def read_audit(folder: Path) -> dict[str, Any] | None:
    """Read the audit in a folder, None if there is none."""
    path = folder / AUDIT
    audit = read_object(path)
    if audit is None:
        return None
    for key, kind in (("runs", int), ("learner", dict), ("eavesdroppers", dict)):
        if not isinstance(audit.get(key), kind):
            raise InvalidInput(f"{path} is not an audit of covertfl: it lacks {key!r}")
    for name, entry in audit["eavesdroppers"].items():
        wrong = find_wrong(entry, EAVESDROPPER) if isinstance(entry, dict) else "threat"
        if wrong is not None:
            raise InvalidInput(f"{path}: eavesdropper {name!r} lacks a valid {wrong!r}")
    for size, coalition in (audit.get("coalitions") or {}).items():
        _check_coalition(f"{path}: coalition {size!r}", coalition)
    absent = dict.fromkeys(("bound", "separation", "mismatch", "coalitions", "warnings"))
    return absent | audit


def _check_coalition(where: str, coalition: object) -> None:
    if not isinstance(coalition, dict) or not is_number(coalition.get("rounds_seen")):
        raise InvalidInput(f"{where} lacks a valid 'rounds_seen'")
    for name, entry in (coalition.get("eavesdroppers") or {}).items():
        wrong = find_wrong(entry, COALITION) if isinstance(entry, dict) else "names_true"
        if wrong is not None:
            raise InvalidInput(f"{where}: eavesdropper {name!r} lacks a valid {wrong!r}")
