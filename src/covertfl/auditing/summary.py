"""The audit of several runs put together: chances with intervals, verdicts, and the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.auditing.coalitions import CoalitionFinding, describe_coalitions
from covertfl.auditing.mismatch import Mismatch, check_model
from covertfl.auditing.run import RunAudit
from covertfl.decision.problem import FiniteHorizon
from covertfl.eavesdroppers.registry import BY_SCHEDULE, EAVESDROPPERS
from covertfl.evaluation.schedule import bound_best_eavesdropper
from covertfl.intervals import t_interval, wilson_interval
from covertfl.runs.federation import Federation

BOUND_SAMPLES = 2000
# Share of queries that must be on the right trajectory for the audit to mean anything.
LEAST_SEPARATED = 0.99
# Chances of naming the true trajectory from which on a verdict says so.
DEFEATED_FROM, MISLED_BELOW = 0.9, 0.1


@dataclass(frozen=True)
class Threat:
    """What one kind of eavesdropper gets, over all runs.

    Parameters
    ----------
    name, threat : which, and what it sees, knows and owns
    names_true, interval : chance of naming the true trajectory, 95% (Wilson); None if unknown
    final_accuracy, worst_accuracy : means over runs of the last estimate and of the best over
        rounds, which is the learner's worst; None if unknown
    final_interval : 95% (t over runs), None for a single run
    advantage : final accuracy over `train-alone`, None if unknown
    guess : chance of naming the true trajectory without knowing anything
    """

    name: str
    threat: str
    names_true: float | None
    interval: tuple[float, float] | None
    final_accuracy: float | None
    worst_accuracy: float | None
    final_interval: tuple[float, float] | None
    advantage: float | None
    guess: float = 0.5

    @property
    def verdict(self) -> str:
        """What it means, in plain words."""
        if self.name == "train-alone":
            return "the base line: what its own data is worth without listening"
        if self.names_true is None or self.interval is None:
            return "cannot be judged: which trajectory is true is not in the public records"
        low, high = self.interval
        words = "no clear difference from a guess"
        if low > self.guess:
            defeats = self.names_true >= DEFEATED_FROM
            words = "defeats the scheme" if defeats else "does better than a guess"
        elif high < self.guess:
            misled = self.names_true <= MISLED_BELOW
            words = "is misled" if misled else "does worse than a guess"
        text = f"{words}: names the true model in {self.names_true:.0%} of runs"
        if self.advantage is None:
            return text
        gained = (
            "gains nothing over" if self.advantage < 0.01 else f"gains {self.advantage:.2f} over"
        )
        return f"{text} and {gained} training alone"


@dataclass(frozen=True, eq=False)
class AuditReport:
    """The audit of several runs.

    Parameters
    ----------
    runs : that were audited
    threats : by eavesdropper
    bound : F4's chance and interval for eavesdroppers by schedule, None where it does not apply
    mismatch : test of the rounds against the problem, None where it cannot be made
    coalitions : of each run
    """

    runs: tuple[RunAudit, ...]
    threats: tuple[Threat, ...]
    bound: tuple[float, float, float] | None
    mismatch: Mismatch | None
    coalitions: tuple[Sequence[CoalitionFinding], ...] = ()


def put_together(
    runs: Sequence[RunAudit],
    coalitions: Sequence[Sequence[CoalitionFinding]] = (),
    *,
    seed: int = 0,
) -> AuditReport:
    """Sum up the audits of runs that differ in nothing but their seeds."""
    names = [name for name in EAVESDROPPERS if any(name in run.findings for run in runs)]
    alone = _mean_final(runs, "train-alone")
    threats = tuple(_describe_threat(runs, name, alone) for name in names)
    bound, mismatch = _find_bound(runs, seed), _find_mismatch(runs)
    return AuditReport(tuple(runs), threats, bound, mismatch, tuple(coalitions))


def _mean_final(runs: Sequence[RunAudit], name: str) -> float | None:
    finals = [
        run.findings[name].accuracy[-1]  # type: ignore[index]
        for run in runs
        if name in run.findings and run.findings[name].accuracy
    ]
    return float(np.mean(finals)) if finals else None


def _describe_threat(runs: Sequence[RunAudit], name: str, alone: float | None) -> Threat:
    findings = [run.findings[name] for run in runs if name in run.findings]
    named = [finding.named for finding in findings if finding.named is not None]
    curves = [finding.accuracy for finding in findings if finding.accuracy]
    finals = [curve[-1] for curve in curves]
    interval = None
    if named:
        low, high = wilson_interval(sum(named), len(named))
        interval = (float(low), float(high))
    final = float(np.mean(finals)) if finals else None
    return Threat(
        name=name,
        threat=EAVESDROPPERS[name].threat,  # type: ignore[attr-defined]
        names_true=float(np.mean(named)) if named else None,
        interval=interval,
        final_accuracy=final,
        worst_accuracy=float(np.mean([max(curve) for curve in curves])) if curves else None,
        final_interval=t_interval(finals)[1:] if len(finals) > 1 else None,
        advantage=None if final is None or alone is None else final - alone,
        guess=_find_guess(runs),
    )


def _find_federation(runs: Sequence[RunAudit]) -> Federation | None:
    return next((run.federation for run in runs if run.federation is not None), None)


def _find_guess(runs: Sequence[RunAudit]) -> float:
    federation = _find_federation(runs)
    return 0.5 if federation is None else 1.0 / (1 + federation.responder.num_decoys)


def _find_bound(runs: Sequence[RunAudit], seed: int) -> tuple[float, float, float] | None:
    """F4, for a horizon with two trajectories whose rounds and policy are the problem's."""
    federation = _find_federation(runs)
    if federation is None or not isinstance(federation.problem, FiniteHorizon):
        return None
    refreshed = federation.settings.sections.policy.refresh is not None
    if federation.responder.num_decoys != 1 or federation.recorded is not None or refreshed:
        return None
    found = bound_best_eavesdropper(
        federation.problem,
        federation.policy.policy,
        num_samples=BOUND_SAMPLES,
        generator=np.random.default_rng(seed),
    )
    return found.value, found.low, found.high


