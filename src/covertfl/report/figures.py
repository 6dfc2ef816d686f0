"""The figures of the page: each plot with its title and caption, drawn from records and audit."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.report import measures, plots
from covertfl.report.records import Audit, RunRecords

# Eavesdroppers whose accuracy is always drawn: the paper's, the one that knows the scheme, and the
# baseline.  The best of the others over all rounds is drawn as well.
DRAWN = ("majority", "likelihood", "train-alone")
NO_PRIVATE = "The private records are missing, so there is nothing to draw."


Drawing = tuple[str, plots.Plot | None]  # the caption, which has the reason if there is no plot


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
    plot: plots.Plot | None


def draw_figures(runs: Sequence[RunRecords], audit: Audit | None, folder: Path) -> list[Figure]:
    """Draw all plots of the page; one without data has only the reason as its caption."""
    scores = measures.stack_by_round(runs, "learner_score")
    return [
        Figure("chances", "Who identifies the true model", *_draw_shares(runs, audit, folder)),
        Figure("accuracy", "Accuracy by round", *_draw_scores(scores, audit, folder)),
        Figure("actions", "Actions", *_draw_actions(runs)),
        Figure("exposure", "Exposure", *_draw_exposure(runs)),
        Figure("policy", "Policy as observed", *_draw_policy(runs)),
        Figure("backlog", "Backlog", *_draw_backlog(runs)),
        Figure("waits", "Waiting times", *_draw_waits(runs)),
    ]


def name_audit_command(folder: Path) -> str:
    """Return the command that audits a folder."""
    return f"covertfl audit {shlex.quote(str(folder))}"


def _draw_shares(runs: Sequence[RunRecords], audit: Audit | None, folder: Path) -> Drawing:
    if audit is None:
        return f"There is no audit yet: {name_audit_command(folder)}", None
    # A single run says little: what was simulated is shown instead.
    told = {who: entry.get("simulated") or entry for who, entry in audit["eavesdroppers"].items()}
    shares = {
        who: (entry["names_true"], tuple(entry["interval"]))
        for who, entry in told.items()
        if entry["names_true"] is not None and entry["interval"] and who != "train-alone"
    }
    if not shares:
        return "The audit does not know which trajectory is true.", None
    bound = audit.get("bound")
    ends = None if bound is None else tuple(bound["interval"])
    simulated = any(entry.get("simulated") for entry in audit["eavesdroppers"].values())
    runs_shown = "simulated runs of the same settings" if simulated else "runs"
    caption = (
        f"Share of {runs_shown} whose final belief is in the true trajectory; a tie of K counts "
        "1/K."
    )
    return caption, plots.plot_naming_shares(shares, ends, measures.find_guess(runs[0]))


def _draw_scores(learner: FloatArray, audit: Audit | None, folder: Path) -> Drawing:
    if np.all(np.isnan(learner)):
        return "No round has a score.", None
    others = choose_curves(audit)
    caption = f"Without an audit there are no eavesdroppers to show: {name_audit_command(folder)}"
    if others:
        left = len(_list_curves(audit)) - len(others)
        caption = (
            "Curves of eavesdroppers are means over runs: the paper's (majority), the one that "
            "knows the scheme (likelihood), the baseline (train-alone), and the best of the "
            f"others over all rounds. The table has {left} more."
        )
    elif audit is not None:
        caption = "The audit has no accuracy of any eavesdropper."
    return caption, plots.plot_scores(learner, others)


def _list_curves(audit: Audit | None) -> dict[str, list[float]]:
    entries = {} if audit is None else audit["eavesdroppers"]
    return {
        name: entry["accuracy_by_round"]
        for name, entry in entries.items()
        if entry.get("accuracy_by_round")
    }


def choose_curves(audit: Audit | None) -> dict[str, list[float]]:
    """Return the accuracy by round of the eavesdroppers that are drawn."""
    curves = _list_curves(audit)
    others = {name: float(np.mean(curve)) for name, curve in curves.items() if name not in DRAWN}
    best = [max(others, key=others.__getitem__)] if others else []
    return {name: curves[name] for name in (*DRAWN[:2], *best, *DRAWN[2:]) if name in curves}


def _draw_actions(runs: Sequence[RunRecords]) -> Drawing:
    length = max(len(run.rounds) for run in runs)
    if length == 0:
        return NO_PRIVATE, None
    actions = np.full((len(runs), length), -1)
    for row, run in zip(actions, runs, strict=True):
        row[: len(run.rounds)] = [
            0 if record["action"] != "learn" else 1 if record["updated"] else 2
            for record in run.rounds
        ]
    plot = plots.plot_actions(actions, [run.name for run in runs])
    return "A learning query failed if it led to no update.", plot


def _draw_exposure(runs: Sequence[RunRecords]) -> Drawing:
    exposure = measures.stack_by_round(runs, "exposure")
    if not exposure.size:
        return "No round has metrics.", None
    caption = "Above one half, the paper's eavesdropper (majority) believes in the true model."
    return caption, plots.plot_exposure(exposure)


def _draw_policy(runs: Sequence[RunRecords]) -> Drawing:
    probs, rounds = measures.average_policy(runs)
    if not rounds:
        return NO_PRIVATE, None
    caption = (
        f"Mean over {rounds} rounds of the policy's probability of learning, averaged over its "
        "other inputs (rounds left, arrivals). Hatched: never visited."
    )
    return caption, plots.plot_policy(probs)


def _draw_backlog(runs: Sequence[RunRecords]) -> Drawing:
    backlog = measures.stack_by_round(runs, "backlog")
    if not backlog.size:
        return "No round has metrics.", None
    limit = measures.find_backlog_limit(runs[0])
    caption = f"Pending updates after each round, {np.nanmean(backlog):.2f} on average."
    if limit is not None:
        caption += f" The limit on the learning cost allows {limit:.3g} on average."
    return caption, plots.plot_backlog(backlog, limit)


def _draw_waits(runs: Sequence[RunRecords]) -> Drawing:
    if not any(run.rounds for run in runs):
        return NO_PRIVATE, None
    waits = measures.list_waits(runs)
    if not len(waits):
        return "No pending update has been made.", None
    little, limit = measures.compute_little_wait(runs), measures.find_wait_limit(runs[0])
    caption = f"{len(waits)} updates waited {waits.mean():.1f} rounds on average"
    if little is not None:
        caption += (
            f"; by Little's law {little:.1f}, which also counts updates that are still pending, so "
            "that the two agree once none is"
        )
    return f"{caption}.", plots.plot_waits(waits, little, limit)
