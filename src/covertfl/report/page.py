"""The page of a report: its template, the formats of its numbers and the settings that it lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from covertfl.errors import Missing
from covertfl.report.records import RunRecords

UNKNOWN = "unknown"


def format_share(value: float | None) -> str:
    """Format a share in percent."""
    return UNKNOWN if value is None else f"{100.0 * value:.1f}%"


def format_number(value: float | None) -> str:
    """Format a number with three decimals."""
    return UNKNOWN if value is None else f"{value:.3f}"


def _format_signed(value: float | None) -> str:
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


def render_template(package: str, name: str, content: Mapping[str, Any]) -> str:
    """Render a page, complete in itself, from the values that its template names, and the style.

    Raises
    ------
    Missing
        if jinja2 is not installed
    """
    try:
        import jinja2
    except ImportError as error:
        raise Missing("a page needs jinja2: pip install 'covertfl[report]'") from error
    template = (resources.files(package) / name).read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "share": format_share,
        "number": format_number,
        "signed": _format_signed,
        "interval": format_interval,
    }
    style = (resources.files("covertfl.report") / "style.css").read_text("utf-8")
    return environment.from_string(template).render(style=style, **content)


def list_settings(run: RunRecords) -> dict[str, dict[str, str]]:
    """Return the settings by section, as in a run file, without the versions."""
    sections: dict[str, dict[str, str]] = {}
    for key, value in (run.settings or {}).items():
        if key == "versions":
            continue
        if isinstance(value, Mapping):
            sections[f"[{key}]"] = {name: _format_value(entry) for name, entry in value.items()}
        else:
            sections.setdefault("run", {})[key] = _format_value(value)
    return sections


def _format_value(value: Any) -> str:
    """Return a value as in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_format_value(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    return str(value)


def list_differences(runs: Sequence[RunRecords]) -> list[str]:
    """Return the keys, other than the seed, in which the settings of the runs differ."""
    flat = [
        {
            f"{section} {key}".removeprefix("run "): value
            for section, entries in list_settings(run).items()
            for key, value in entries.items()
        }
        for run in runs
        if run.settings is not None
    ]
    keys = dict.fromkeys(key for entries in flat for key in entries)
    return [
        key for key in keys if key != "seed" and len({entries.get(key) for entries in flat}) > 1
    ]
