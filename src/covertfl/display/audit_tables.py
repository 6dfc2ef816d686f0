"""Audits as tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from covertfl.auditing.summary import AuditReport

COLUMNS = ("names the\ntrue model", "95%", "final\naccuracy", "peak\naccuracy", "advantage")


def render_audit(report: AuditReport) -> RenderableType:
    """Render what each eavesdropper gets, a verdict on each threat, and warnings."""
    return Group(
        _render_threats(report),
        *_describe_learner(report),
        *_describe_coalitions(report),
        "",
        *(f"{threat.name} ({threat.threat}): {threat.verdict}." for threat in report.threats),
        *(f"Warning: {warning}" for warning in report.notes),
    )


def _render_threats(report: AuditReport) -> Table:
    title = f"What eavesdroppers get, {report.num_runs} run{'s' * (report.num_runs != 1)}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("eavesdropper", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for threat in report.threats:
        interval = threat.interval
        table.add_row(
            threat.name,
            "unknown" if threat.names_true is None else f"{threat.names_true:.0%}",
            "" if interval is None else f"{interval[0]:.0%} to {interval[1]:.0%}",
            _format_accuracy(threat.final_accuracy),
            _format_accuracy(threat.peak_accuracy),
            "" if threat.advantage is None else f"{threat.advantage:+.3f}",
        )
    return table


def _format_accuracy(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _describe_learner(report: AuditReport) -> list[str]:
    learner = report.learner
    lines = []
    if learner.accuracy is not None:
        lines.append(
            f"Learner: accuracy {learner.accuracy:.3f}, {learner.exposure:.0%} true queries, "
            f"{learner.completion:.0%} of runs finished."
        )
    if report.bound is not None:
        bound = report.bound
        lines.append(
            "From the schedule of queries alone, even the best eavesdropper that knows the policy "
            f"names the true model in at most {bound.value:.1%} of runs ({bound.low:.1%} to "
            f"{bound.high:.1%})."
        )
    return lines


def _describe_coalitions(report: AuditReport) -> list[str]:
    lines = []
    for found in report.coalitions:
        named = ", ".join(f"{threat.name} {threat.names_true:.0%}" for threat in found.threats)
        clients = "client sees" if found.size == 1 else "clients see"
        lines.append(
            f"{found.size} {clients} {found.rounds_seen:.0%} of the rounds; names the true model: "
            f"{named}."
        )
    return lines
