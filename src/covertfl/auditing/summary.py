"""The audits of several runs combined: shares with intervals, verdicts, the bound and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from covertfl.auditing.coalitions import Coalition, CoalitionFinding, summarise_coalitions
from covertfl.auditing.mismatch import Mismatch, check_model
from covertfl.auditing.run import RunAudit
from covertfl.auditing.threats import (
    BASE_LINE,
    Interval,
    Threat,
    average_curves,
    compute_mean,
    summarise_findings,
    to_list,
)
from covertfl.decision.problem import FiniteHorizon
from covertfl.eavesdroppers.registry import EAVESDROPPERS, find_class
from covertfl.evaluation.schedule import ScheduleBound, bound_best_eavesdropper, guessing_bound
from covertfl.intervals import t_interval
from covertfl.runs.state import Federation
from covertfl.tasks.scores import average_known

BOUND_SAMPLES = 2000
# Share of queries that must be on the right trajectory for the audit to be meaningful.
LEAST_SEPARATED = 0.99
# Share of runs named from which a number of fresh examples is enough.
ENOUGH = 0.9
# Every eavesdropper knows the scheme and sees the queries; what it has besides.
TIERS = {"A": "listener", "B": "public set", "C": "client", "D": "fresh data"}


@dataclass(frozen=True)
class LearnerFigures:
    """What the learner achieved and revealed, as means over runs; None if unknown.

    Parameters
    ----------
    accuracy, interval : of the true weights at the end, 95% (Student's t over runs)
    balanced_accuracy, auc, f1 : further scores of the true weights at the end (`tasks.scores`)
    completion : share of runs that made all updates
    exposure, exposure_by_round : share of learning queries, in all rounds and so far
    """

    accuracy: float | None
    interval: Interval | None
    completion: float | None
    exposure: float | None
    exposure_by_round: tuple[float, ...] | None
    accuracy_by_round: tuple[float, ...] | None
    balanced_accuracy: float | None = None
    auc: float | None = None
    f1: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(self).items()
        }


@dataclass(frozen=True)
class Separation:
    """Trajectories found in each run, and the share of queries that are on the right one."""

    num_trajectories: tuple[int, ...]
    right_share: float | None  # None if unknown

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        return {"trajectories": list(self.num_trajectories), "right_share": self.right_share}


@dataclass(frozen=True)
class AuditSummary:
    """What eavesdroppers get from runs that differ in their seeds only.

    Parameters
    ----------
    bound : largest probability of naming the true trajectory by the schedule alone (formula F4 of
        docs/paper_map.md), None if it does not apply
    mismatch : test of the rounds against the problem's oracle, None if it cannot be made
    notes : reasons to read the figures with care
    scheme : of the runs, None if it is not known
    trajectories : rounds of the queries on each trajectory of a single run; empty for several
    not_tried : what eavesdroppers that were not tried would need, by name
    """

    num_runs: int
    learner: LearnerFigures
    threats: tuple[Threat, ...]
    bound: ScheduleBound | None
    coalitions: tuple[Coalition, ...]
    separation: Separation
    mismatch: Mismatch | None
    notes: tuple[str, ...]
    scheme: str | None = None
    trajectories: tuple[tuple[int, ...], ...] = ()
    not_tried: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_public(self) -> bool:
        """Return whether there is a single run, of which the true trajectory is unknown."""
        return self.num_runs == 1 and self.separation.right_share is None

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Return the eavesdroppers by tier: listener, public set, client, fresh data."""
        return group_by_tier(self.threats)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `covertfl audit --json` and of audit.json."""
        bound = None
        if self.bound is not None:
            interval = [self.bound.low, self.bound.high]
            bound = {"value": self.bound.value, "interval": interval}
        return {
            "runs": self.num_runs,
            "scheme": self.scheme,
            "learner": self.learner.to_dict(),
            "eavesdroppers": {threat.name: threat.to_dict() for threat in self.threats},
            "tiers": {tier.letter: tier.to_dict() for tier in self.tiers},
            "bound": bound,
            "coalitions": {str(each.size): each.to_dict() for each in self.coalitions} or None,
            "separation": self.separation.to_dict(),
            "mismatch": None if self.mismatch is None else self.mismatch.to_dict(),
            "warnings": list(self.notes),
            "trajectories": [
                {"queries": len(rounds), "first_round": rounds[0], "last_round": rounds[-1]}
                for rounds in self.trajectories
            ],
            "not_tried": dict(self.not_tried),
        }


def summarise_audits(
    runs: Sequence[RunAudit],
    coalitions: Sequence[Sequence[CoalitionFinding]] = (),
    *,
    simulated: Sequence[RunAudit] = (),
    notes: Sequence[str] = (),
) -> AuditSummary:
    """Combine the audits of runs that differ in their seeds only, and their coalitions.

    Parameters
    ----------
    simulated : audits of simulated runs of the same settings, to compare a single run with
    notes : further reasons to read the figures with care
    """
    federation = next((run.federation for run in runs if run.federation is not None), None)
    records = [run.private for run in runs if run.private]
    mismatch = None
    if federation is not None and records:
        mismatch = check_model(federation.problem.oracle, records)
    separation = _summarise_separation(runs)
    known = next((run.trajectories for run in runs if run.trajectories is not None), 2)
    guess = 1.0 / known
    return AuditSummary(
        num_runs=len(runs),
        learner=_summarise_learner(runs),
        threats=_compare(_summarise_threats(runs, guess), _summarise_threats(simulated, guess)),
        bound=None if federation is None else _find_bound(federation),
        coalitions=summarise_coalitions(coalitions),
        separation=separation,
        mismatch=mismatch,
        notes=(*_list_notes(runs, separation, mismatch), *notes),
        scheme=None if federation is None else federation.settings.sections.scheme,
        trajectories=runs[0].seen if len(runs) == 1 else (),
        not_tried={name: need for run in runs for name, need in run.lacking.items()},
    )


def _summarise_learner(runs: Sequence[RunAudit]) -> LearnerFigures:
    known = [run.summary for run in runs if run.summary is not None]
    accuracies = [one.learner_accuracy for one in known if one.learner_accuracy is not None]
    return LearnerFigures(
        accuracy=compute_mean(accuracies),
        interval=t_interval(accuracies)[1:] if len(accuracies) > 1 else None,
        completion=compute_mean([summary.completed for summary in known]),
        exposure=compute_mean([summary.exposure for summary in known]),
        exposure_by_round=average_curves([_list_exposures(run) for run in runs]),
        accuracy_by_round=average_curves([run.learner for run in runs]),
        balanced_accuracy=average_known([one.learner_balanced_accuracy for one in known]),
        auc=average_known([one.learner_auc for one in known]),
        f1=average_known([one.learner_f1 for one in known]),
    )


def _list_exposures(run: RunAudit) -> list[float]:
    """Return the share of learning queries so far, by round."""
    learned = np.array([record["action"] == "learn" for record in run.private], dtype=float)
    shares: list[float] = (np.cumsum(learned) / np.arange(1, len(learned) + 1)).tolist()
    return shares


def _summarise_threats(runs: Sequence[RunAudit], guess: float) -> tuple[Threat, ...]:
    names = dict.fromkeys([*EAVESDROPPERS, *(name for run in runs for name in run.findings)])
    found = {name: [run.findings[name] for run in runs if name in run.findings] for name in names}
    alone = compute_mean([one.accuracy[-1] for one in found[BASE_LINE] if one.accuracy])
    placed = _summarise_separation(runs).right_share
    return tuple(
        summarise_findings(name, findings, alone, guess, placed)
        for name, findings in found.items()
        if findings
    )


def _compare(threats: Sequence[Threat], simulated: Sequence[Threat]) -> tuple[Threat, ...]:
    """Return what eavesdroppers get, each with what it gets from simulated runs."""
    known = {threat.name: threat for threat in simulated}
    return tuple(replace(threat, simulated=known.get(threat.name)) for threat in threats)


def _find_bound(federation: Federation) -> ScheduleBound | None:
    """Bound the best eavesdropper by schedule, where the problem and policy were those solved.

    Formula F4 of docs/paper_map.md, for a finite horizon.  Where all trajectories have the same
    schedule, nobody does better than a guess.
    """
    known = federation.scheme.describe()
    if known.is_symmetric:
        guess = guessing_bound(known.trajectories)
        return ScheduleBound(guess, guess, guess, num_samples=0, exact=True)
    is_replayed = federation.recorded is not None
    if not isinstance(federation.problem, FiniteHorizon) or not known.has_schedule or is_replayed:
        return None
    return bound_best_eavesdropper(
        federation.problem,
        known.policy,
        num_samples=BOUND_SAMPLES,
        generator=np.random.default_rng(0),
    )


def _summarise_separation(runs: Sequence[RunAudit]) -> Separation:
    known = [run for run in runs if run.misplaced is not None]
    queries = sum(run.num_queries for run in known)
    right = queries - sum(run.misplaced or 0 for run in known)
    found = tuple(run.num_trajectories for run in runs)
    return Separation(found, right / queries if queries else None)


def _list_notes(
    runs: Sequence[RunAudit], separation: Separation, mismatch: Mismatch | None
) -> list[str]:
    notes = []
    unjudged = sum(run.misplaced is None for run in runs)
    if unjudged:
        of_all = "" if unjudged == len(runs) else f" of {unjudged} of the runs"
        unknown = "who is right"
        if any(run.federation is None for run in runs):
            unknown += ", and how good weights are,"
        notes.append(f"Only public records{of_all} were there: {unknown} is not known.")
        if any("a model" in need for run in runs for need in run.lacking.values()):
            notes.append(
                "--task names a function that returns a task; eavesdroppers then have its model "
                "and its public set."
            )
    if any(run.federation is None and run.private for run in runs):
        notes.append(
            "The task was made in Python and is not in the folder: how good weights are, and what "
            "eavesdroppers with data or the scheme get, is not known; --task names the function "
            "that makes it."
        )
    share = separation.right_share
    if share is not None and share < LEAST_SEPARATED:
        notes.append(
            f"Trajectories were told apart for {share:.1%} of queries only; an eavesdropper that "
            "separates better gets more than this audit says."
        )
    if mismatch is not None and mismatch.is_warned:
        notes.append(
            f"The rounds do not look like the oracle that the policy was solved for (G = "
            f"{mismatch.statistic:.1f} with {mismatch.degrees} degrees of freedom, "
            f"p = {mismatch.p_value:.2g})."
        )
    if any(run.summary is None and run.federation is not None for run in runs):
        notes.append("Some runs have not ended; the audit covers the rounds so far.")
    return notes


@dataclass(frozen=True)
class Tier:
    """The eavesdroppers of one tier.

    Parameters
    ----------
    letter : key of `TIERS`
    threats : one for each eavesdropper
    """

    letter: str
    threats: tuple[Threat, ...]

    @property
    def title(self) -> str:
        """Return the tier's letter and what its eavesdroppers have."""
        return f"{self.letter} {TIERS[self.letter]}"

    @property
    def best(self) -> Threat | None:
        """Return the one that names the true model most often, None if nobody can be judged.

        Of a single run, it is the one that does so most often in simulated runs.
        """
        judged = [each for each in self.threats if each.is_judged and not each.is_base_line]
        return max(judged, key=_rank) if judged else None

    def describe(self) -> str:
        """Return who is the best and what it gets, in a sentence."""
        best = self.best
        if best is None:
            return f"{self.title}: {self._describe_beliefs()}."
        told = _choose_figures(best)
        if told is best and best.conviction is not None:
            right = best.conviction.judge("is right", "is wrong", "cannot choose")
            found = f"{right} in this run"
        else:
            runs = "simulated runs" if told is not best else "runs"
            found = f"names the true model in {told.format_share()} of {told.num_runs} {runs}"
        number = sum(not threat.is_base_line for threat in self.threats)
        who = f"the best of {number}, {best.name}," if number > 1 else best.name
        enough = f"  {self._describe_enough()}" if self.letter == "D" else ""
        return f"{self.title}: {who} {found}{_describe_accuracy(told)}.{enough}"

    def _describe_beliefs(self) -> str:
        """Return what is believed where nobody can be judged, or why nothing is."""
        if any(threat.names_true is not None for threat in self.threats):
            return "nobody can be judged: too few queries are on their right trajectory"
        listed = [each.conviction for each in self.threats if not each.is_base_line]
        found = [one for one in listed if one is not None]
        if not found:
            return "nobody can be judged: which trajectory is true is not in the public records"
        votes = Counter(one.favourites[0] for one in found if len(one.favourites) == 1)
        parts = [f"trajectory {key + 1} convinces {votes[key]}" for key in sorted(votes)]
        undecided = len(found) - votes.total()
        parts += [f"{undecided} cannot choose"] if undecided else []
        return f"of {len(found)} eavesdroppers, {', '.join(parts)}"

    def _describe_enough(self) -> str:
        """Return how many labelled examples suffice, and what they are worth without listening."""
        sizes = {
            int(getattr(find_class(threat.name), "number", 0)): _choose_figures(threat)
            for threat in self.threats
            if threat.is_judged and hasattr(find_class(threat.name), "number")
        }
        for number, threat in sorted(sizes.items()):
            if threat.names_true is not None and threat.names_true >= ENOUGH:
                alone = ""
                if threat.final_accuracy is not None and threat.gain is not None:
                    base = threat.final_accuracy - threat.gain
                    alone = f"; training alone on them gives {base:.3f}"
                return f"{number} labelled examples are enough to be right in 90% of runs{alone}."
        most = max(sizes, default=0)
        return f"{most} labelled examples are not enough to be right in 90% of runs."

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        best = self.best
        told = None if best is None else _choose_figures(best)
        return {
            "title": self.title,
            "best": None if best is None else best.name,
            "names_true": None if told is None else told.names_true,
            "interval": None if told is None else to_list(told.interval),
            "final_accuracy": None if told is None else told.final_accuracy,
            "gain": None if told is None else told.gain,
            "runs": None if told is None else told.num_runs,
            "verdict": self.describe(),
        }


def _choose_figures(threat: Threat) -> Threat:
    """Return the figures of simulated runs where there are any: one run says little."""
    simulated = threat.simulated
    return simulated if simulated is not None and simulated.is_judged else threat


def _rank(threat: Threat) -> tuple[float, float]:
    told = _choose_figures(threat)
    assert told.names_true is not None
    return told.names_true, told.final_accuracy or 0.0


def _describe_accuracy(threat: Threat) -> str:
    if threat.final_accuracy is None:
        return ""
    gain = "" if threat.gain is None else f", gain {threat.gain:+.3f}"
    return f"; accuracy {threat.final_accuracy:.3f}{gain}"


def group_by_tier(threats: Sequence[Threat]) -> tuple[Tier, ...]:
    """Return the tiers that have eavesdroppers, in order."""
    return tuple(
        Tier(letter, found)
        for letter in TIERS
        if (found := tuple(threat for threat in threats if threat.tier == letter))
    )
