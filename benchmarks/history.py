"""The ratios of earlier runs, one JSON line for each, and a comparison with the last of them.

Times depend on the machine and on what else it does; a ratio to another program, measured in the
same run, hardly does.  Each ratio is compared with the last run that measured it.  On a busy
machine ratios can differ by more than the tolerance: an entry says for which sections it was busy,
and these are not compared with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measurement import format_ratio
from rich.console import Group, RenderableType
from rich.table import Table
from section import Check, Section

# A ratio that changes by less than this share is the same.
TOLERANCE = 0.15

Entry = dict[str, Any]  # date, machine, versions, busy sections, ratios by section and label


@dataclass(frozen=True)
class Change:
    """A ratio of this run, and the one of the last run that has it."""

    section: str
    label: str
    date: str
    before: float
    now: float

    @property
    def verdict(self) -> str:
        """Return better, same or worse."""
        if self.now > self.before * (1.0 + TOLERANCE):
            return "better"
        return "worse" if self.now < self.before * (1.0 - TOLERANCE) else "same"

    def __str__(self) -> str:
        before, now = format_ratio(self.before), format_ratio(self.now)
        return f"{self.label}, {before} on {self.date} and {now} now"


def read_history(path: Path) -> list[Entry]:
    """Read all entries, the oldest first; none if there is no file."""
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = json.loads(line)
            entries.append({**entry, "sections": dict(entry["sections"]), "busy": [*entry["busy"]]})
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"{path}, line {number} must be an entry that run.py wrote") from error
    return entries


def make_entry(
    sections: dict[str, Section],
    *,
    date: str,
    machine: str,
    busy: list[str],
    versions: dict[str, str],
) -> Entry:
    """Make the entry of a run from its sections, by name; those without ratios are left out."""
    ratios = {name: section.ratios for name, section in sections.items() if section.ratios}
    machine_then = {"machine": machine, "busy": busy, "versions": versions}
    return {"date": date, **machine_then, "sections": ratios}


def append_entry(path: Path, entry: Entry) -> None:
    """Append an entry as one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")


def compare_section(name: str, section: Section, history: list[Entry]) -> list[Change]:
    """Compare each ratio of a section with the last quiet run that has it, if there is one."""
    changes = []
    quiet = [entry for entry in history if name not in entry["busy"]]
    for label, now in section.ratios.items():
        for entry in reversed(quiet):
            before = entry["sections"].get(name, {}).get(label)
            if before is not None:
                changes.append(Change(name, label, entry["date"], before, now))
                break
    return changes


def add_check(section: Section, changes: list[Change]) -> Section:
    """Add whether any ratio became worse, if the section is guarded and was measured before."""
    if not (section.is_guarded and changes):
        return section
    worst = min(changes, key=lambda change: change.now / change.before)
    text = f"no ratio is more than {TOLERANCE:.0%} below the last run's (least: {worst})"
    check = Check(text, all(change.verdict != "worse" for change in changes))
    return replace(section, checks=(*section.checks, check))


def render_changes(changes: list[Change]) -> RenderableType:
    """Render all changes for a terminal."""
    title = f"Ratios against the last run: better/same/worse (tolerance {TOLERANCE:.0%})"
    table = Table()
    for column in ("section", "ratio of", "last run", "then", "now", "verdict"):
        table.add_column(column, justify="right" if column in {"then", "now"} else "left")
    for change in changes:
        before, now = format_ratio(change.before), format_ratio(change.now)
        colour = {"better": "green", "same": "default", "worse": "red"}[change.verdict]
        verdict = f"[{colour}]{change.verdict}[/]"
        table.add_row(change.section, change.label, change.date, before, now, verdict)
    return Group(title, table)  # a table would wrap its title
