"""The audit as tables for people."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from covertfl.auditing.summary import AuditReport
from covertfl.auditing.threats import Threat


def render_audit(report: AuditReport) -> RenderableType:
    """What each eavesdropper gets, a verdict for each threat, and warnings."""
    table = Table(
        title=f"What eavesdroppers get, {report.num_runs} run{'s' * (report.num_runs != 1)}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("eavesdropper", no_wrap=True)
    for column in (
        "names the\ntrue model",
        "95%",
        "final\naccuracy",
        "peak\naccuracy",
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
            _number(threat.peak_accuracy),
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
            "By schedule alone nobody can expect to name the true model in over "
            f"{bound.value:.1%} of runs ({bound.low:.1%} to {bound.high:.1%}; F4)."
        )
    return lines


def _coalition_lines(report: AuditReport) -> list[str]:
    lines = []
    for found in report.coalitions:
        named = ", ".join(f"{threat.name} {threat.names_true:.0%}" for threat in found.threats)
        clients = "client sees" if found.size == 1 else "clients see"
        lines.append(
            f"{found.size} {clients} {found.rounds_seen:.0%} of the rounds; names true: {named}."
        )
    return lines


def _warnings(report: AuditReport) -> list[str]:
    return [f"Warning: {warning}" for warning in report.notes]
