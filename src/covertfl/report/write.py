"""The report of one or several runs: an HTML page and its plots, from result files alone.

Nothing that solves, trains or attacks is imported: a report can be made wherever the files are.
It shows actions, so it is as private as the records it is made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covertfl import __version__
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.report.figures import Figure, draw_figures, name_audit_command
from covertfl.report.page import (
    format_interval,
    format_number,
    format_range,
    format_share,
    list_differences,
    list_settings,
    render_template,
)
from covertfl.report.records import Audit, RunRecords, read_audit, read_run_records
from covertfl.runs.files import find_runs, is_public

PAGE, PLOTS = "report.html", "report"
Rows = Sequence[Mapping[str, Any]]
# Columns of the table, and scores, that are unknown until the summary or the records have them.
UNKNOWN_SO_FAR = (
    *("updates_done", "learning_queries", "rejected_replies", "completed", "mean_wait"),
    *("average_privacy_cost", "learner_accuracy"),
    *("learner_balanced_accuracy", "learner_auc", "learner_f1"),
)


def write_report(folder: Path, *, command: str, output: Path | None = None) -> Path:
    """Write the report of a run's folder, or of a folder of runs; return the page's path.

    Parameters
    ----------
    folder : where the results are
    command : shown on the page as the one that made it
    output : folder that report.html and the folder report/ are written to; None for `folder`,
        which must then not be a public one: these hold what clients were sent and nothing else

    Raises
    ------
    InvalidInput
        if there is no run, its files were not written by covertfl, or nothing may be written there
    Missing
        if matplotlib or jinja2 is not installed
    """
    output = folder if output is None else output
    if any(map(is_public, (output.resolve(), *output.resolve().parents))):
        raise InvalidInput(
            f"{output} holds what clients were sent and nothing else: name another folder for the "
            "report with -o"
        )
    runs = [read_run_records(path) for path in find_runs(folder)]
    audit = read_audit(folder)
    figures = draw_figures(runs, audit, folder)
    content = _describe(folder, runs, audit, figures, command)
    page = render_template("covertfl.report", "report.html", content)
    _write_files(output, figures, page)
    return output / PAGE


def _write_files(folder: Path, figures: Sequence[Figure], page: str) -> None:
    """Write plots and page, readable by their owner only: they reveal actions."""
    plots = folder / PLOTS
    try:
        plots.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written to: {error.strerror or error}") from error
    for figure in figures:
        if figure.plot is not None:
            write_atomically(plots / f"{figure.name}.png", figure.plot.png, mode=0o600)
            write_atomically(plots / f"{figure.name}.svg", figure.plot.svg, mode=0o600)
    write_atomically(folder / PAGE, page, mode=0o600)


def _describe(
    folder: Path,
    runs: Sequence[RunRecords],
    audit: Audit | None,
    figures: Sequence[Figure],
    command: str,
) -> dict[str, Any]:
    """Return the values that the template names."""
    first = next((run for run in runs if run.settings is not None), runs[0])
    rows = [make_run_row(run) for run in runs]
    return {
        "folder": folder.resolve().name,
        "path": str(folder),
        "audit_command": name_audit_command(folder),
        "runs": rows,
        "first": first,
        "num_queries": sum(run.queries for run in runs),
        "is_public_only": all(run.is_public_only for run in runs),
        "notes": list_notes(runs, audit),
        "cards": list_cards(runs, rows, audit),
        "audit": audit,
        "figures": {figure.name: figure for figure in figures},
        "settings": list_settings(first),
        "versions": first.setting("versions") or {},
        "command": command,
        "version": __version__,
    }


def list_notes(runs: Sequence[RunRecords], audit: Audit | None) -> list[str]:
    """Return reasons to read the page with care."""
    notes = [note for run in runs for note in run.notes]
    for run in runs:
        notes += [f"{run.name}: {warning}." for warning in (run.summary or {}).get("warnings", ())]
    differences = list_differences(runs)
    if differences:
        notes.append(
            f"The runs differ in more than their seeds ({', '.join(differences)}); means over them "
            "may not be meaningful."
        )
    if len({len(run.metrics) for run in runs}) > 1:
        notes.append(
            "The runs have different numbers of rounds; means are over the runs that reached each."
        )
    if audit is not None:
        notes += [f"Audit: {warning}" for warning in audit.get("warnings") or ()]
        if audit["runs"] != len(runs):
            notes.append(
                f"The audit is of another set of runs: it has {audit['runs']}, the folder "
                f"{len(runs)}. Run the audit again."
            )
        elif _is_older(runs, audit):
            notes.append("The audit covers fewer rounds than the runs have. Run the audit again.")
    return notes


def _is_older(runs: Sequence[RunRecords], audit: Audit) -> bool:
    seen = audit["learner"].get("exposure_by_round")
    return bool(seen) and len(seen) < min(len(run.rounds) for run in runs)


@dataclass(frozen=True)
class Card:
    """One number of the summary with its title and a detail."""

    title: str
    value: str
    detail: str


def make_run_row(run: RunRecords) -> dict[str, Any]:
    """Return a run's row of the table: its summary, or what its records have so far."""
    last = run.metrics[-1] if run.metrics else {}
    row: dict[str, Any] = dict.fromkeys(UNKNOWN_SO_FAR) | {
        "updates_missing": last.get("backlog"),
        "rounds": last.get("round", run.queries),
        "exposure": last.get("exposure"),
    }
    if run.rounds:
        row |= {
            "updates_done": sum(record["updated"] for record in run.rounds),
            "learning_queries": sum(record["action"] == "learn" for record in run.rounds),
            "rejected_replies": sum(len(record["rejected"]) for record in run.rounds),
        }
    row |= run.summary or {}
    # The accuracy at the end, or so far.
    scores = (row["learner_accuracy"], last.get("learner_score"))
    score = next((float(score) for score in scores if score is not None), None)
    return row | {"name": run.name, "ended": run.summary is not None, "score": score}


