"""The page of a report: cards, tables and words around the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from covertfl.errors import Missing
from covertfl.report.plots import Plot
from covertfl.report.records import RunRecords

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Figure:
    """A plot in its place on the page.

    Parameters
    ----------
    name : of its files, without suffix
    title, caption : words above and below it
    plot : None where there is nothing to draw; the caption then says why
    """

    name: str
    title: str
    caption: str
    plot: Plot | None


@dataclass(frozen=True)
class Card:
    """One number of the summary, with what it is and what belongs to it."""

    title: str
    value: str
    detail: str


def render_report(content: Mapping[str, Any]) -> str:
    """The page, complete in itself; `content` is what its template names."""
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


# --- numbers ----------------------------------------------------------------------------------


def format_share(value: float | None) -> str:
    """A share in percent."""
    return UNKNOWN if value is None else f"{100.0 * value:.1f}%"


def format_number(value: float | None) -> str:
    """A number with three places."""
    return UNKNOWN if value is None else f"{value:.3f}"


def format_signed(value: float | None) -> str:
    """A difference with three places and its sign."""
    return UNKNOWN if value is None else f"{value:+.3f}"


def format_interval(ends: Sequence[float] | None, kind: str = "number") -> str:
    """Two ends of an interval, as shares or as numbers; empty where there is none."""
    if ends is None:
        return ""
    form = format_share if kind == "share" else format_number
    return f"{form(ends[0])} to {form(ends[1])}"


def format_range(values: Sequence[float], form: Any) -> str:
    """From the least to the most over several runs, empty for one."""
    return f"{form(min(values))} to {form(max(values))} over runs" if len(values) > 1 else ""


# --- runs -------------------------------------------------------------------------------------


def describe_run(run: RunRecords) -> dict[str, Any]:
    """A run's line of the table: its summary, or what its records say so far."""
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
    """Accuracy of the learner, or the value of its function, at the end or so far."""
    summary = run.summary or {}
    if summary.get("learner_accuracy") is not None:
        return float(summary["learner_accuracy"])
    if summary.get("learner_value") is not None:
        return float(summary["learner_value"])
    score = run.metrics[-1]["learner_score"] if run.metrics else None
    return None if score is None else float(score)


def is_function(runs: Sequence[RunRecords]) -> bool:
    """Whether scores are values of a function and no accuracies."""
    return any(run.setting("task") == "function" for run in runs)


def _count_updates(run: RunRecords) -> int | None:
    return sum(record["updated"] for record in run.rounds) if run.rounds else None


def _count_rejected(run: RunRecords) -> int | None:
    return sum(len(record["rejected"]) for record in run.rounds) if run.rounds else None


# --- cards ------------------------------------------------------------------------------------


def list_cards(
    runs: Sequence[RunRecords], rows: Sequence[Mapping[str, Any]], audit: Mapping[str, Any] | None
) -> list[Card]:
    """The summary in a handful of numbers; none for what is not known."""
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
    detail = format_range(shares, format_share) or "of all queries were of the true model"
    return Card("Exposure", format_share(_mean(shares)), detail)


def _completion_card(rows: Sequence[Mapping[str, Any]]) -> Card | None:
    ended = [row for row in rows if row["completed"] is not None]
    if not ended:
        return None
    done = sum(bool(row["completed"]) for row in ended)
    return Card("Completed", f"{done} of {len(ended)}", "runs that owe no update at their end")


def _missing_card(rows: Sequence[Mapping[str, Any]]) -> Card | None:
    missing = _known(rows, "updates_missing")
    if not missing:
        return None
    done = _known(rows, "updates_done")
    detail = f"still owed; {sum(done):g} were done" if done else "still owed"
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
    return Card("Rejected replies", f"{sum(rejected):g}", words or "of all runs")


def _limit_card(runs: Sequence[RunRecords]) -> Card | None:
    """The average cost that has a limit, beside it."""
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
                f"of a round; the limit is {found[0][1]:g}",
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


# --- settings ---------------------------------------------------------------------------------


def list_settings(run: RunRecords) -> dict[str, dict[str, str]]:
    """Settings by section, as a run file writes them; versions are left out."""
    sections: dict[str, dict[str, str]] = {}
    for key, value in (run.settings or {}).items():
        if key == "versions":
            continue
        if isinstance(value, Mapping):
            sections[f"[{key}]"] = {name: write_value(entry) for name, entry in value.items()}
        else:
            sections.setdefault("run", {})[key] = write_value(value)
    return sections


def write_value(value: Any) -> str:
    """A value in the manner of TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {write_value(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return f"[{', '.join(map(write_value, value))}]"
    return str(value)


def list_differences(runs: Sequence[RunRecords]) -> list[str]:
    """Keys, other than the seed, in which the settings of the runs differ."""
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
