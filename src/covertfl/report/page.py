"""The page of a report: its template and the settings that it lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from covertfl.errors import Missing
from covertfl.report.numbers import format_interval, format_number, format_share, format_signed
from covertfl.report.records import RunRecords


def render_report(content: Mapping[str, Any]) -> str:
    """Render the page, complete in itself, from the values that its template names."""
    try:
        import jinja2
    except ImportError as error:
        raise Missing("a report needs jinja2: pip install 'covertfl[report]'") from error
    template = (resources.files("covertfl.report") / "report.html").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "share": format_share,
        "number": format_number,
        "signed": format_signed,
        "interval": format_interval,
    }
    return environment.from_string(template).render(**content)


def list_settings(run: RunRecords) -> dict[str, dict[str, str]]:
    """Return the settings by section, as in a run file, without the versions."""
    sections: dict[str, dict[str, str]] = {}
    for key, value in (run.settings or {}).items():
        if key == "versions":
            continue
        if isinstance(value, Mapping):
            sections[f"[{key}]"] = {name: format_value(entry) for name, entry in value.items()}
        else:
            sections.setdefault("run", {})[key] = format_value(value)
    return sections


def format_value(value: Any) -> str:
    """Format a value as in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {format_value(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
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
