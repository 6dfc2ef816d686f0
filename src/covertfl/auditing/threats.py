"""What one kind of eavesdropper gets, over several runs, and the verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.auditing.findings import (
    Finding,
    Interval,
    compute_naming_share,
    list_final_accuracies,
)
from covertfl.eavesdroppers.registry import BY_SCHEDULE, EAVESDROPPERS
from covertfl.intervals import t_interval

BASE_LINE = "train-alone"
# Shares of runs, naming the true trajectory, at which a verdict gets its stronger words.
DEFEATED_FROM, MISLED_BELOW = 0.9, 0.1
LEAST_GAIN = 0.01  # in accuracy, that is worth a mention


@dataclass(frozen=True)
class Threat:
    """What one kind of eavesdropper gets, over all runs.

    Parameters
    ----------
    name : in the registry of eavesdroppers
    threat : what it sees, knows and owns, in a sentence
    names_true, interval : share of runs in which it names the true trajectory, 95% (Wilson); None
        if unknown
    final_accuracy, peak_accuracy : means over runs of the accuracy of its last estimate, and of
        the largest over rounds; None if unknown
    final_interval : of the final accuracy, 95% (Student's t over runs), None for a single run
    advantage : final accuracy less that of `train-alone`, None if unknown
    guess : probability of naming the true trajectory by a uniform guess
    accuracy_by_round : mean over runs, None if unknown
    """

    name: str
    threat: str
    names_true: float | None
    interval: Interval | None
    final_accuracy: float | None
    peak_accuracy: float | None
    final_interval: Interval | None
    advantage: float | None
    guess: float = 0.5
    accuracy_by_round: tuple[float, ...] | None = None

    @property
    def is_by_schedule(self) -> bool:
        """Return whether it uses nothing but which trajectory each query belongs to."""
        return self.name in BY_SCHEDULE

    @property
    def verdict(self) -> str:
        """Return what the figures mean, in plain words."""
        if self.name == BASE_LINE:
            return "the base line: what its own data is worth without listening"
        if self.names_true is None or self.interval is None:
            return "cannot be judged: which trajectory is true is not in the public records"
        named = f"names the true model in {self.names_true:.0%} of runs"
        text = f"{self._compare_with_guess(self.names_true, *self.interval)}: {named}"
        if self.advantage is None:
            return text
        gain = "nothing" if self.advantage < LEAST_GAIN else f"{self.advantage:.2f}"
        return f"{text} and gains {gain} over training alone"

    def _compare_with_guess(self, share: float, low: float, high: float) -> str:
        if low > self.guess:
            return "defeats the scheme" if share >= DEFEATED_FROM else "does better than a guess"
        if high < self.guess:
            return "is misled" if share <= MISLED_BELOW else "does worse than a guess"
        return "no clear difference from a guess"

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        curve = self.accuracy_by_round
        return {
            "threat": self.threat,
            "names_true": self.names_true,
            "interval": None if self.interval is None else list(self.interval),
            "final_accuracy": self.final_accuracy,
            "final_interval": None if self.final_interval is None else list(self.final_interval),
            "worst_accuracy": self.peak_accuracy,
            "advantage": self.advantage,
            "by_schedule": self.is_by_schedule,
            "verdict": self.verdict,
            "accuracy_by_round": None if curve is None else list(curve),
        }


def summarise_findings(
    name: str, findings: Sequence[Finding], alone: float | None, guess: float
) -> Threat:
    """Combine what one kind of eavesdropper found in several runs.

    Parameters
    ----------
    alone : mean final accuracy of `train-alone`, None if unknown
    guess : probability of naming the true trajectory by a uniform guess
    """
    curves = [finding.accuracy for finding in findings if finding.accuracy]
    finals = list_final_accuracies(findings)
    final = float(np.mean(finals)) if finals else None
    names_true, interval = compute_naming_share(findings)
    return Threat(
        name=name,
        threat=EAVESDROPPERS[name].threat,  # type: ignore[attr-defined]
        names_true=names_true,
        interval=interval,
        final_accuracy=final,
        peak_accuracy=float(np.mean([max(curve) for curve in curves])) if curves else None,
        final_interval=t_interval(finals)[1:] if len(finals) > 1 else None,
        advantage=None if final is None or alone is None else final - alone,
        guess=guess,
        accuracy_by_round=average_curves(curves),
    )


def average_curves(curves: Sequence[Sequence[float]]) -> tuple[float, ...] | None:
    """Return means by round, over the rounds that all curves have; None if none has any."""
    kept = [curve for curve in curves if len(curve)]
    if not kept:
        return None
    length = min(len(curve) for curve in kept)
    return tuple(float(value) for value in np.mean([curve[:length] for curve in kept], axis=0))