def _find_mismatch(runs: Sequence[RunAudit]) -> Mismatch | None:
    federation = _find_federation(runs)
    records = [run.private for run in runs if run.private]
    if federation is None or not records:
        return None
    return check_model(federation.problem.oracle, records)


def describe_audit(report: AuditReport) -> dict[str, Any]:
    """The audit for `--json`."""
    runs = report.runs
    known = [run for run in runs if run.summary is not None]
    accuracies = [
        run.summary["learner_accuracy"]
        for run in known
        if run.summary is not None and run.summary["learner_accuracy"] is not None
    ]
    return {
        "runs": len(runs),
        "learner": {
            "accuracy": float(np.mean(accuracies)) if accuracies else None,
            "interval": list(t_interval(accuracies)[1:]) if len(accuracies) > 1 else None,
            "completion": _mean_of(known, "completed"),
            "exposure": _mean_of(known, "exposure"),
            "exposure_by_round": _exposure_by_round(runs),
            "accuracy_by_round": _mean_curve([run.learner for run in runs]),
        },
        "eavesdroppers": {
            threat.name: {
                "threat": threat.threat,
                "names_true": threat.names_true,
                "interval": None if threat.interval is None else list(threat.interval),
                "final_accuracy": threat.final_accuracy,
                "final_interval": None
                if threat.final_interval is None
                else list(threat.final_interval),
                "worst_accuracy": threat.worst_accuracy,
                "advantage": threat.advantage,
                "by_schedule": threat.name in BY_SCHEDULE,
                "verdict": threat.verdict,
                "accuracy_by_round": _mean_curve(
                    [
                        run.findings[threat.name].accuracy or ()
                        for run in runs
                        if threat.name in run.findings
                    ]
                ),
            }
            for threat in report.threats
        },
        "bound": None
        if report.bound is None
        else {"value": report.bound[0], "interval": list(report.bound[1:])},
        "coalitions": describe_coalitions(report.coalitions),
        "separation": describe_separation(runs),
        "mismatch": None
        if report.mismatch is None
        else {
            "statistic": min(report.mismatch.statistic, 1e308),
            "degrees": report.mismatch.degrees,
            "p_value": report.mismatch.p_value,
            "rounds": report.mismatch.rounds,
        },
        "warnings": list_warnings(report),
    }


def _mean_of(runs: Sequence[RunAudit], key: str) -> float | None:
    values = [float(run.summary[key]) for run in runs if run.summary is not None]
    return float(np.mean(values)) if values else None


def _mean_curve(curves: Sequence[Sequence[float]]) -> list[float] | None:
    """Means by round, over the rounds that all have."""
    kept = [curve for curve in curves if len(curve)]
    if not kept:
        return None
    length = min(len(curve) for curve in kept)
    return [float(value) for value in np.mean([curve[:length] for curve in kept], axis=0)]


def _exposure_by_round(runs: Sequence[RunAudit]) -> list[float] | None:
    curves = []
    for run in runs:
        learned = np.array([record["action"] == "learn" for record in run.private], dtype=float)
        curves.append((np.cumsum(learned) / np.arange(1, len(learned) + 1)).tolist())
    return _mean_curve(curves)


def describe_separation(runs: Sequence[RunAudit]) -> dict[str, Any]:
    """How well trajectories were told apart."""
    known = [run for run in runs if run.misplaced is not None]
    queries = sum(run.num_queries for run in known)
    right = queries - sum(run.misplaced or 0 for run in known)
    return {
        "trajectories": [run.num_trajectories for run in runs],
        "right_share": right / queries if queries else None,
    }


def list_warnings(report: AuditReport) -> list[str]:
    """What stands against taking the audit at its word."""
    warnings = []
    share = describe_separation(report.runs)["right_share"]
    unjudged = sum(run.misplaced is None for run in report.runs)
    if unjudged:
        of_all = "" if unjudged == len(report.runs) else f" of {unjudged} of the runs"
        unknown = "who is right"
        if any(run.federation is None for run in report.runs):
            unknown += ", and how good weights are,"
        warnings.append(f"Only public records{of_all} were there: {unknown} is not known.")
    if any(run.federation is None and run.private for run in report.runs):
        warnings.append(
            "The task was made in Python and is not in the folder: how good weights are, and what "
            "eavesdroppers with data or the scheme get, is not known."
        )
    if share is not None and share < LEAST_SEPARATED:
        warnings.append(
            f"Trajectories were told apart for {share:.1%} of queries only; an eavesdropper that "
            "separates better gets more than this audit says."
        )
    if report.mismatch is not None and report.mismatch.is_warned:
        warnings.append(
            f"The rounds do not look like the oracle that the policy was solved for (G = "
            f"{report.mismatch.statistic:.1f} with {report.mismatch.degrees} degrees of freedom, "
            f"p = {report.mismatch.p_value:.2g})."
        )
    if any(run.summary is None and run.federation is not None for run in report.runs):
        warnings.append("Some runs have not ended; the audit covers the rounds so far.")
    return warnings
