"""What one kind of eavesdropper concludes from one run, and what it gets over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from covertfl.eavesdroppers.eavesdropper import Eavesdropper, SeenQuery
from covertfl.eavesdroppers.registry import BY_SCHEDULE, find_class
from covertfl.errors import InvalidInput
from covertfl.files.text import shorten
from covertfl.intervals import t_interval, wilson_interval
from covertfl.kernels.job import Vector, name_content
from covertfl.runs.engine import Validation
from covertfl.tasks.scores import FURTHER, Scores, average_known, average_scores

BASE_LINE = "train-alone"
# Shares of runs, naming the true trajectory, at which a verdict gets its stronger words.
DEFEATED_FROM, MISLED_BELOW = 0.9, 0.1
LEAST_GAIN = 0.01  # in accuracy, that is worth a mention
# Share of queries that must be on their right trajectory for a verdict.
LEAST_PLACED = 0.9
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
    baseline : accuracy that it would have had without listening, None if unknown
    final : all scores of its last estimate, None if there is nothing to score with
    """

    named: float | None
    accuracy: tuple[float, ...] | None
    belief: tuple[float, ...]
    baseline: float | None = None
    final: Scores | None = None

    @property
    def gain(self) -> float | None:
        """Return the accuracy of its last estimate less what it would have without listening."""
        if not self.accuracy or self.baseline is None:
            return None
        return self.accuracy[-1] - self.baseline


class ScoreCache:
    """Scores of weights on the validation set, each computed once."""

    def __init__(self, validation: Validation) -> None:
        self._validation = validation
        self._known: dict[str, float] = {}
        self._measured: dict[str, Scores] = {}

    def score(self, candidates: Sequence[Vector]) -> float:
        """Return the mean accuracy of an eavesdropper's estimates."""
        return float(np.mean([self._score_one(weights) for weights in candidates]))

    def _score_one(self, weights: Vector) -> float:
        key = name_content(weights.tobytes())  # the weights themselves would fill the memory
        if key not in self._known:
            self._known[key] = self._validation.score(weights)
        return self._known[key]

    def measure(self, candidates: Sequence[Vector]) -> Scores:
        """Return the means of all scores of an eavesdropper's estimates."""
        return average_scores([self._measure_one(weights) for weights in candidates])

    def _measure_one(self, weights: Vector) -> Scores:
        key = name_content(weights.tobytes())
        if key not in self._measured:
            self._measured[key] = self._validation.measure(weights)
        return self._measured[key]


def listen(
    eavesdropper: Eavesdropper,
    queries: Sequence[SeenQuery],
    truth: Mapping[int, bool] | None,
    scores: ScoreCache | None,
    *,
    trajectories: int | None = None,
    by_round: bool = True,
) -> Finding:
    """Show an eavesdropper the queries one by one and return its finding.

    Parameters
    ----------
    truth : whether each trajectory is the true one, None if unknown
    scores : of estimates, None if there is nothing to score with
    trajectories : number of trajectories of the run (K); None for as many as were found
    by_round : whether estimates are scored after every round, or after the last one only
    """
    curve, final = [], None
    for query in queries:
        eavesdropper.observe(query)
        is_last = query is queries[-1]
        if scores is not None and (by_round or is_last):
            estimate = eavesdropper.estimate()
            curve.append(scores.score(estimate))
            final = scores.measure(estimate) if is_last else None
    belief = read_belief(eavesdropper, 1 + max(query.trajectory for query in queries))
    named = None if truth is None else judge_belief(belief, truth, trajectories)
    return Finding(named, tuple(curve) if scores is not None else None, belief, final=final)


def read_belief(eavesdropper: Eavesdropper, number: int) -> tuple[float, ...]:
    """Return a belief over a number of trajectories; raise InvalidInput if it is none."""
    belief = np.asarray(eavesdropper.belief(), dtype=np.float64)
    if belief.shape != (number,) or not (belief >= 0.0).all() or abs(belief.sum() - 1.0) > 1e-6:
        raise InvalidInput(
            f"belief of {type(eavesdropper).__name__} must be probabilities of the {number} "
            f"trajectories seen, got {shorten(belief.tolist())}"
        )
    return tuple(belief.tolist())


