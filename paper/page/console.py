"""Results on the console: the tables of a section of the page, without its explanations."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from covertfl.display.tables import make_table
from paper.page.markdown import StoredResult
from paper.page.page import SECTIONS

MOST_COLUMNS = 9  # a table with more is wide
LEFT_OUT = ("ours - paper", "peak", "exact")  # of wide tables


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
        f"explanations: python -m paper page --out {folder}\n"
    )
    spaced = [each for part in parts for each in (part, Text())]
    return Group(title, *spaced, where)


def _make_table(lines: list[str]) -> Table:
    """Return a Markdown table as a table of the console, a wide one with fewer columns.

    A wide table has no intervals either, except in the file.
    """
    columns, rule, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)
    is_wide = len(columns) > MOST_COLUMNS
    kept = [at for at, name in enumerate(columns) if not (is_wide and name in LEFT_OUT)]
    table = make_table("", box=None, pad_edge=False)
    for at in kept:
        side: Literal["right", "left"] = "right" if rule[at].endswith(":") else "left"
        table.add_column(columns[at].replace("`", ""), justify=side, overflow="fold")
    for row in rows:
        table.add_row(*(_strip(row[at], is_wide) for at in kept))
    return table


def _strip(cell: str, is_wide: bool) -> Text:
    """Return a cell without Markdown, bold where it was, in a wide table without its interval."""
    is_bold = cell.startswith("**") and cell.endswith("**")
    text = cell.replace("**", "").replace("`", "")
    text = re.sub(r" \[[^]]*\]$", "", text) if is_wide else text
    return Text(text, style="bold" if is_bold else "")
