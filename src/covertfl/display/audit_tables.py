"""The audit as tables for people."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from covertfl.auditing.coalitions import describe_coalitions
from covertfl.auditing.summary import AuditReport, Threat, describe_audit


def render_audit(report: AuditReport) -> RenderableType:
    """What each eavesdropper gets, a verdict for each threat, and warnings."""
    table = Table(
        title=f"What eavesdroppers get, {len(report.runs)} run{'s' * (len(report.runs) != 1)}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("eavesdropper", no_wrap=True)
    for column in (
        "names the\ntrue model",
        "95%",
        "final\naccuracy",
        "worst\naccuracy",
        "advantage",
    ):
        table.add_column(column, justify="right")
    for threat in report.threats:
        table.add_row(
            threat.name,
            _share(threat.names_true),
            ""
            if threat.interval is None
            else f"{threat.interval[0]:.0%} to {threat.interval[1]:.0%}",
            _number(threat.final_accuracy),
            _number(threat.worst_accuracy),
            "" if threat.advantage is None else f"{threat.advantage:+.3f}",
        )
    return Group(
        table,
        *_learner_lines(report),
        *_coalition_lines(report),
        "",
        *map(_verdict, report.threats),
        *_warnings(report),
    )


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _verdict(threat: Threat) -> str:
    return f"{threat.name} ({threat.threat}): {threat.verdict}."


def _learner_lines(report: AuditReport) -> list[str]:
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
            "By schedule alone nobody can expect to name the true model in over "
            f"{value:.1%} of runs ({low:.1%} to {high:.1%}; F4)."
        )
    return lines


def _coalition_lines(report: AuditReport) -> list[str]:
    lines = []
    for size, found in (describe_coalitions(report.coalitions) or {}).items():
        named = ", ".join(
            f"{name} {entry['names_true']:.0%}" for name, entry in found["eavesdroppers"].items()
        )
        clients = "client sees" if size == "1" else "clients see"
        lines.append(
            f"{size} {clients} {found['rounds_seen']:.0%} of the rounds; names true: {named}."
        )
    return lines


def _warnings(report: AuditReport) -> list[str]:
    return [f"Warning: {warning}" for warning in describe_audit(report)["warnings"]]
