"""Training runs and the demonstration as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from covertfl.runs.summary import RunSummary


def render_training(summaries: Sequence[RunSummary]) -> RenderableType:
    """A line for each run, and what is still owed."""
    table = Table(title="Training runs", title_justify="left")
    for column in (
        "run",
        "learner accuracy",
        "updates",
        "rounds",
        "exposure",
        "completed",
        "seconds",
    ):
        table.add_column(column, justify="right")
    for number, summary in enumerate(summaries):
        table.add_row(
            str(number),
            _optional(summary.learner_accuracy),
            str(summary.updates_done),
            str(summary.rounds),
            f"{summary.exposure:.1%}",
            "yes" if summary.completed else "no",
            f"{summary.seconds:.1f}",
        )
    return Group(table, *_describe_success_probs(summaries[0]), *_describe_missing(summaries))


def _optional(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _describe_success_probs(summary: RunSummary) -> list[str]:
    """Success chances by oracle state, measured beside printed."""
    if summary.success_measured is None:
        return []
    measured, printed = (
        ", ".join(f"{prob:.3f}" for prob in probs)
        for probs in (summary.success_measured, summary.success_printed)
    )
    return [
        f"Chance of an accepted round by oracle state: {measured} here, {printed} in the problem."
    ]


def _describe_missing(summaries: Sequence[RunSummary]) -> list[str]:
    lines = []
    for number, summary in enumerate(summaries):
        missing = summary.updates_missing
        if missing:
            updates = "update is" if missing == 1 else "updates are"
            # A queue is never done: what is owed at its end came late.
            is_queue = summary.tasks_arrived is not None
            advice = "raise `rounds` in the run file and use --resume to go on."
            lines.append(
                f"Run {number}: {missing} {updates} still "
                + ("waiting in the queue." if is_queue else f"owed; {advice}")
            )
    return lines


def render_demo(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """The demonstration's table, with the paper's numbers beside ours."""
    title = (
        "Accuracy of what the learner and the paper's eavesdropper end up with, means over seeds"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("scenario", "policy", "decoy"):
        table.add_column(column, no_wrap=True)
    for column in (
        "learner\n(paper)",
        "eavesdropper\n(paper)",
        "held the\ntrue model",
        "true\nqueries",
        "finished",
        "expected",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        paper = row["paper"] or {}
        table.add_row(
            str(row["scenario"]),
            row["policy"],
            row["decoy"],
            _beside(row["learner_accuracy"], paper.get("learner_accuracy")),
            _beside(row["eavesdropper_accuracy"], paper.get("eavesdropper_accuracy")),
            f"{row['held_true']:g} of {row['runs']}",
            f"{row['exposure']:.0%}",
            f"{row['completion'] * row['runs']:.0f} of {row['runs']}",
            f"{row['expected_completion']:.0%}",
        )
    note = (
        "Scenario 1: the eavesdropper's data has no toxic comments; scenario 2: a tenth.  Expected "
        "is the exact chance that the policy finishes all updates.  "
        "The paper's figures are for another data set (Civil Comments)."
    )
    return Group(table, note)


def _beside(value: float, paper: float | None) -> str:
    return f"{value:.3f}" + ("       " if paper is None else f" ({paper:.2f})")
