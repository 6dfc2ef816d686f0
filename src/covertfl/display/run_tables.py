"""Training runs and the demonstration as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from covertfl.runs.summary import RunSummary

TRAINING_COLUMNS = (
    "run",
    "learner accuracy",
    "updates",
    "rounds",
    "exposure",
    "completed",
    "seconds",
)
DEMO_COLUMNS = (
    "learner\n(paper)",
    "eavesdropper\n(paper)",
    "held the\ntrue model",
    "true\nqueries",
    "finished",
    "expected",
)
DEMO_NOTE = (
    "Scenario 1: the eavesdropper's data has no toxic comments; scenario 2: a tenth.  Expected "
    "is the exact probability that the policy finishes all updates.  "
    "The paper's figures are for another data set (Civil Comments)."
)


def render_training(summaries: Sequence[RunSummary]) -> RenderableType:
    """Render training runs, one row each, and the updates that are missing."""
    table = Table(title="Training runs", title_justify="left")
    for column in TRAINING_COLUMNS:
        table.add_column(column, justify="right")
    for number, summary in enumerate(summaries):
        accuracy = summary.learner_accuracy
        table.add_row(
            str(number),
            "" if accuracy is None else f"{accuracy:.4f}",
            str(summary.updates_done),
            str(summary.rounds),
            f"{summary.exposure:.1%}",
            "yes" if summary.completed else "no",
            f"{summary.seconds:.1f}",
        )
    return Group(table, *_describe_success_probs(summaries[0]), *_describe_missing(summaries))


def _describe_success_probs(summary: RunSummary) -> list[str]:
    """Return a line with success probabilities by oracle state, measured and of the problem."""
    if summary.success_measured is None:
        return []
    measured, printed = (
        ", ".join(f"{prob:.3f}" for prob in probs)
        for probs in (summary.success_measured, summary.success_printed)
    )
    return [
        "Probability that a round is accepted, by oracle state: "
        f"{measured} in this federation, {printed} in the problem."
    ]


def _describe_missing(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run with updates left to do."""
    lines = []
    for number, summary in enumerate(summaries):
        missing = summary.updates_missing
        if missing:
            updates = "update is" if missing == 1 else "updates are"
            # A queue has no end: what waits when the rounds are over is no shortfall.
            is_queue = summary.tasks_arrived is not None
            remedy = "raise `rounds` in the run file and train again with --resume."
            lines.append(
                f"Run {number}: {missing} {updates} "
                + ("waiting in the queue." if is_queue else f"missing; {remedy}")
            )
    return lines


def render_demo(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Render the demonstration's results with the paper's numbers in brackets."""
    title = (
        "Accuracy of what the learner and the paper's eavesdropper end up with, means over seeds"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in ("scenario", "policy", "decoy"):
        table.add_column(column, no_wrap=True)
    for column in DEMO_COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        paper = row["paper"] or {}
        table.add_row(
            str(row["scenario"]),
            row["policy"],
            row["decoy"],
            _format_beside(row["learner_accuracy"], paper.get("learner_accuracy")),
            _format_beside(row["eavesdropper_accuracy"], paper.get("eavesdropper_accuracy")),
            f"{row['held_true']:g} of {row['runs']}",
            f"{row['exposure']:.0%}",
            f"{row['completion'] * row['runs']:.0f} of {row['runs']}",
            f"{row['expected_completion']:.0%}",
        )
    return Group(table, DEMO_NOTE)


def _format_beside(value: float, paper: float | None) -> str:
    return f"{value:.3f}" + ("       " if paper is None else f" ({paper:.2f})")
