"""The figures of the page: each plot with its title and caption, drawn from records and audit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.report.canvas import Plot
from covertfl.report.measures import (
    average_policy,
    compute_little_wait,
    find_backlog_limit,
    find_guess,
    find_wait_limit,
    list_waits,
    stack_by_round,
)
from covertfl.report.plots import (
    plot_actions,
    plot_backlog,
    plot_exposure,
    plot_naming_shares,
    plot_policy,
    plot_scores,
    plot_waits,
)
from covertfl.report.records import RunRecords, is_function

# Eavesdroppers whose accuracy is always drawn: the paper's, the one that knows the scheme, and the
# base line.  The best of the others over all rounds is drawn as well.
DRAWN = ("majority", "likelihood", "train-alone")
NO_PRIVATE = "The private records are missing, so there is nothing to draw."


@dataclass(frozen=True)
class Figure:
    """A plot in its place on the page.

    Parameters
    ----------
    name : of its files, without suffix
    title, caption : above and below it
    plot : None if there is nothing to draw; the caption then has the reason
    """

    name: str
    title: str
    caption: str
    plot: Plot | None


def draw_figures(
    runs: Sequence[RunRecords], audit: Mapping[str, Any] | None, folder: Path
) -> list[Figure]:
    """Draw all plots of the page; one without data has only the reason as its caption."""
    return [
        _draw_naming_shares(runs, audit, folder),
        _draw_scores(runs, audit, folder),
        _draw_actions(runs),
        _draw_exposure(runs),
        _draw_policy(runs),
        _draw_backlog(runs),
        _draw_waits(runs),
    ]


def name_audit_command(folder: Path) -> str:
    """Return the command that audits a folder."""
    return f"covertfl audit {shlex.quote(str(folder))}"


def _draw_naming_shares(
    runs: Sequence[RunRecords], audit: Mapping[str, Any] | None, folder: Path
) -> Figure:
    name, title = "chances", "Who identifies the true model"
    if audit is None:
        return Figure(name, title, f"There is no audit yet: {name_audit_command(folder)}", None)
    shares = {
        who: (entry["names_true"], tuple(entry["interval"]))
        for who, entry in audit["eavesdroppers"].items()
        if entry["names_true"] is not None and entry["interval"] and who != "train-alone"
    }
    if not shares:
        return Figure(name, title, "The audit does not know which trajectory is true.", None)
    bound = audit.get("bound")
    caption = "Share of runs whose final belief is in the true trajectory; a tie counts half."
    ends = None if bound is None else tuple(bound["interval"])
    return Figure(
        name, title, caption, plot_naming_shares(shares, ends, find_guess(runs[0]), name=name)
    )


def _draw_scores(
    runs: Sequence[RunRecords], audit: Mapping[str, Any] | None, folder: Path
) -> Figure:
    name = "accuracy"
    learner = stack_by_round(runs, "learner_score")
    if np.all(np.isnan(learner)):
        return Figure(name, "Accuracy by round", "No round has a score.", None)
    if is_function(runs):
        plot = plot_scores(learner, {}, unit="function value", name=name)
        caption = "A function has no accuracy; shown is its value, less is better."
        return Figure(name, "Value by round", caption, plot)
    others = choose_curves(audit)
    caption = f"Without an audit there are no eavesdroppers to show: {name_audit_command(folder)}"
    if others:
        left = len(_list_curves(audit)) - len(others)
        caption = (
            "Curves of eavesdroppers are means over runs: the paper's (majority), the one that "
            "knows the scheme (likelihood), the base line (train-alone), and the best of the "
            f"others over all rounds. The table has {left} more."
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
    """Return the accuracy by round of the eavesdroppers that are drawn."""
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
    caption = "A learning query failed if it led to no update."
    return Figure(name, title, caption, plot_actions(actions, [r.name for r in runs], name=name))


def _draw_exposure(runs: Sequence[RunRecords]) -> Figure:
    name, title = "exposure", "Exposure"
    exposure = stack_by_round(runs, "exposure")
    if not exposure.size:
        return Figure(name, title, "No round has metrics.", None)
    caption = "Above one half, the paper's eavesdropper (majority) believes in the true model."
    return Figure(name, title, caption, plot_exposure(exposure, name=name))


def _draw_policy(runs: Sequence[RunRecords]) -> Figure:
    name, title = "policy", "Policy as observed"
    probs, rounds = average_policy(runs)
    if not rounds:
        return Figure(name, title, NO_PRIVATE, None)
    caption = (
        f"Mean over {rounds} rounds of the policy's probability of learning, averaged over its "
        "other inputs (rounds left, arrivals). Hatched: never visited."
    )
    return Figure(name, title, caption, plot_policy(probs, name=name))


def _draw_backlog(runs: Sequence[RunRecords]) -> Figure:
    name, title = "backlog", "Backlog"
    backlog = stack_by_round(runs, "backlog")
    if not backlog.size:
        return Figure(name, title, "No round has metrics.", None)
    limit = find_backlog_limit(runs[0])
    caption = f"Pending updates after each round, {np.nanmean(backlog):.2f} on average."
    if limit is not None:
        caption += f" The limit on the learning cost allows {limit:.3g} on average."
    return Figure(name, title, caption, plot_backlog(backlog, limit, name=name))


def _draw_waits(runs: Sequence[RunRecords]) -> Figure:
    name, title = "waits", "Waiting times"
    if not any(run.rounds for run in runs):
        return Figure(name, title, NO_PRIVATE, None)
    waits = list_waits(runs)
    if not len(waits):
        return Figure(name, title, "No pending update has been made.", None)
    little, limit = compute_little_wait(runs), find_wait_limit(runs[0])
    caption = f"{len(waits)} updates waited {waits.mean():.1f} rounds on average"
    if little is not None:
        caption += (
            f"; by Little's law {little:.1f}, which also counts updates that are still pending, so "
            "that the two agree once none is"
        )
    return Figure(name, title, f"{caption}.", plot_waits(waits, little, limit, name=name))
