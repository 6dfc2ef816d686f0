"""The summary of runs: one row of the table for each, and a few cards over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covertfl.report.numbers import format_interval, format_number, format_range, format_share
from covertfl.report.records import RunRecords, is_function


@dataclass(frozen=True)
class Card:
    """One number of the summary with its title and a detail."""

    title: str
    value: str
    detail: str


def describe_run(run: RunRecords) -> dict[str, Any]:
    """Return a run's row of the table, from its summary or from its records so far."""
    summary = run.summary or {}
    last = run.metrics[-1] if run.metrics else {}
    learned = sum(record["action"] == "learn" for record in run.rounds)
    return {
        "name": run.name,
        "ended": run.summary is not None,
        "score": find_score(run),
        "updates_done": summary.get("updates_done", _count_updates(run)),
        "updates_missing": summary.get("updates_missing", last.get("backlog")),
        "rounds": summary.get("rounds", last.get("round", run.queries)),
        "learning_queries": summary.get("learning_queries", learned if run.rounds else None),
        "exposure": summary.get("exposure", last.get("exposure")),
        "completed": summary.get("completed"),
        "rejected": summary.get("rejected_replies", _count_rejected(run)),
        "mean_wait": summary.get("mean_wait"),
        "privacy_cost": summary.get("average_privacy_cost"),
    }


def find_score(run: RunRecords) -> float | None:
    """Return the learner's accuracy or function value, at the end or so far."""
    summary = run.summary or {}
    if summary.get("learner_accuracy") is not None:
        return float(summary["learner_accuracy"])
    if summary.get("learner_value") is not None:
        return float(summary["learner_value"])
    score = run.metrics[-1]["learner_score"] if run.metrics else None
    return None if score is None else float(score)


def _count_updates(run: RunRecords) -> int | None:
    return sum(record["updated"] for record in run.rounds) if run.rounds else None


def _count_rejected(run: RunRecords) -> int | None:
    return sum(len(record["rejected"]) for record in run.rounds) if run.rounds else None


def list_cards(
    runs: Sequence[RunRecords], rows: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None
) -> list[Card]:
    """Return the summary as a few cards, without those whose value is unknown."""
    cards = [
        _score_card(runs, rows, audit),
        _exposure_card(rows),
        _completion_card(rows),
        _missing_card(rows),
        _rejected_card(runs, rows),
        _limit_card(runs),
        _strongest_card(audit),
    ]
    return [card for card in cards if card is not None]


def _known(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return [float(row[key]) for row in rows if row[key] is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _score_card(
    runs: Sequence[RunRecords], rows: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None
) -> Card | None:
    scores = _known(rows, "score")
    if not scores:
        return None
    detail = format_range(scores, format_number)
    if is_function(runs):
        return Card("Function value", format_number(_mean(scores)), detail or "of the learner")
    interval = None if audit is None else audit["learner"].get("interval")
    if interval is not None and audit is not None and audit["runs"] == len(runs):
        detail = f"95%: {format_interval(interval)}"
    return Card("Learner accuracy", format_number(_mean(scores)), detail or "at the end")


def _exposure_card(rows: Sequence[Mapping[str, Any]]) -> Card | None:
    shares = _known(rows, "exposure")
    if not shares:
        return None
    detail = format_range(shares, format_share) or "of all queries carried the true model"
    return Card("Exposure", format_share(_mean(shares)), detail)


def _completion_card(rows: Sequence[Mapping[str, Any]]) -> Card | None:
    ended = [row for row in rows if row["completed"] is not None]
    if not ended:
        return None
    done = sum(bool(row["completed"]) for row in ended)
    return Card("Completed", f"{done} of {len(ended)}", "runs that made all updates")


def _missing_card(rows: Sequence[Mapping[str, Any]]) -> Card | None:
    missing = _known(rows, "updates_missing")
    if not missing:
        return None
    done = _known(rows, "updates_done")
    detail = f"still pending; {sum(done):g} were made" if done else "still pending"
    return Card("Updates missing", f"{sum(missing):g}", detail)


def _rejected_card(runs: Sequence[RunRecords], rows: Sequence[Mapping[str, Any]]) -> Card | None:
    rejected = _known(rows, "rejected")
    if not rejected:
        return None
    reasons: dict[str, int] = {}
    for run in runs:
        for reason, count in ((run.summary or {}).get("rejected_by_reason") or {}).items():
            reasons[reason] = reasons.get(reason, 0) + count
    words = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return Card("Rejected replies", f"{sum(rejected):g}", words or "over all runs")


def _limit_card(runs: Sequence[RunRecords]) -> Card | None:
    """Return the average of the cost that has a limit, next to the limit."""
    for kind in ("learning", "privacy"):
        found = [
            (run.summary[f"average_{kind}_cost"], run.summary[f"{kind}_limit"])
            for run in runs
            if run.summary is not None and run.summary.get(f"{kind}_limit") is not None
        ]
        if found:
            costs = [float(cost) for cost, _ in found]
            return Card(
                f"Average {kind} cost",
                format_number(_mean(costs)),
                f"per round; the limit is {found[0][1]:g}",
            )
    return None


def _strongest_card(audit: Mapping[str, Any] | None) -> Card | None:
    if audit is None:
        return None
    accuracies = {
        name: entry["final_accuracy"]
        for name, entry in audit["eavesdroppers"].items()
        if name != "train-alone" and entry["final_accuracy"] is not None
    }
    if not accuracies:
        return None
    most = max(accuracies.values())
    names = [name for name, value in accuracies.items() if value == most]
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Card("Best eavesdropper", format_number(most), f"final accuracy of {names[0]}{others}")
