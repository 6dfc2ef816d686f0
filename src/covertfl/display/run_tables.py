"""Training runs, the demonstration and audits as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from covertfl.auditing.summary import AuditSummary
from covertfl.auditing.threats import Threat
from covertfl.display.tables import make_table
from covertfl.runs.files import RunSummary

DEMO_COLUMNS = (
    *("learner\n(paper)", "eavesdropper\nthat counts\n(paper)", "names\nthe\ntruth"),
    *("one\nthat\nknows", "names\nthe\ntruth", "true\nqueries", "finished\n(expected)"),
)
SCORES = ("accuracy", "balanced_accuracy", "auc", "f1")
TRAINING_COLUMNS = (
    *("run", "learner\naccuracy", "balanced\naccuracy", "AUC", "F1"),
    *("updates", "rounds", "exposure", "completed", "seconds"),
)
# What to do if most replies are rejected, by the most frequent reason.
REMEDIES = {
    "not finite": "reduce lr in [federation] optimizer and train again with --force",
    "no reply": "raise the time limit of a round, or look for nodes that have stopped",
}
OTHER_REMEDY = "look for what clients send"
AUDIT_COLUMNS = (
    *("names the\ntrue model", "95%", "final\naccu-\nracy", "balanced\naccuracy", "AUC", "F1"),
    *("peak\naccu-\nracy", "advan-\ntage", "gain"),
)
SINGLE_COLUMNS = (
    *("believes\nin", "right", "right,\nsimu-\nlated", "95%"),
    *("final\naccu-\nracy", "bal-\nanced", "AUC", "F1", "gain"),
)
PUBLIC_COLUMNS = ("believes in\ntrajectory", "with\nprobability")
DEMO_NOTES = (
    "Scenario 1: the eavesdropper's data has no toxic comments; scenario 2: a tenth.",
    "One that knows: has the problem and the policy.  Names the truth: in how many runs; a tie",
    "counts one half.  Expected: the exact probability.  The paper's figures are for another data",
    "set (Civil Comments).  With replicas one that counts guesses as well: its figure is chance.",
)


def render_training(summaries: Sequence[RunSummary]) -> RenderableType:
    """Render training runs, one row each, and the updates that are missing."""
    table = make_table("Training runs", right=TRAINING_COLUMNS)
    for number, summary in enumerate(summaries):
        scores = [getattr(summary, f"learner_{name}") for name in SCORES]
        table.add_row(
            str(number),
            *("" if score is None else f"{score:.4f}" for score in scores),
            str(summary.updates_done),
            str(summary.rounds),
            f"{summary.exposure:.1%}",
            "yes" if summary.completed else "no",
            f"{summary.seconds:.1f}",
        )
    lines = [
        *_describe_success_probs(summaries[0]),
        *_describe_rejected(summaries),
        *_describe_missing(summaries),
        *_describe_clock(summaries),
    ]
    return Group(table, *map(escape, lines))  # "[engine]" is a section, not a style


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


def _describe_rejected(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run with rejected replies, and what to do if they are the most."""
    lines = []
    for number, summary in enumerate(summaries):
        if not summary.rejected_replies:
            continue
        by_number = sorted(summary.rejected_by_reason.items(), key=lambda entry: -entry[1])
        of_all = f" of {summary.replies}" if summary.replies is not None else ""
        reasons = ", ".join(f"{reason} ({count})" for reason, count in by_number)
        line = f"Run {number}: {summary.rejected_replies}{of_all} replies were rejected: {reasons}"
        if _are_most_rejected(summary):
            line += f"; {REMEDIES.get(by_number[0][0], OTHER_REMEDY)}"
        lines.append(f"{line}.")
    return lines


def _are_most_rejected(summary: RunSummary) -> bool:
    return summary.replies is not None and 2 * summary.rejected_replies > summary.replies


