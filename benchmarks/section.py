"""What a benchmark finds, and the blocks of documents that measurements are written into."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

DOCUMENTS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Check:
    """A condition on the measurements, and whether it is met."""

    text: str
    is_met: bool

    def __str__(self) -> str:
        return f"{'yes' if self.is_met else 'NO'}: {self.text}"


@dataclass(frozen=True)
class Section:
    """One comparison of the report.

    Parameters
    ----------
    title : what is compared; the document says how, under the same heading
    columns, rows : the table, as text
    checks : agreement of the results, and targets
    ratios : the measured ratios to another program, by a label that is the same in every run
    is_guarded : whether a ratio may not become worse from one run to the next
    notes : other findings, one line each
    about : paragraphs on what this machine was used for, before the table
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...]
    ratios: dict[str, float] = field(default_factory=dict)
    is_guarded: bool = False
    notes: tuple[str, ...] = ()
    about: tuple[str, ...] = ()


def render_terminal(section: Section) -> RenderableType:
    """Render the table, the notes and the checks for a terminal."""
    table = Table(title=section.title, title_justify="left")
    for index, column in enumerate(section.columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in section.rows:
        table.add_row(*map(escape, row))
    colours = {True: "green", False: "red"}
    lines = [f"[{colours[check.is_met]}]{escape(str(check))}[/]" for check in section.checks]
    return Group(table, *map(escape, section.notes), *lines, "")


def render_markdown(section: Section) -> str:
    """Render what was found for a document."""
    findings = [f"- {line}" for line in (*section.notes, *map(str, section.checks))]
    parts = [*section.about, render_table(section.columns, section.rows), "\n".join(findings)]
    return "\n\n".join(parts).rstrip()


def render_table(columns: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """Render a Markdown table whose first columns are aligned to the left."""
    rule = ["---"] * left + ["---:"] * (len(columns) - left)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (columns, rule, *rows))


def write_block(path: Path, name: str, text: str) -> None:
    """Write the text between the lines that mark a block of a document."""
    begin, end = (f"<!-- {name}: {place} -->" for place in ("begin", "end"))
    before, first, rest = path.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise SystemExit(f"{path} must have the lines {begin} and {end}")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def read_lines(path: Path) -> list[Any]:
    """Return the lines of a file of JSON."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def describe_date(command: str) -> str:
    """Return the start of a sentence that says when a command made a table."""
    return f"Made on {datetime.date.today().isoformat()} by `{command}`"


def describe_share(share: float, runs: int, confidence: float = 0.95, digits: int = 1) -> str:
    """Describe a share of runs with its interval."""
    from covertfl.intervals import wilson_interval  # not needed where memory is measured

    shown = (share, *wilson_interval(share * runs, runs, confidence=confidence))
    middle, low, high = (f"{value:.{digits}%}" for value in shown)
    return f"{middle} [{low}, {high}]"
