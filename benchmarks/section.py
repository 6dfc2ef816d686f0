"""A section of the benchmark report, and blocks of other pages that a benchmark writes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from covertfl.files.atomic import write_atomically


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
    title : what is compared
    about : paragraphs on what was measured and how
    columns, rows : the table, as text
    checks : agreement of the results, and targets
    ratios : the measured ratios to another program, by a label that is the same in every run
    is_guarded : whether a ratio may not become worse from one run to the next
    notes : other findings, one line each
    """

    title: str
    about: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    checks: tuple[Check, ...]
    ratios: dict[str, float] = field(default_factory=dict)
    is_guarded: bool = False
    notes: tuple[str, ...] = ()


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


def render_findings(section: Section) -> str:
    """Render the table, the notes and the checks for a page."""
    table = [section.columns, ("---",) + ("---:",) * (len(section.columns) - 1), *section.rows]
    lines = [f"| {' | '.join(row)} |" for row in table]
    findings = [f"- {line}" for line in (*section.notes, *map(str, section.checks))]
    return "\n".join([*lines, "", *findings]).rstrip()


def render_markdown(section: Section) -> str:
    """Render the whole section for docs/benchmarks.md."""
    return "\n\n".join([f"## {section.title}", *section.about, render_findings(section)])


def write_block(path: Path, name: str, text: str) -> None:
    """Write the text between the lines that mark a block of a page."""
    begin, end = (f"<!-- {name}: {place} -->" for place in ("begin", "end"))
    before, first, rest = path.read_text(encoding="utf-8").partition(begin)
    _, last, after = rest.partition(end)
    if not (first and last):
        raise SystemExit(f"{path} must have the lines {begin} and {end}")
    write_atomically(path, f"{before}{begin}\n{text}\n{end}{after}")