def list_cards(runs: Sequence[RunRecords], rows: Rows, audit: Audit | None) -> list[Card]:
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


def _known(rows: Rows, key: str) -> list[float]:
    return [float(row[key]) for row in rows if row[key] is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _score_card(runs: Sequence[RunRecords], rows: Rows, audit: Audit | None) -> Card | None:
    scores = _known(rows, "score")
    if not scores:
        return None
    detail = format_range(scores, format_number)
    interval = None if audit is None else audit["learner"].get("interval")
    if interval is not None and audit is not None and audit["runs"] == len(runs):
        detail = f"95%: {format_interval(interval)}"
    return Card("Learner accuracy", format_number(_mean(scores)), detail or "at the end")


def _exposure_card(rows: Rows) -> Card | None:
    shares = _known(rows, "exposure")
    if not shares:
        return None
    detail = format_range(shares, format_share) or "of all queries carried the true model"
    return Card("Exposure", format_share(_mean(shares)), detail)


def _completion_card(rows: Rows) -> Card | None:
    ended = [row for row in rows if row["completed"] is not None]
    if not ended:
        return None
    done = sum(bool(row["completed"]) for row in ended)
    return Card("Completed", f"{done} of {len(ended)}", "runs that made all updates")


def _missing_card(rows: Rows) -> Card | None:
    missing = _known(rows, "updates_missing")
    if not missing:
        return None
    done = _known(rows, "updates_done")
    detail = f"still pending; {sum(done):g} were made" if done else "still pending"
    return Card("Updates missing", f"{sum(missing):g}", detail)


def _rejected_card(runs: Sequence[RunRecords], rows: Rows) -> Card | None:
    rejected = _known(rows, "rejected_replies")
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
            mean = format_number(_mean([float(cost) for cost, _ in found]))
            return Card(f"Average {kind} cost", mean, f"per round; the limit is {found[0][1]:g}")
    return None


def _strongest_card(audit: Audit | None) -> Card | None:
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
