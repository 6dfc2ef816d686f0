"""Markdown tables, the formats of measured numbers, and names that tables and pictures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

StoredResult = Mapping[str, Any]
POLICY_NAMES = {
    "greedy": "greedy",
    "spga": "optimal, stationary (SPGA)",
    "optimal": "optimal, exact",
    "minority": "minority (F5)",
    "random": "random",
}


def describe_public(row: Mapping[str, Any]) -> str:
    """Return a public set's classes, size and share in short."""
    part = "natural" if row["class_share"] is None else f"{row['class_share']:.0%}"
    return f"{row['classes']}, {row['size']:g}, {part}"


def describe_seeds(result: StoredResult) -> str:
    """Return how many seeds a result has, and which."""
    seeds = (result.get("rows") or result["curves"])[0]["seeds"]
    first = result["made"].get("first_seed", 0)
    return f"{seeds} seeds ({first} to {first + seeds - 1})" if seeds > 1 else f"seed {first}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    """Return a Markdown table; `sides` has l or r for each column."""
    rule = ["---:" if side == "r" else "---" for side in sides]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows)]
    return "\n".join(lines) + "\n"


def format_mean(entry: Mapping[str, Any], digits: int = 3) -> str:
    """Format a mean with its interval."""
    mean, interval = entry["mean"], entry["interval"]
    if interval is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def format_share(entry: Mapping[str, Any]) -> str:
    """Format a share of runs in percent."""
    low, high = entry["interval"]
    return f"{100 * entry['mean']:.0f}% [{100 * low:.0f}, {100 * high:.0f}]"


def format_difference(entry: Mapping[str, Any], paper: float | None) -> str:
    """Format ours minus the paper's, bold where the paper's lies outside our interval."""
    if paper is None:
        return ""
    difference = f"{entry['mean'] - paper:+.3f}"
    interval = entry["interval"]
    inside = interval is not None and interval[0] - 0.005 <= paper <= interval[1] + 0.005
    return difference if inside else f"**{difference}**"


def format_percent(entry: Mapping[str, Any]) -> str:
    """Format a mean as a percentage with one decimal, and its interval if it has one."""
    values = [entry["mean"], *(entry["interval"] or ())]
    mean, *ends = (f"{100.0 * value:.1f}" for value in values)
    return f"{mean}% [{', '.join(ends)}]" if ends else f"{mean}%"


def format_printed(value: float | None, digits: int = 3) -> str:
    """Format a value that the paper prints, empty if it has none."""
    return "" if value is None else f"{value:.{digits}f}"
