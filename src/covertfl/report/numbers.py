"""The formats of a page's numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNKNOWN = "unknown"


def format_share(value: float | None) -> str:
    """Format a share in percent."""
    return UNKNOWN if value is None else f"{100.0 * value:.1f}%"


def format_number(value: float | None) -> str:
    """Format a number with three decimals."""
    return UNKNOWN if value is None else f"{value:.3f}"


def format_signed(value: float | None) -> str:
    """Format a difference with three decimals and its sign."""
    return UNKNOWN if value is None else f"{value:+.3f}"


def format_interval(ends: Sequence[float] | None, kind: str = "number") -> str:
    """Format the ends of an interval, as shares or as numbers; empty if there is none."""
    if ends is None:
        return ""
    form = format_share if kind == "share" else format_number
    return f"{form(ends[0])} to {form(ends[1])}"


def format_range(values: Sequence[float], form: Callable[[float | None], str]) -> str:
    """Format the range of values over several runs, empty for one run."""
    return f"{form(min(values))} to {form(max(values))} over runs" if len(values) > 1 else ""
