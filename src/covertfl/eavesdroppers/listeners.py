"""Eavesdroppers that only listen (tier A): from when each trajectory is queried and how it moves.

Those that count queries come first, the paper's `majority` before all; then those that compare the
moves of trajectories.  The best that queries alone allow is in `likelihood`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.eavesdroppers.eavesdropper import Listener, Means, SeenQuery, normalise, softmax
from covertfl.eavesdroppers.moves import (
    MoveListener,
    find_last_bias,
    find_last_layer,
    measure_cosine,
    measure_length,
)
from covertfl.eavesdroppers.owners import measure_evenness
from covertfl.evaluation.horizon import resolve_first_distribution
from covertfl.kernels.job import Vector


class MajorityEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with most queries.

    It is the paper's: proportional sampling (assumption E3).  Its estimate, the last query of that
    trajectory, is equation (6) of the paper.
    """

    threat = "sees every query, knows nothing of the scheme, owns no data"

    def belief(self) -> FloatArray:
        """Return the share of queries of each trajectory (formula F3 of docs/paper_map.md)."""
        return normalise(self._seen.counts)

    def figures(self) -> dict[str, FloatArray]:
        """Return the share of queries of each trajectory."""
        return {"share of queries": self.belief()}


class MinorityEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory with fewest queries."""

    threat = "sees every query, knows that decoys are the majority, owns no data"

    def belief(self) -> FloatArray:
        """Return, normalised, the share of queries that did not belong to each trajectory."""
        counts = np.array(self._seen.counts, dtype=np.float64)
        return np.ones(1) if len(counts) == 1 else normalise(counts.sum() - counts)


class ChangePointEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory that is queried less after a change.

    A learner that completes its updates turns to obfuscating.  For every possible change point, the
    queries before and after it are treated as independent draws with unknown probabilities, and the
    eavesdropper computes how likely a trajectory's probability is to be smaller afterwards.
    """

    threat = "sees every query, guesses that learning comes first, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._order: list[int] = []

    def observe(self, query: SeenQuery) -> None:
        """Take note of the next query, and of its place in the order."""
        super().observe(query)
        self._order.append(query.trajectory)

    def belief(self) -> FloatArray:
        """Return beliefs in proportion to the evidence that a trajectory's share has fallen."""
        order = np.array(self._order)
        if len(order) < 2:
            return normalise(np.ones(len(self._seen)))
        return normalise([find_fall_prob(order == number) for number in range(len(self._seen))])

    def figures(self) -> dict[str, FloatArray]:
        """Return the belief, which is the evidence of a fall."""
        return {"fall": self.belief()}


