"""The report of a run or of several: one HTML page and its plots, from result files alone.

Nothing that solves, trains or attacks is imported: a report can be made wherever the files are.
It shows actions, so it is as private as the records it is made from.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covertfl import __version__
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.report.page import (
    Figure,
    describe_run,
    is_function,
    list_cards,
    list_differences,
    list_settings,
    render_report,
)
from covertfl.report.plots import (
    plot_actions,
    plot_backlog,
    plot_exposure,
    plot_policy,
    plot_scores,
    plot_success_probs,
    plot_waits,
)
from covertfl.report.records import (
    RunRecords,
    average_policy,
    find_backlog_limit,
    find_guess,
    find_little_wait,
    find_runs,
    find_wait_limit,
    list_waits,
    read_audit,
    read_run_records,
    stack_by_round,
)

PAGE, PLOTS = "report.html", "report"
# Eavesdroppers whose accuracy is drawn in any case: the paper's, the one that knows the scheme and
# the base line.  The best of the others over all rounds joins them.
DRAWN = ("majority", "likelihood", "train-alone")
NO_PRIVATE = "The private records are not here, so there is nothing to draw."


def write_report(folder: Path, *, command: str) -> Path:
    """Write the report of a run's folder, or of a folder of runs, into it.

    Parameters
    ----------
    folder : where the results are; report.html and the folder report/ are written there
    command : that asked for it, as the page shows it

    Returns
    -------
    the page's path

    Raises
    ------
    InvalidInput
        where there is no run, or its files are not of covertfl
    Missing
        where matplotlib or jinja2 is not installed
    """
    runs = [read_run_records(path) for path in find_runs(folder)]
    audit = read_audit(folder)
    figures = draw_figures(runs, audit, folder)
    page = render_report(_describe(folder, runs, audit, figures, command))
    _write_files(folder, figures, page)
    return folder / PAGE


def _write_files(folder: Path, figures: Sequence[Figure], page: str) -> None:
    """Write plots and page, for their owner only: they tell of actions."""
    plots = folder / PLOTS
    try:
        plots.mkdir(mode=0o700, exist_ok=True)
        (folder / PAGE).touch(mode=0o600, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written to: {error.strerror or error}") from error
    for figure in figures:
        if figure.plot is not None:
            write_atomically(plots / f"{figure.name}.png", figure.plot.png)
            write_atomically(plots / f"{figure.name}.svg", figure.plot.svg)
    write_atomically(folder / PAGE, page)


def _describe(
    folder: Path,
    runs: Sequence[RunRecords],
    audit: Mapping[str, Any] | None,
    figures: Sequence[Figure],
    command: str,
) -> dict[str, Any]:
    """What the page is filled with."""
    first = next((run for run in runs if run.settings is not None), runs[0])
    rows = [describe_run(run) for run in runs]
    return {
        "folder": folder.resolve().name,
        "path": str(folder),
        "audit_command": _name_audit(folder),
        "runs": rows,
        "first": first,
        "num_queries": sum(run.queries for run in runs),
        "is_public_only": all(run.is_public_only for run in runs),
        "is_function": is_function(runs),
        "notes": list_notes(runs, audit),
        "cards": list_cards(runs, rows, audit),
        "audit": audit,
        "figures": {figure.name: figure for figure in figures},
        "settings": list_settings(first),
        "versions": first.setting("versions") or {},
        "command": command,
        "version": __version__,
    }


def _name_audit(folder: Path) -> str:
    return f"covertfl audit {shlex.quote(str(folder))}"


def list_notes(runs: Sequence[RunRecords], audit: Mapping[str, Any] | None) -> list[str]:
    """What stands against reading the page without a second thought."""
    notes = [note for run in runs for note in run.notes]
    differences = list_differences(runs)
    if differences:
        notes.append(
            f"The runs differ in more than their seeds ({', '.join(differences)}); means over them "
            "may mean little."
        )
    if len({len(run.metrics) for run in runs}) > 1:
        notes.append(
            "The runs have different numbers of rounds; means are of those that got there."
        )
    if audit is not None:
        notes += [f"Audit: {warning}" for warning in audit.get("warnings") or ()]
        if audit["runs"] != len(runs):
            notes.append(
                f"The audit is of another set of runs: of {audit['runs']}, and there are "
                f"{len(runs)}. Audit again."
            )
        elif _is_older(runs, audit):
            notes.append("The audit covers fewer rounds than the runs have. Audit again.")
    return notes


def _is_older(runs: Sequence[RunRecords], audit: Mapping[str, Any]) -> bool:
    seen = audit["learner"].get("exposure_by_round")
    return bool(seen) and len(seen) < min(len(run.rounds) for run in runs)


# --- figures ----------------------------------------------------------------------------------


def draw_figures(
    runs: Sequence[RunRecords], audit: Mapping[str, Any] | None, folder: Path
) -> list[Figure]:
    """All plots of the page; those without data carry only the reason."""
    return [
        _draw_success_probs(runs, audit, folder),
        _draw_scores(runs, audit, folder),
        _draw_actions(runs),
        _draw_exposure(runs),
        _draw_policy(runs),
        _draw_backlog(runs),
        _draw_waits(runs),
    ]


def _draw_success_probs(
    runs: Sequence[RunRecords], audit: Mapping[str, Any] | None, folder: Path
) -> Figure:
    name, title = "chances", "Who names the true model"
    if audit is None:
        return Figure(name, title, f"There is no audit yet: {_name_audit(folder)}", None)
    probs = {
        who: (entry["names_true"], tuple(entry["interval"]))
        for who, entry in audit["eavesdroppers"].items()
        if entry["names_true"] is not None and entry["interval"] and who != "train-alone"
    }
    if not probs:
        return Figure(name, title, "Which trajectory is true is not known to the audit.", None)
    bound = audit.get("bound")
    caption = "Share of runs in which the last belief is in the true trajectory; a tie counts half."
    ends = None if bound is None else tuple(bound["interval"])
    return Figure(
        name, title, caption, plot_success_probs(probs, ends, find_guess(runs[0]), name=name)
    )


def _draw_scores(
    runs: Sequence[RunRecords], audit: Mapping[str, Any] | None, folder: Path
) -> Figure:
    name = "accuracy"
    learner = stack_by_round(runs, "learner_score")
    if np.all(np.isnan(learner)):
        return Figure(name, "Accuracy by round", "There is no score of any round.", None)
    if is_function(runs):
        plot = plot_scores(learner, {}, unit="function value", name=name)
        caption = "A function has no accuracy: its value at the learner's weights, less is better."
        return Figure(name, "Value by round", caption, plot)
    others = choose_curves(audit)
    caption = f"There is no audit yet, so eavesdroppers are missing: {_name_audit(folder)}"
    if others:
        left = len(_list_curves(audit)) - len(others)
        caption = (
            "Eavesdroppers are means over runs: the paper's (majority), the one that knows the "
            "scheme (likelihood), the base line (train-alone) and the best of the others over all "
            f"rounds. {left} more are in the table."
        )
    elif audit is not None:
        caption = "The audit has no accuracy of any eavesdropper."
    plot = plot_scores(learner, others, unit="accuracy on validation data", name=name)
    return Figure(name, "Accuracy by round", caption, plot)


def _list_curves(audit: Mapping[str, Any] | None) -> dict[str, list[float]]:
    entries = {} if audit is None else audit["eavesdroppers"]
    return {
        name: entry["accuracy_by_round"]
        for name, entry in entries.items()
        if entry.get("accuracy_by_round")
    }


def choose_curves(audit: Mapping[str, Any] | None) -> dict[str, list[float]]:
    """Accuracy by round of the eavesdroppers that are drawn."""
    curves = _list_curves(audit)
    others = {name: float(np.mean(curve)) for name, curve in curves.items() if name not in DRAWN}
    best = [max(others, key=others.__getitem__)] if others else []
    return {name: curves[name] for name in (*DRAWN[:2], *best, *DRAWN[2:]) if name in curves}


def _draw_actions(runs: Sequence[RunRecords]) -> Figure:
    name, title = "actions", "Actions"
    length = max(len(run.rounds) for run in runs)
    if length == 0:
        return Figure(name, title, NO_PRIVATE, None)
    actions = np.full((len(runs), length), -1)
    for row, run in zip(actions, runs, strict=True):
        row[: len(run.rounds)] = [
            0 if record["action"] != "learn" else 1 if record["updated"] else 2
            for record in run.rounds
        ]
    caption = "A learning query is in vain where no update came of it."
    return Figure(name, title, caption, plot_actions(actions, [r.name for r in runs], name=name))


def _draw_exposure(runs: Sequence[RunRecords]) -> Figure:
    name, title = "exposure", "Exposure"
    exposure = stack_by_round(runs, "exposure")
    if not exposure.size:
        return Figure(name, title, "There are no metrics of any round.", None)
    caption = "Above one half, the paper's eavesdropper (majority) believes in the true model."
    return Figure(name, title, caption, plot_exposure(exposure, name=name))


def _draw_policy(runs: Sequence[RunRecords]) -> Figure:
    name, title = "policy", "Policy as observed"
    probs, rounds = average_policy(runs)
    if not rounds:
        return Figure(name, title, NO_PRIVATE, None)
    caption = (
        f"Mean over {rounds} rounds of the policy's chance of learning, whatever else it looks at "
        "(rounds left, arrivals). Hatched: never visited."
    )
    return Figure(name, title, caption, plot_policy(probs, name=name))


def _draw_backlog(runs: Sequence[RunRecords]) -> Figure:
    name, title = "backlog", "Backlog"
    backlog = stack_by_round(runs, "backlog")
    if not backlog.size:
        return Figure(name, title, "There are no metrics of any round.", None)
    limit = find_backlog_limit(runs[0])
    caption = f"Updates owed after each round, {np.nanmean(backlog):.2f} on average."
    if limit is not None:
        caption += f" The limit on the learning cost allows {limit:.3g} on average."
    return Figure(name, title, caption, plot_backlog(backlog, limit, name=name))


def _draw_waits(runs: Sequence[RunRecords]) -> Figure:
    name, title = "waits", "Waiting times"
    if not any(run.rounds for run in runs):
        return Figure(name, title, NO_PRIVATE, None)
    waits = list_waits(runs)
    if not len(waits):
        return Figure(name, title, "No update that was owed has been done.", None)
    little, limit = find_little_wait(runs), find_wait_limit(runs[0])
    caption = f"{len(waits)} updates waited {waits.mean():.1f} rounds on average"
    if little is not None:
        caption += (
            f"; by Little's law {little:.1f}, which also counts what is still owed, so the two "
            "agree once nothing is"
        )
    return Figure(name, title, f"{caption}.", plot_waits(waits, little, limit, name=name))
