"""Results on the console: the tables of a section of the page, without its explanations."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from covertfl.display.tables import make_table
from covertfl.reproduction.markdown import StoredResult
from covertfl.reproduction.page import SECTIONS


def render_result(result: StoredResult, folder: str) -> RenderableType:
    """Render the tables of a result, and where all of it is: its file in `folder`."""
    name, made = result["experiment"], result["made"]
    lines = SECTIONS[name](result).splitlines()
    parts: list[RenderableType] = [
        _make_table(list(block))
        for is_table, block in groupby(lines, lambda line: line.startswith("|"))
        if is_table
    ]
    form = ", short form" if made["quick"] else ""
    title = Text(f"{name}: {result['title']} ({result['paper_place']}{form})", style="bold")
    where = Text(
        f"{made['seconds']:,.0f} s of computing; in full in {folder}/{name}.json; with "
        f"explanations: covertfl reproduce page --out {folder}\n"
    )
    return Group(title, *parts, where)


def _make_table(lines: list[str]) -> Table:
    """Return a Markdown table as a table of the console."""
    columns, rule, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    table = make_table("")
    for column, side in zip(columns, rule, strict=True):
        table.add_column(_strip(column), justify="right" if side.endswith(":") else "left")
    for row in rows:
        table.add_row(*map(_strip, row))
    return table


def _strip(cell: str) -> Text:
    """Return a cell without Markdown: bold where it was."""
    is_bold = cell.startswith("**") and cell.endswith("**")
    return Text(cell.replace("**", "").replace("`", ""), style="bold" if is_bold else "")
