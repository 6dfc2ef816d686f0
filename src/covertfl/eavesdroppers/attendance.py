"""An eavesdropper of exchangeable runs that infers in which rounds few clients took part.

In a generation every trajectory is queried until it is accepted, so that repeats show which rounds
failed.  With the transition matrix and the success probabilities of the problem, the hidden oracle
state of every round is smoothed.  A round in a bad state has fewer clients, and an average over few
of them makes a longer move.  If moves are averages of all replies, the true trajectory is the one
whose accepted rounds explain their lengths.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery, normalise, softmax
from covertfl.eavesdroppers.moves import MoveListener, measure_length
from covertfl.evaluation.horizon import resolve_first_distribution

# Moves of a trajectory that are needed: a trend, a slope, and some to judge by.
LEAST_MOVES = 6


def smooth_states(oracle: Oracle, first: FloatArray, accepted: BoolArray) -> FloatArray:
    """Return (N, W) probabilities of the oracle state of each round, given all acceptances.

    Implements the forward-backward recursions.

    Parameters
    ----------
    first : (W,) distribution of the state of the first round
    accepted : (N,)
    """
    seen = np.where(accepted[:, np.newaxis], oracle.success, 1.0 - oracle.success)
    forward, backward = np.empty_like(seen), np.ones_like(seen)
    prior = first
    for number, row in enumerate(seen):
        forward[number] = normalise(prior * row)
        prior = forward[number] @ oracle.transition
    for number in range(len(seen) - 1, 0, -1):
        backward[number - 1] = normalise(oracle.transition @ (seen[number] * backward[number]))
    return np.array([normalise(row) for row in forward * backward])


class AttendanceEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory whose accepted rounds explain the moves.

    The log length of a trajectory's moves is regressed on their number and on the expected success
    probability of the round in which the trajectory was accepted before.  Only a negative slope
    counts.  With schedules that are not exchangeable all beliefs are equal.
    """

    needs: ClassVar[tuple[str, ...]] = ("scheme",)
    threat = "sees every query, knows the problem and that few clients make long moves, has no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.scheme is not None
        self._scheme = means.scheme
        self._asked: list[int] = []  # trajectory of each round
        self._accepted: list[bool] = []  # of each round but the latest
        self._latest: dict[int, int] = {}  # round of each trajectory's latest query, from 0
        # Round in which a trajectory was accepted before each of its moves, and the log length.
        self._moves: dict[int, list[tuple[int, float]]] = {}
        self._explained: tuple[tuple[int, int], FloatArray] | None = None

    def observe(self, query: SeenQuery) -> None:
        """Note whether the round before was accepted: its query is not repeated."""
        if not self._scheme.exchangeable:
            self._seen.add(query)
            return
        if self._asked:
            self._accepted.append(self._asked[-1] != query.trajectory or query.moved != 0.0)
        super().observe(query)
        self._latest[query.trajectory] = len(self._asked)
        self._asked.append(query.trajectory)

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Note the length, and the latest query before, which was the accepted one."""
        found = self._latest[query.trajectory], math.log(measure_length(step))
        self._moves.setdefault(query.trajectory, []).append(found)

    def explain(self) -> FloatArray:
        """Return (K, 2) partial correlation and slope of each trajectory; 0 with few moves."""
        key = sum(len(moves) for moves in self._moves.values()), len(self._seen)
        if self._explained is None or self._explained[0] != key:
            self._explained = key, self._correlate_all()
        return self._explained[1]

    def _correlate_all(self) -> FloatArray:
        found = np.zeros((len(self._seen), 2))
        enough = {n: moves for n, moves in self._moves.items() if len(moves) >= LEAST_MOVES}
        if enough:
            oracle = self._scheme.problem.oracle
            first = resolve_first_distribution(oracle, self._scheme.first)
            success = smooth_states(oracle, first, np.array(self._accepted)) @ oracle.success
            for number, moves in enough.items():
                rounds, lengths = zip(*moves, strict=True)
                found[number] = _correlate(np.array(lengths), success[list(rounds)])
        return found

    def belief(self) -> FloatArray:
        """Return beliefs by the likelihood of the lengths, normal with unknown deviation."""
        correlations = np.minimum(self.explain()[:, 0], 0.0)
        number = max((len(moves) for moves in self._moves.values()), default=0)
        return softmax(-0.5 * number * np.log1p(-np.square(correlations)))

    def figures(self) -> dict[str, FloatArray]:
        """Return the partial correlation of length and expected success, and the slope."""
        explained = self.explain()
        return {"correlation": explained[:, 0], "slope": explained[:, 1]}


def _correlate(lengths: FloatArray, success: FloatArray) -> tuple[float, float]:
    """Return the correlation and the slope of (n,) log lengths, given the trend; 0 if undefined."""
    numbers = np.arange(1.0, len(lengths) + 1.0)
    trend, _ = np.linalg.qr(np.column_stack([np.ones_like(numbers), numbers]))
    pair = np.column_stack([lengths, success])
    rest = pair - trend @ (trend.T @ pair)
    spread = np.sqrt(np.sum(rest * rest, axis=0))
    # What is left by rounding only is nothing.
    if np.any(spread <= 1e-9 * np.sqrt(np.sum(pair * pair, axis=0))):
        return 0.0, 0.0
    product = float(np.sum(rest[:, 0] * rest[:, 1]))
    # Never 1: a perfect fit must leave the likelihood finite.
    correlation = np.clip(product / (spread[0] * spread[1]), -1.0 + 1e-9, 1.0 - 1e-9)
    return float(correlation), product / float(spread[1] ** 2)