def find_fall_prob(queried: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Return the posterior probability that a trajectory is queried less after a change.

    Each change point has the same prior.  Both query probabilities have uniform priors, and their
    difference is approximated by a normal distribution.  Change points are averaged by the marginal
    likelihood of both parts.

    Parameters
    ----------
    queried : (t,) whether each query belonged to the trajectory
    """
    from scipy.special import betaln, ndtr

    length = len(queried)
    before = np.arange(1, length)
    hits = np.cumsum(queried)[:-1]
    after, later = length - before, queried.sum() - hits
    evidence = betaln(hits + 1.0, before - hits + 1.0) + betaln(later + 1.0, after - later + 1.0)
    first, second = (hits + 1.0) / (before + 2.0), (later + 1.0) / (after + 2.0)
    variance = first * (1.0 - first) / (before + 3.0) + second * (1.0 - second) / (after + 3.0)
    falls = ndtr((first - second) / np.sqrt(variance))
    return float(np.average(falls, weights=np.exp(evidence - evidence.max())))


class EarlyStopEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory that has not moved for the longest time."""

    threat = "sees every query, guesses that a learner which is done stops, owns no data"

    def belief(self) -> FloatArray:
        """Return equal beliefs in the trajectories that stopped first."""
        moved = np.array(self._seen.moved)
        return normalise((moved == moved.min()).astype(np.float64))

    def figures(self) -> dict[str, FloatArray]:
        """Return the number of the query at which each trajectory last moved, as a share."""
        return {"last moved": np.array(self._seen.moved) / self._seen.total}


class RepeatEavesdropper(Listener):
    """Eavesdropper that believes in trajectories in proportion to their repeated queries.

    A learning query that failed is sent again unchanged.  A decoy that moves in every round never
    repeats itself; a gated decoy, which moves only when its query is accepted, does, and a matched
    one repeats as large a share of its queries as the truth.
    """

    threat = "sees every query, knows that failed learning queries repeat, owns no data"

    def belief(self) -> FloatArray:
        """Return the share of each trajectory in all repeats; equal beliefs without any."""
        return normalise(self._seen.repeats)

    def figures(self) -> dict[str, FloatArray]:
        """Return the share of each trajectory's queries that repeat the previous one."""
        return {"repeats": np.array(self._seen.repeats) / np.array(self._seen.counts)}


# Log-odds for a difference of 1 in smoothness.
SMOOTHNESS_ODDS = 10.0


class StepShapeEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory with the smoothest steps.

    An average over many clients moves more smoothly than what a server trains on a single data set:
    successive steps of the true trajectory point in more similar directions, and their lengths vary
    less.
    """

    threat = "sees every query, knows how federated averages move, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        self._steps: dict[int, list[FloatArray]] = {}
        self._ways: dict[int, FloatArray] = {}

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Compare the trajectory's latest step with the previous two."""
        number = query.trajectory
        before = self._steps.get(number, [])
        for name, earlier in zip(("cosine", "cosine with the step before"), before, strict=False):
            self._tally.note(name, number, measure_cosine(step, earlier))
        self._steps[number] = [step, *before[:1]]
        way = self._ways.get(number)
        self._ways[number] = step if way is None else way + step
        self._tally.note("length", number, math.log(measure_length(step)))

    def belief(self) -> FloatArray:
        """Return beliefs by smoothness."""
        numbers = range(len(self._seen))
        return softmax([SMOOTHNESS_ODDS * self.smoothness(number) for number in numbers])

    def smoothness(self, number: int) -> float:
        """Return the smoothness of a trajectory's steps; 0 if there are fewer than two.

        It is the mean cosine of successive steps less half the mean absolute change of log length.
        """
        cosines = self._tally.read("cosine", number)
        if not cosines:
            return 0.0
        return float(np.mean(cosines)) - 0.5 * self._measure_change(number)

    def _measure_change(self, number: int) -> float:
        """Return the mean absolute change of log length; 0 with fewer than two steps."""
        changes = np.abs(np.diff(self._tally.read("length", number)))
        return float(np.mean(changes)) if len(changes) else 0.0

    def figures(self) -> dict[str, FloatArray]:
        """Return lengths (logs, deviations, changes, trends), cosines, and the length of the way.

        The way leads from the first query to the latest; its log length is 0 without a move.
        """
        count = len(self._seen)
        ways = [measure_length(self._ways[n]) if n in self._ways else 1.0 for n in range(count)]
        return {
            "length": self._tally.average("length", count),
            "length at first": self._tally.average("length", count, first=3),
            "deviation of length": self._tally.spread("length", count),
            "change of length": np.array([self._measure_change(n) for n in range(count)]),
            "trend of length": self._tally.trend("length", count),
            "cosine": self._tally.average("cosine", count),
            "trend of cosine": self._tally.trend("cosine", count),
            "cosine with the step before": self._tally.average(
                "cosine with the step before", count
            ),
            "length of the way": np.log(np.maximum(ways, 1e-12)),
        }


# Log-odds for a share that is smaller by a factor of e.
SHARE_ODDS = 10.0


class LastLayerEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory whose last layer has least of the steps.

    Replies of clients disagree about the inputs, and their average goes on moving the first layers;
    what a server trains towards a fixed answer goes into the last one.  (Measured: the truth has
    the smaller share in nearly all runs of the paper's policies with its decoys.)
    """

    needs: ClassVar[tuple[str, ...]] = ("kernel",)
    threat = "sees every query, knows which weights are the last layer's, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None
        layout = means.kernel.layout
        self._last, self._bias = find_last_layer(layout), find_last_bias(layout)

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Compare squared lengths."""
        number, length = query.trajectory, measure_length(step)
        share = (measure_length(step[self._last]) / length) ** 2
        self._tally.note("share", number, math.log(max(share, 1e-12)))
        self._tally.note("bias", number, float(np.sum(step[self._bias])) / length)

    def belief(self) -> FloatArray:
        """Return beliefs by the last layer's mean share, in logs."""
        return softmax(-SHARE_ODDS * self._tally.average("share", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return the log share, its trend, the last bias and the length of the last layer."""
        count = len(self._seen)
        lengths = [measure_length(w[self._last].astype(np.float64)) for w in self._seen.latest]
        return {
            "share": self._tally.average("share", count),
            "share at first": self._tally.average("share", count, first=3),
            "trend of share": self._tally.trend("share", count),
            "bias": self._tally.average("bias", count),
            "length": np.log(np.maximum(lengths, 1e-12)),
        }


# A move of at most so many units in the last place is rounding.
MOST_UNITS = 4.0
# Log-odds for a share of coordinates that is larger by 1.
ROUNDING_ODDS = 200.0


class RoundingEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory in which most weights move by rounding only.

    A weight that no client has changed differs after averaging by the rounding of the mean; one
    that a server's own optimizer has not changed stays as it is.
    """

    threat = "sees every query, looks for weights that move by rounding only, owns no data"

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Count weights that moved by a few units in the last place, and those that did not."""
        units = np.abs(step) / np.spacing(np.abs(query.weights))
        is_still = units == 0.0
        number = query.trajectory
        self._tally.note("still", number, float(np.mean(is_still)))
        self._tally.note("rounding", number, float(np.mean((units <= MOST_UNITS) & ~is_still)))

    def belief(self) -> FloatArray:
        """Return beliefs by the mean share of weights that moved by rounding."""
        return softmax(ROUNDING_ODDS * self._tally.average("rounding", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return mean shares of weights that moved by rounding, and that did not move."""
        count = len(self._seen)
        return {name: self._tally.average(name, count) for name in ("rounding", "still")}


# Log-odds for a centre of energy that lies one unit of log rank nearer to the leading axis.
CENTRE_ODDS = 20.0


class MapSpectrumEavesdropper(MoveListener):
    """Eavesdropper that believes in the trajectory that moves most along the leading axes.

    Real data keep their news in the leading axes of the public map: their mean square, and with it
    that of the moves of the first layer, falls from axis to axis.
    """

    needs: ClassVar[tuple[str, ...]] = ("kernel", "pivot", "axes")
    threat = "sees every query, knows the public map and where real data have energy, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None and means.pivot is not None and means.axes is not None
        self._part, self._axes = means.kernel.layout.locate(means.pivot), means.axes
        self._is_mapped = np.array_equal(means.axes, np.eye(len(means.axes)))
        self._ranks = np.log(np.arange(1, len(means.axes) + 1))
        self._ways: dict[int, FloatArray] = {}

    def measure_energy(self, step: FloatArray) -> FloatArray:
        """Return (d,) shares of the pivot's squared length by axis; equal ones if it is still."""
        by_axis = step[self._part].reshape(-1, len(self._axes))
        if not self._is_mapped:
            by_axis = by_axis @ self._axes
        energy: FloatArray = np.sum(by_axis * by_axis, axis=0)
        total = float(np.sum(energy))
        return energy / total if total > 0.0 else np.full(len(energy), 1.0 / len(energy))

    def note_move(self, query: SeenQuery, step: FloatArray) -> None:
        """Find the centre and the evenness of the energy."""
        energy, number = self.measure_energy(step), query.trajectory
        self._tally.note("centre", number, float(np.sum(energy * self._ranks)))
        self._tally.note("evenness", number, measure_evenness(energy))
        self._ways[number] = self._ways.get(number, 0.0) + step

    def belief(self) -> FloatArray:
        """Return beliefs by the mean centre of energy."""
        return softmax(-CENTRE_ODDS * self._tally.average("centre", len(self._seen)))

    def figures(self) -> dict[str, FloatArray]:
        """Return centre and evenness of the energy of moves, and of the way so far."""
        count = len(self._seen)
        centres = np.zeros(count)
        for number, way in self._ways.items():
            centres[number] = float(np.sum(self.measure_energy(way) * self._ranks))
        return {
            "centre": self._tally.average("centre", count),
            "centre at first": self._tally.average("centre", count, first=3),
            "trend of centre": self._tally.trend("centre", count),
            "evenness": self._tally.average("evenness", count),
            "centre of the way": centres,
        }


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

    In a generation every trajectory is queried until it is accepted, so that repeats show which
    rounds failed.  With the transition matrix and the success probabilities of the problem, the
    hidden oracle state of every round is smoothed.  A round in a bad state has fewer clients, and
    an average over few of them makes a longer move.

    The log length of a trajectory's moves is regressed on their number and on the expected success
    probability of the round in which the trajectory was accepted before.  Only a negative slope
    counts.  With schedules that are not symmetric all beliefs are equal.
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
        if not self._scheme.is_symmetric:
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


# Log-odds for a cosine of 1.
RUNS_ODDS = 20.0


class TwoRunsEavesdropper(Listener):
    """Eavesdropper that believes in the trajectory most like one of another run.

    What each input does to the output is compared: how a trajectory's training has changed the
    first-order effect of every axis of the public map.  The true trajectories of two runs over the
    same clients have learned the same; decoys made anew for each run have not.
    """

    needs: ClassVar[tuple[str, ...]] = ("kernel", "axes", "other_run")
    threat = "sees every query of two runs over the same clients, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.kernel is not None and means.axes is not None
        self._kernel, self._memory = means.kernel, means.memory
        shape = (-1,) if means.data is None else means.data.features.shape[1:]
        axes = np.concatenate([means.axes.T, -means.axes.T]).astype(np.float32)
        self._inputs = np.ascontiguousarray(axes.reshape(len(axes), *shape))
        self._first: list[Vector] = []
        self._others = self._follow(means.other_run or ())

    def observe(self, query: SeenQuery) -> None:
        """Keep the first query of each trajectory."""
        if query.trajectory == len(self._first):
            self._first.append(query.weights)
        super().observe(query)

    def _follow(self, queries: Sequence[SeenQuery]) -> list[FloatArray]:
        """Return what each trajectory of another run has learned."""
        first: dict[int, Vector] = {}
        last: dict[int, Vector] = {}
        for query in queries:
            first.setdefault(query.trajectory, query.weights)
            last[query.trajectory] = query.weights
        return [self._compare(first[number], last[number]) for number in sorted(first)]

    def _compare(self, first: Vector, last: Vector) -> FloatArray:
        return self.measure_effects(last) - self.measure_effects(first)

    def measure_effects(self, weights: Vector) -> FloatArray:
        """Return (d * outputs,) half differences of the outputs at plus and minus each axis."""
        outputs = self._memory.recall(
            "axes", 0, weights, lambda: self._kernel.predict(weights, self._inputs)
        ).astype(np.float64)
        half = len(outputs) // 2
        return np.ravel(outputs[:half] - outputs[half:]) / 2.0

    def measure_likeness(self) -> FloatArray:
        """Return the largest cosine of each trajectory with one of the other run."""
        pairs = zip(self._first, self._seen.latest, strict=True)
        learned = [self._compare(*pair) for pair in pairs]
        return np.array(
            [
                max([measure_cosine(one, other) for other in self._others] or [0.0])
                for one in learned
            ]
        )

    def belief(self) -> FloatArray:
        """Return beliefs by likeness to a trajectory of the other run."""
        return softmax(RUNS_ODDS * self.measure_likeness())

    def figures(self) -> dict[str, FloatArray]:
        """Return the likeness."""
        return {"likeness": self.measure_likeness()}
