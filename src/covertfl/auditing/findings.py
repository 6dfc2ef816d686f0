"""What one eavesdropper concluded from one run, and the figures of several such findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.eavesdroppers.eavesdropper import Eavesdropper, SeenQuery
from covertfl.intervals import wilson_interval
from covertfl.kernels.weights import Vector, name_content
from covertfl.runs.clients import ClientResponder

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


def compute_naming_share(findings: Sequence[Finding]) -> tuple[float, Interval] | tuple[None, None]:
    """Return the share of findings that name the true trajectory and its 95% interval (Wilson)."""
    named = [finding.named for finding in findings if finding.named is not None]
    if not named:
        return None, None
    low, high = wilson_interval(sum(named), len(named))
    return float(np.mean(named)), (float(low), float(high))


def list_final_accuracies(findings: Sequence[Finding]) -> list[float]:
    """Return the accuracies after the last round of those findings that have any."""
    return [finding.accuracy[-1] for finding in findings if finding.accuracy]
