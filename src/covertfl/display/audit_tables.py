"""Audits as tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from covertfl.auditing.coalitions import describe_coalitions
from covertfl.auditing.summary import AuditReport, describe_audit

COLUMNS = ("names the\ntrue model", "95%", "final\naccuracy", "peak\naccuracy", "advantage")


def render_audit(report: AuditReport) -> RenderableType:
    """Render what each eavesdropper gets, a verdict on each threat, and warnings."""
    return Group(
        _render_threats(report),
        *_describe_learner(report),
        *_describe_coalitions(report),
        "",
        *(f"{threat.name} ({threat.threat}): {threat.verdict}." for threat in report.threats),
        *(f"Warning: {warning}" for warning in describe_audit(report)["warnings"]),
    )


def _render_threats(report: AuditReport) -> Table:
    title = f"What eavesdroppers get, {len(report.runs)} run{'s' * (len(report.runs) != 1)}"
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
            _format_accuracy(threat.worst_accuracy),
            "" if threat.advantage is None else f"{threat.advantage:+.3f}",
        )
    return table


def _format_accuracy(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _describe_learner(report: AuditReport) -> list[str]:
    learner = describe_audit(report)["learner"]
    lines = []
    if learner["accuracy"] is not None:
        lines.append(
            f"Learner: accuracy {learner['accuracy']:.3f}, {learner['exposure']:.0%} true queries, "
            f"{learner['completion']:.0%} of runs finished."
        )
    if report.bound is not None:
        value, low, high = report.bound
        lines.append(
            "From the schedule of queries alone, even the best eavesdropper that knows the policy "
            f"names the true model in at most {value:.1%} of runs ({low:.1%} to {high:.1%})."
        )
    return lines


def _describe_coalitions(report: AuditReport) -> list[str]:
    lines = []
    for size, found in (describe_coalitions(report.coalitions) or {}).items():
        named = ", ".join(
            f"{name} {entry['names_true']:.0%}" for name, entry in found["eavesdroppers"].items()
        )
        clients = "client sees" if size == "1" else "clients see"
        lines.append(
            f"{size} {clients} {found['rounds_seen']:.0%} of the rounds; names the true model: "
            f"{named}."
        )
    return lines
