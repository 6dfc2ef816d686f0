"""What the service reports: the JSON of its status, requests, versions, rounds and policy.

Everything is read from the database, in one moment, and nothing is there before the first round.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from covertfl.service.requests import Limits
from covertfl.service.store import Store, StoredRequest, Version

Json = dict[str, Any]
# Keys of a round in answers; its record has more.
ROUND_KEYS = (
    *("round", "time", "oracle_state", "backlog", "arrival", "action", "accepted", "exposure"),
    *("learner_score", "mean_wait", "counting", "scheme"),
)
POLICY_KEYS = ("kind", "learn_prob", "arrival_sizes", "limit", "arrival_rate", "promised_wait")
MOST_WARNINGS = 20


def describe_status(store: Store) -> Json:
    """Return the JSON of /status."""
    with store.snapshot():
        service = store.read_fact("service") or {}
        policy = store.read_fact("policy") or {}
        last = _find_last(store)
        number = last.get("round", 0)
        left = store.sum_left(since=number + 1) if last else store.sum_left()
        score = last.get("learner_score")
        return {
            "round": number,
            "backlog": last.get("backlog", 0) + left,
            "exposure": last.get("exposure", 0.0),
            "mean_wait": last.get("mean_wait"),
            "promised_wait": policy.get("promised_wait"),
            "version": store.find_latest() or 0,
            "oracle_state": last.get("oracle_state"),
            "arrival": last.get("arrival", 0),
            "states": service.get("states"),
            "accuracy": score,
            "learner_score": score,
            "round_seconds": service.get("round_seconds"),
            "paused": store.read_fact("paused"),
            "beliefs": _describe_beliefs(last, service.get("trajectories")),
            "counts": store.count_states(),
            "warnings": store.list_warnings(limit=MOST_WARNINGS),
            "mean_request_wait": _find_request_wait(store),
            "started": service.get("started"),
            "task": service.get("task"),
            "policy": service.get("policy"),
            "changes": store.count_changes(),
        }


def _find_last(store: Store) -> Json:
    """Return the last round, empty before the first."""
    return next(iter(store.list_rounds(limit=1)), {})


def _describe_beliefs(last: Json, trajectories: int | None) -> Json:
    """Return what eavesdroppers believe; before the first round each trajectory is as likely."""
    guess = 1.0 / trajectories if trajectories else None
    return {
        "counting": last.get("counting", guess),
        "scheme": last.get("scheme", guess),
        "trajectories": trajectories,
    }


def _find_request_wait(store: Store) -> float | None:
    """Return the mean rounds that a request waited, None if none is done."""
    waits = store.read_fact("request_waits") or {}
    return float(waits["total"] / waits["count"]) if waits.get("count") else None


def read_mark(store: Store) -> tuple[Any, ...]:
    """Return a value that differs whenever the status may have changed."""
    last = _find_last(store)
    return (
        store.count_changes(),
        last.get("round"),
        last.get("time"),
        store.read_fact("paused"),
        store.read_fact("service"),
    )


def read_limits(store: Store) -> Limits | None:
    """Return what requests may name, None before the service has said so."""
    found = store.read_fact("limits")
    if found is None:
        return None
    lists = {name: tuple(found.get(name, ())) for name in ("shape", "classes")}
    return Limits(**{**found, **lists})


def describe_answer(request: StoredRequest) -> Json:
    """Return the four keys by which one request is reported."""
    return {
        "id": request.id,
        "state": request.state,
        "updates_left": request.left,
        "version": request.version,
    }


def describe_requests(store: Store, *, limit: int, before: int | None) -> Json:
    """Return the JSON of /requests, newest first."""
    today = datetime.date.today()
    with store.snapshot():
        found = store.list_requests(limit=limit, before=before)
        return {
            "requests": [_describe_request(request, today) for request in found],
            "counts": store.count_states(),
        }


def _describe_request(request: StoredRequest, today: datetime.date) -> Json:
    body = request.body
    return {
        "id": request.id,
        "kind": body.kind,
        "state": request.state,
        "updates": request.size,
        "updates_done": request.served,
        "updates_left": request.left,
        "patience": body.patience,
        "note": body.note,
        "due": body.due,
        "key": body.key,
        "received": _format_time(request.received),
        "admitted": request.admitted,
        "begun": request.begun,
        "finished": request.finished,
        "version": request.version,
        "exact": body.exact,
        "restart": body.restart,
        "target_version": body.version,
        "clients": body.clients if body.client is None else [body.client],
        "num_rows": request.num_rows,
        "membership": request.membership,
        "is_late": _is_late(request, today),
    }


def _is_late(request: StoredRequest, today: datetime.date) -> bool:
    if request.body.due is None or request.state not in ("waiting", "serving"):
        return False
    return today > datetime.date.fromisoformat(request.body.due)


def describe_versions(store: Store, *, limit: int = 200, before: int | None = None) -> Json:
    """Return the JSON of /versions: the latest ones, or those before one, oldest first."""
    versions = store.list_versions()
    known = {found.version: found for found in versions}
    shown = [found for found in versions if before is None or found.version < before][-limit:]
    return {
        "versions": [
            {
                "version": found.version,
                "parent": found.parent,
                "round": found.round,
                "request": found.request,
                "requests": _list_contained(found, known),
                "metrics": dict(found.metrics),
                "released": _format_time(found.released),
                "withdrawn": found.withdrawn,
            }
            for found in shown
        ]
    }


def _list_contained(version: Version, known: Mapping[int, Version]) -> list[int]:
    """Return the requests that a version contains: its own, and those of its ancestors."""
    contained: list[int] = []
    found: Version | None = version
    while found is not None:
        contained += [] if found.request is None else [found.request]
        found = None if found.parent is None else known.get(found.parent)
    return contained[::-1]


def describe_rounds(store: Store, *, limit: int, before: int | None) -> Json:
    """Return the JSON of /rounds, oldest first."""
    rounds = store.list_rounds(limit=limit, before=before)
    return {"rounds": [{key: record.get(key) for key in ROUND_KEYS} for record in rounds]}


def describe_policy(store: Store) -> Json:
    """Return the JSON of /policy."""
    policy = store.read_fact("policy") or {}
    return {key: policy.get(key) for key in POLICY_KEYS}


def format_metrics(store: Store, processes: Iterable[int]) -> str:
    """Return the text of /metrics, in Prometheus' format; `processes` are those of the service.

    It needs the token: when rounds end and how many replies were rejected names true queries, and
    resident memory shows large contexts.
    """
    last = _find_last(store)
    resident = sum(map(_read_resident, processes))
    values = (
        ("covertfl_up", "gauge", "Whether the service runs.", 1),
        ("covertfl_rounds_total", "counter", "Rounds played.", last.get("round", 0)),
        (
            "covertfl_last_round_timestamp_seconds",
            *("gauge", "When the last round ended.", last.get("time", 0.0)),
        ),
        (
            "covertfl_rejected_replies_total",
            *("counter", "Replies of clients that were rejected.", last.get("rejected", 0)),
        ),
        ("process_resident_memory_bytes", "gauge", "Resident memory.", resident),
    )
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n"
        for name, kind, text, value in values
    )


def _read_resident(process: int) -> int:
    """Return the resident memory of a process in bytes, 0 where the system does not say."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _format_time(seconds: float) -> str:
    """Return a time, in seconds since 1970, as ISO 8601 in UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