def find_favourites(belief: Sequence[float]) -> list[int]:
    """Return the most probable trajectories; several where they tie."""
    least = max(belief) * (1.0 - 1e-12)
    return [number for number, prob in enumerate(belief) if prob >= least]


def judge_belief(
    belief: Sequence[float], truth: Mapping[int, bool], trajectories: int | None = None
) -> float:
    """Return the probability that a choice among the most probable trajectories is right.

    Who cannot choose at all guesses, which is right with probability 1/K.
    """
    favourites = find_favourites(belief)
    if trajectories is not None and len(favourites) == len(belief) > 1:
        return 1.0 / trajectories
    return float(np.mean([truth[number] for number in favourites]))


@dataclass(frozen=True)
class Conviction:
    """What an eavesdropper believes of a single run.

    Parameters
    ----------
    favourites : most probable trajectories, numbered 0, 1, ... in the order of their first queries
    probability : that it gives to each of them
    num_trajectories : number of trajectories seen
    named : whether its choice is right, 1 or 0; a share if several tie; None if unknown
    """

    favourites: tuple[int, ...]
    probability: float
    num_trajectories: int
    named: float | None

    def describe(self) -> str:
        """Return the belief, how strong it is, and whether it is right if that is known."""
        if len(self.favourites) > 1:
            numbers = " and ".join(str(number + 1) for number in self.favourites)
            return f"cannot choose: trajectories {numbers} have probability {self.probability:.0%}"
        of_all = f"trajectory {self.favourites[0] + 1} of {self.num_trajectories}"
        if self.named is None:
            return f"believes in {of_all} with probability {self.probability:.0%}"
        whom = "the true model" if self.named == 1.0 else "a decoy"
        return f"believes in {whom}: {of_all} has probability {self.probability:.0%}"

    def judge(self, right: str, wrong: str, tie: str) -> str:
        """Return one of three words, by whether the choice is right; "" if that is unknown."""
        return "" if self.named is None else {1.0: right, 0.0: wrong}.get(self.named, tie)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        return {
            "trajectories": list(self.favourites),
            "probability": self.probability,
            "right": None if self.named is None or len(self.favourites) > 1 else self.named == 1.0,
        }


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
    final_balanced_accuracy, final_auc, final_f1 : means over runs of the further scores of its last
        estimate (`tasks.scores`)
    final_interval : of the final accuracy, 95% (Student's t over runs), None for a single run
    advantage : final accuracy less that of `train-alone`
    guess : probability of naming the true trajectory by a uniform guess
    accuracy_by_round : mean over runs
    tier : "A" listener, "B" public set, "C" client, "D" fresh data
    gain : mean over runs of the final accuracy less what it would have without listening
    num_runs : number of runs
    placed : share of queries that are on their right trajectory, None if unknown
    conviction : what it believes, None for several runs
    simulated : the same for simulated runs of the same settings, None without any
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
    tier: str = "A"
    gain: float | None = None
    num_runs: int = 0
    placed: float | None = None
    conviction: Conviction | None = None
    simulated: Threat | None = None
    final_balanced_accuracy: float | None = None
    final_auc: float | None = None
    final_f1: float | None = None

    @property
    def is_by_schedule(self) -> bool:
        """Return whether it uses nothing but which trajectory each query belongs to."""
        return self.name in BY_SCHEDULE

    @property
    def is_base_line(self) -> bool:
        """Return whether it does not listen, and is what the others are compared with."""
        return self.name == BASE_LINE

    @property
    def verdict(self) -> str:
        """Return what the figures mean, in plain words."""
        if self.is_base_line:
            return "the base line: what its own data is worth without listening"
        if self.names_true is None or self.interval is None:
            unknown = "cannot be judged: which trajectory is true is not in the public records"
            return unknown if self.conviction is None else self.conviction.describe()
        if self.placed is not None and self.placed < LEAST_PLACED:
            return (
                f"cannot be judged: only {self.placed:.0%} of the queries could be placed on the "
                "right trajectory"
            )
        if self.conviction is not None:
            return f"{self.conviction.describe()}{self._describe_simulated()}"
        named = f"names the true model in {self.names_true:.0%} of runs"
        text = f"{self._compare_with_guess(self.names_true, *self.interval)}: {named}"
        if self.advantage is None:
            return text
        gain = "nothing" if self.advantage < LEAST_GAIN else f"{self.advantage:.2f}"
        return f"{text} and gains {gain} over training alone"

    def _describe_simulated(self) -> str:
        simulated = self.simulated
        if simulated is None or simulated.names_true is None:
            return ""
        runs = f"on {simulated.num_runs} simulated runs of the same settings"
        if not simulated.is_judged:
            return f"; {runs} its queries could not be placed on the right trajectories"
        return f"; {runs} it is right in {simulated.format_share()}"

    @property
    def is_judged(self) -> bool:
        """Return whether the truth is known and enough queries are on their right trajectory."""
        return self.names_true is not None and (self.placed is None or self.placed >= LEAST_PLACED)

    def format_share(self) -> str:
        """Return the share of runs in which it names the true trajectory, with its interval."""
        assert self.names_true is not None and self.interval is not None
        low, high = self.interval
        return f"{self.names_true:.0%} [{low:.0%}, {high:.0%}]"

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
            "tier": self.tier,
            "gain": self.gain,
            "belief": None if self.conviction is None else self.conviction.to_dict(),
            "simulated": None if self.simulated is None else self.simulated.to_short_dict(),
            **self.list_scores(),
        }

    def list_scores(self) -> dict[str, float | None]:
        """Return the further scores of its last estimate, by their names in results."""
        return {f"final_{name}": getattr(self, f"final_{name}") for name in FURTHER}

    def to_short_dict(self) -> dict[str, Any]:
        """Return the figures of simulated runs as `covertfl audit --json` shows them."""
        return {
            "runs": self.num_runs,
            "names_true": self.names_true,
            "interval": to_list(self.interval),
            "final_accuracy": self.final_accuracy,
            "gain": self.gain,
            "right_share": self.placed,
            **self.list_scores(),
        }