def _describe_missing(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run with updates left to do."""
    lines = []
    for number, summary in enumerate(summaries):
        missing = summary.updates_missing
        if missing:
            updates = "update is" if missing == 1 else "updates are"
            # A queue has no end: what waits when the rounds are over is no shortfall.
            is_queue = summary.tasks_arrived is not None
            # More rounds do not help if replies are rejected.
            remedy = "; raise `rounds` in the run file and train again with --resume"
            remedy = "" if _are_most_rejected(summary) else remedy
            lines.append(
                f"Run {number}: {missing} {updates} "
                + ("waiting in the queue." if is_queue else f"missing{remedy}.")
            )
    return lines


def _describe_clock(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a line for each run whose rounds started on a clock."""
    lines = []
    for number, summary in enumerate(summaries):
        missed, seconds = summary.missed_ticks, summary.round_seconds
        if missed is None or seconds is None:
            continue
        line = f"Run {number}: rounds started every {seconds:g} s"
        if missed:
            line += (
                f"; {missed} starts were missed, so that clients could see how long those rounds "
                "took: raise [engine] round_seconds in the run file"
            )
        lines.append(f"{line}.")
    return lines


def render_demo(content: Mapping[str, Any]) -> RenderableType:
    """Render what `run_demo` returns: headline, table with the paper's numbers, and notes."""
    title = "Accuracy of the learner and of two eavesdroppers at the end, means over seeds"
    style: dict[str, Any] = {"padding": (0, 1, 0, 0), "pad_edge": False, "show_edge": False}
    table = make_table(title, box=SIMPLE_HEAD, **style)
    table.add_column("scenario, policy,\ndecoy, rounds", no_wrap=True)
    for column in DEMO_COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in content["rows"]:
        paper, runs = row["paper"] or {}, row["runs"]
        finished = f"{row['completion'] * runs:.0f}/{runs}"
        table.add_row(
            f"{row['scenario']} {row['policy'] or row['scheme']:<12} {row['decoy'] or '':<11} "
            f"{row['rounds']:>3}",
            _format_beside(row["learner_accuracy"], paper.get("learner_accuracy")),
            _format_beside(row["eavesdropper_accuracy"], paper.get("eavesdropper_accuracy")),
            f"{row['held_true']:g}/{runs}",
            f"{row['aware_accuracy']:.3f}",
            f"{row['aware_named']:g}/{runs}",
            f"{row['exposure']:.0%}",
            f"{finished} ({row['expected_completion']:.0%})",
        )
    words = (content["headline"], content["caution"])
    return Group(*words, "", table, "", *DEMO_NOTES, content["finishing"])


def _format_beside(value: float, paper: float | None) -> str:
    return f"{value:.3f}" + ("       " if paper is None else f" ({paper:.2f})")


def render_audit(report: AuditSummary) -> RenderableType:
    """Render what each eavesdropper gets by tier, the best of each, verdicts, and warnings."""
    return Group(
        *([_render_trajectories(report.trajectories)] if report.is_public else []),
        _render_threats(report),
        *(tier.describe() for tier in report.tiers),
        *_describe_not_tried(report.not_tried),
        *_describe_learner(report),
        *_describe_coalitions(report),
        "",
        *(f"{threat.name} ({threat.threat}): {threat.verdict}." for threat in report.threats),
        *(f"Warning: {warning}" for warning in report.notes),
    )


def _render_trajectories(trajectories: Sequence[Sequence[int]]) -> Table:
    """Render what a listener sees of each trajectory."""
    columns = ("trajectory", "queries", "share", "first seen\nin round", "last seen\nin round")
    table = make_table("Trajectories found", right=columns)
    total = sum(map(len, trajectories))
    for number, rounds in enumerate(trajectories, start=1):
        share = f"{len(rounds) / total:.0%}"
        table.add_row(str(number), str(len(rounds)), share, str(rounds[0]), str(rounds[-1]))
    return table


def _describe_not_tried(not_tried: Mapping[str, str]) -> list[str]:
    """Return a line for each thing that eavesdroppers lack."""
    names: dict[str, list[str]] = {}
    for name, need in not_tried.items():
        names.setdefault(need, []).append(name)
    return [f"Not tried, needs {need}: {', '.join(found)}." for need, found in names.items()]


def _choose_columns(report: AuditSummary) -> tuple[tuple[str, ...], Callable[[Threat], list[str]]]:
    """Return the columns of an audit, and what makes the cells of an eavesdropper."""
    if report.is_public:
        return PUBLIC_COLUMNS, _list_belief
    if any(threat.conviction is not None for threat in report.threats):
        return SINGLE_COLUMNS, _list_single
    return AUDIT_COLUMNS, _list_several


def _render_threats(report: AuditSummary) -> Table:
    gets = "believe" if report.is_public else "get"
    title = f"What eavesdroppers {gets}, {report.num_runs} run{'s' * (report.num_runs != 1)}"
    table = make_table(title, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("eavesdropper", no_wrap=True)
    columns, list_cells = _choose_columns(report)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for tier in report.tiers:
        table.add_section()
        table.add_row(f"[bold]{tier.title}[/bold]")
        for threat in tier.threats:
            table.add_row(threat.name, *list_cells(threat))
    return table


def _list_several(threat: Threat) -> list[str]:
    return [
        "unknown" if threat.names_true is None else f"{threat.names_true:.0%}",
        _format_interval(threat.interval),
        *_format_scores(threat),
        _format_accuracy(threat.peak_accuracy),
        _format_signed(threat.advantage),
        _format_signed(threat.gain),
    ]


def _list_single(threat: Threat) -> list[str]:
    """Return the cells of a single run: a belief, and what the rule achieves on simulated ones."""
    found, simulated = threat.conviction, threat.simulated
    believes = ["", ""]
    if found is not None and not threat.is_base_line:
        believes = [": ".join(_list_belief(threat)), found.judge("yes", "no", "tie")]
    share = None if simulated is None or threat.is_base_line else simulated.names_true
    return [
        *believes,
        "" if share is None else f"{share:.0%}",
        "" if share is None or simulated is None else _format_interval(simulated.interval),
        *_format_scores(threat),
        _format_signed(threat.gain),
    ]


def _list_belief(threat: Threat) -> list[str]:
    """Return the trajectories that an eavesdropper believes in, and their probability."""
    found = threat.conviction
    if found is None or threat.is_base_line:
        return ["", ""]
    numbers = ", ".join(str(number + 1) for number in found.favourites)
    return [numbers, f"{found.probability:.0%}"]


def _format_interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{interval[0] * 100:.0f}-{interval[1]:.0%}"


def _format_signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _format_scores(threat: Threat) -> list[str]:
    """Return the cells of the scores of its last estimate."""
    further = threat.list_scores().values()
    known = ["" if value is None else f"{value:.3f}" for value in further]
    return [_format_accuracy(threat.final_accuracy), *known]


def _format_accuracy(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _describe_learner(report: AuditSummary) -> list[str]:
    learner = report.learner
    lines = []
    if learner.accuracy is not None:
        scores = (("balanced", learner.balanced_accuracy), ("AUC", learner.auc), ("F1", learner.f1))
        further = "".join(f", {name} {value:.3f}" for name, value in scores if value is not None)
        lines.append(
            f"Learner: accuracy {learner.accuracy:.3f}{further}, "
            f"{learner.exposure:.0%} true queries, {learner.completion:.0%} of runs finished."
        )
    if report.bound is not None:
        bound = report.bound
        lines.append(
            "From the schedule of queries alone, even the best eavesdropper that knows the policy "
            f"names the true model in at most {bound.value:.1%} of runs ({bound.low:.1%} to "
            f"{bound.high:.1%})."
        )
    return lines


def _describe_coalitions(report: AuditSummary) -> list[str]:
    lines: list[str] = []
    if not any(threat.is_judged for threat in report.threats):
        return lines  # too few queries are on their right trajectory for any share
    for found in report.coalitions:
        named = ", ".join(f"{threat.name} {threat.names_true:.0%}" for threat in found.threats)
        clients = "client sees" if found.size == 1 else "clients see"
        lines.append(
            f"{found.size} {clients} {found.rounds_seen:.0%} of the rounds; names the true model: "
            f"{named}."
        )
    return lines
