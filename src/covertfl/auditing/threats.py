"""What one kind of eavesdropper concludes from one run, and what it gets over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covertfl.eavesdroppers.eavesdropper import Eavesdropper, SeenQuery
from covertfl.eavesdroppers.registry import BY_SCHEDULE, EAVESDROPPERS
from covertfl.intervals import t_interval, wilson_interval
from covertfl.kernels.weights import Vector, name_content
from covertfl.runs.clients import ClientResponder

BASE_LINE = "train-alone"
# Shares of runs, naming the true trajectory, at which a verdict gets its stronger words.
DEFEATED_FROM, MISLED_BELOW = 0.9, 0.1
LEAST_GAIN = 0.01  # in accuracy, that is worth a mention
Interval = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Finding:
    """The conclusion of one eavesdropper about one run.

    Parameters
    ----------
    named : 1 if its last belief is in the true trajectory, 0 if not, a share if several tie; None
        if the true trajectory is unknown
    accuracy : (N,) of its estimate after each round, None if there is nothing to score with
    belief : over trajectories, after the last round
    """

    named: float | None
    accuracy: tuple[float, ...] | None
    belief: tuple[float, ...]


class ScoreCache:
    """Validation accuracies of weights, each computed once."""

    def __init__(self, clients: ClientResponder) -> None:
        self._clients = clients
        self._known: dict[str, float] = {}

    def score(self, candidates: Sequence[Vector]) -> float:
        """Return the mean accuracy of an eavesdropper's estimates."""
        return float(np.mean([self._score_one(weights) for weights in candidates]))

    def _score_one(self, weights: Vector) -> float:
        key = name_content(weights.tobytes())  # the weights themselves would fill the memory
        if key not in self._known:
            self._known[key] = self._clients.score(weights)
        return self._known[key]


def listen(
    eavesdropper: Eavesdropper,
    queries: Sequence[SeenQuery],
    truth: Mapping[int, bool] | None,
    scores: ScoreCache | None,
) -> Finding:
    """Show an eavesdropper the queries one by one and return its finding.

    Parameters
    ----------
    truth : whether each trajectory is the true one, None if unknown
    scores : of estimates, None if there is nothing to score with
    """
    curve = []
    for query in queries:
        eavesdropper.observe(query)
        if scores is not None:
            curve.append(scores.score(eavesdropper.estimate()))
    belief = eavesdropper.belief()
    named = None
    if truth is not None:
        favourites = np.flatnonzero(belief >= belief.max() * (1.0 - 1e-12))
        named = float(np.mean([truth[int(number)] for number in favourites]))
    return Finding(named, tuple(curve) if scores is not None else None, tuple(belief.tolist()))


@dataclass(frozen=True)
class Threat:
    """What one kind of eavesdropper gets, over all runs; a figure is None if it is unknown.

    Parameters
    ----------
    name : in the registry of eavesdroppers
    threat : what it sees, knows and owns, in a sentence
    names_true, interval : share of runs in which it names the true trajectory, 95% (Wilson)
    final_accuracy, peak_accuracy : means over runs of the accuracy of its last estimate, and of
        the largest over rounds
    final_interval : of the final accuracy, 95% (Student's t over runs), None for a single run
    advantage : final accuracy less that of `train-alone`
    guess : probability of naming the true trajectory by a uniform guess
    accuracy_by_round : mean over runs
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
    accuracy_by_round: tuple[float, ...] | None = field(default=None, repr=False)

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
        return {
            "threat": self.threat,
            "names_true": self.names_true,
            "interval": to_list(self.interval),
            "final_accuracy": self.final_accuracy,
            "final_interval": to_list(self.final_interval),
            "worst_accuracy": self.peak_accuracy,
            "advantage": self.advantage,
            "by_schedule": self.is_by_schedule,
            "verdict": self.verdict,
            "accuracy_by_round": to_list(self.accuracy_by_round),
        }


def to_list(values: Sequence[float] | None) -> list[float] | None:
    """Return numbers as JSON holds them."""
    return None if values is None else list(values)


def summarise_findings(
    name: str, findings: Sequence[Finding], alone: float | None, guess: float = 0.5
) -> Threat:
    """Combine what one kind of eavesdropper found in several runs.

    Parameters
    ----------
    alone : mean final accuracy of `train-alone`, None if unknown
    guess : probability of naming the true trajectory by a uniform guess
    """
    curves = [finding.accuracy for finding in findings if finding.accuracy]
    finals = [curve[-1] for curve in curves]
    final = compute_mean(finals)
    named = [finding.named for finding in findings if finding.named is not None]
    interval = None
    if named:
        low, high = wilson_interval(sum(named), len(named))
        interval = float(low), float(high)
    return Threat(
        name=name,
        threat=EAVESDROPPERS[name].threat,  # type: ignore[attr-defined]
        names_true=compute_mean(named),
        interval=interval,
        final_accuracy=final,
        peak_accuracy=compute_mean([max(curve) for curve in curves]),
        final_interval=t_interval(finals)[1:] if len(finals) > 1 else None,
        advantage=None if final is None or alone is None else final - alone,
        guess=guess,
        accuracy_by_round=average_curves(curves),
    )


def compute_mean(values: Sequence[float]) -> float | None:
    """Return the mean, None if there are no values."""
    return float(np.mean(values)) if values else None


def average_curves(curves: Sequence[Sequence[float]]) -> tuple[float, ...] | None:
    """Return means by round, over the rounds that all curves have; None if none has any."""
    kept = [curve for curve in curves if len(curve)]
    if not kept:
        return None
    length = min(len(curve) for curve in kept)
    return tuple(float(value) for value in np.mean([curve[:length] for curve in kept], axis=0))