def to_list(values: Sequence[float] | None) -> list[float] | None:
    """Return numbers as JSON holds them."""
    return None if values is None else list(values)


def summarise_findings(
    name: str,
    findings: Sequence[Finding],
    alone: float | None,
    guess: float = 0.5,
    placed: float | None = None,
) -> Threat:
    """Combine what one kind of eavesdropper found in several runs.

    Parameters
    ----------
    alone : mean final accuracy of `train-alone`, None if unknown
    guess : probability of naming the true trajectory by a uniform guess
    placed : share of queries that are on their right trajectory, None if unknown
    """
    scored = [finding.accuracy for finding in findings if finding.accuracy]
    finals, curves = [one[-1] for one in scored], [one for one in scored if len(one) > 1]
    final = compute_mean(finals)
    named = [finding.named for finding in findings if finding.named is not None]
    interval = None
    if named:
        low, high = wilson_interval(sum(named), len(named))
        interval = float(low), float(high)
    kind = find_class(name)
    measured = [finding.final for finding in findings if finding.final is not None]
    further: dict[str, Any] = {
        f"final_{score}": average_known([getattr(one, score) for one in measured])
        for score in FURTHER
    }
    return Threat(
        name=name,
        threat=kind.threat,
        names_true=compute_mean(named),
        interval=interval,
        final_accuracy=final,
        peak_accuracy=compute_mean([max(curve) for curve in curves]),
        final_interval=t_interval(finals)[1:] if len(finals) > 1 else None,
        advantage=None if final is None or alone is None else final - alone,
        guess=guess,
        accuracy_by_round=average_curves(curves),
        tier=kind.tier,
        gain=compute_mean([finding.gain for finding in findings if finding.gain is not None]),
        num_runs=len(findings),
        placed=placed,
        conviction=_find_conviction(findings[0]) if len(findings) == 1 else None,
        **further,
    )


def _find_conviction(finding: Finding) -> Conviction:
    favourites, belief = find_favourites(finding.belief), finding.belief
    return Conviction(tuple(favourites), belief[favourites[0]], len(belief), finding.named)


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
