"""A service's status and versions as tables, from the JSON that it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from covertfl.display.tables import make_fact_table, make_table

Json = Mapping[str, Any]
REQUEST_COLUMNS = ("updates\nleft", "of", "received", "due")
VERSION_COLUMNS = (
    *("round", "accu-\nracy", "bal-\nanced", "AUC", "F1", "loss"),
    *("with-\ndrawn\nby", "released"),
)
METRICS = ("accuracy", "balanced_accuracy", "auc", "f1", "loss")
MOST_SHOWN = 20  # open requests
MOST_NAMED = 4  # requests in a version


def render_status(status: Json, requests: Sequence[Json]) -> RenderableType:
    """Render the answers of /status and /requests: the service, open requests and warnings."""
    parts: list[RenderableType] = [make_fact_table("Service", _list_facts(status))]
    if requests:
        parts.append(_render_requests(requests))
    counts = status["counts"]
    more = counts["waiting"] + counts["serving"] - len(requests[:MOST_SHOWN])
    if more > 0:
        parts.append(Text(f"{more} more requests are open."))
    for warning in status["warnings"]:
        parts.append(Text(f"Warning in round {warning['round']}: {warning['text']}"))
    return Group(*parts)


def _list_facts(status: Json) -> list[tuple[str, str]]:
    beliefs, counts = status["beliefs"], status["counts"]
    facts = [
        ("task and policy", f"{status['task'] or 'unknown'}, {status['policy'] or 'unknown'}"),
        ("state", "running" if status["paused"] is None else f"paused: {status['paused']}"),
        ("round", f"{status['round']}, oracle state {_name(status['oracle_state'])}"),
        ("backlog", f"{status['backlog']} updates"),
        (
            "mean wait",
            f"{_format(status['mean_wait'], '.1f')} rounds, "
            f"promised {_format(status['promised_wait'], '.1f')}",
        ),
        ("mean wait of a request", f"{_format(status['mean_request_wait'], '.1f')} rounds"),
        ("exposure", _format(status["exposure"], ".1%")),
        (
            "an eavesdropper believes",
            f"in the true model with {_format(beliefs['counting'], '.2f')} if it counts queries, "
            f"{_format(beliefs['scheme'], '.2f')} if it knows the policy "
            f"(1 of {_name(beliefs['trajectories'])} trajectories)",
        ),
        (
            "version",
            f"{status['version']}, learner score {_format(status['learner_score'], '.4f')}",
        ),
        ("requests", ", ".join(f"{number} {state}" for state, number in counts.items())),
    ]
    return [(name, escape(value)) for name, value in facts]


def _render_requests(requests: Sequence[Json]) -> RenderableType:
    names = ("request", "kind", "state", "note")
    table = make_table("Open requests", *names, right=REQUEST_COLUMNS, box=SIMPLE_HEAD)
    for request in requests[:MOST_SHOWN]:
        table.add_row(
            str(request["id"]),
            request["kind"],
            request["state"],
            escape(request["note"]),
            str(request["updates_left"]),
            str(request["updates"]),
            _format_time(request["received"]),
            (request["due"] or "") + " (late)" * request["is_late"],
        )
    return table


def render_versions(versions: Sequence[Json]) -> RenderableType:
    """Render the answer of /versions, one row each."""
    names = ("ver-\nsion", "after", "re-\nquest", "contains")
    table = make_table("Versions", *names, right=VERSION_COLUMNS, box=SIMPLE_HEAD, pad_edge=False)
    for found in versions:
        table.add_row(
            str(found["version"]),
            _name(found["parent"]),
            _name(found["request"]),
            _name_requests(found["requests"]),
            str(found["round"]),
            *(_format(found["metrics"].get(name), ".3f") for name in METRICS),
            "" if found["withdrawn"] is None else str(found["withdrawn"]),
            _format_time(found["released"]),
        )
    return table


def _name_requests(numbers: Sequence[int]) -> str:
    few = ", ".join(map(str, numbers))
    return few if len(numbers) <= MOST_NAMED else f"{len(numbers)} requests"


def _format_time(text: str) -> str:
    """Return a time as people read it: the day and the minute, in UTC as it came."""
    return text[:16].replace("T", " ")


def _name(value: Any) -> str:
    return "-" if value is None else str(value)


def _format(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
