"""The Markov oracle fitted to a participation log, with intervals (F11 of docs/paper_map.md).

States are formed from one column of the log, by cut points or by quantiles; transition and success
probabilities are estimated by observed shares, with 95% Wilson intervals.  The counts behind the
estimates are kept: samples from their posterior carry the uncertainty through to other formulas.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.arguments import (
    quote,
    read_count,
    read_numbers,
    require_number,
    require_type,
)
from covertfl.decision.oracle import DominanceViolation, Oracle, find_dominance_violation
from covertfl.decision.problem import LearningCost, QueueProblem
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.fitting.log import ParticipationLog, SkippedRounds
from covertfl.fitting.markov import MarkovTest, check_markov
from covertfl.intervals import wilson_interval

DEFAULT_NUM_STATES = 3  # bad, middling and good rounds, as in the paper
JEFFREYS = 0.5  # what the prior adds to every count


@dataclass(frozen=True)
class ArrivalFit:
    """The arrival process, estimated from the `arrival` column.

    Parameters
    ----------
    arrival_prob : share of rounds with an arrival (delta)
    interval : 95% Wilson interval of it
    arrival_size : size of an arrival (M), their mean if sizes vary
    sizes_vary : whether arrivals differ in size
    num_arrivals : number of rounds with an arrival
    sizes : the sizes that occur, ascending
    size_probs : share of rounds with an arrival of each size
    size_intervals : 95% Wilson interval of each
    """

    arrival_prob: float
    interval: tuple[float, float]
    arrival_size: float
    sizes_vary: bool
    num_arrivals: int
    sizes: tuple[int, ...]
    size_probs: tuple[float, ...]
    size_intervals: tuple[tuple[float, float], ...]

    def build_queue(
        self, oracle: Oracle, privacy_cost: FloatArray, learning_cost: LearningCost, limit: float
    ) -> QueueProblem:
        """Return the queue problem of these arrivals, without a bound on the backlog."""
        return QueueProblem(
            oracle,
            privacy_cost,
            learning_cost,
            limit=limit,
            arrival_sizes=dict(zip(self.sizes, self.size_probs, strict=True)),
        )


@dataclass(frozen=True, eq=False)
class FittedOracle:
    """An oracle estimated from a log, with the counts behind the estimate (formula F11).

    Parameters
    ----------
    oracle : observed shares as P^O and g
    column : the column that forms the states
    cuts : (W - 1,) increasing; a round's state is the number of cuts at or below its value
    min_examples : least number of examples of a success; None if the success column was used
    num_rounds : number of rounds in the log, without those skipped
    visits : (W,) number of rounds in each state
    transition_counts : (W, W) moves from row to column, num_rounds - 1 in all but across gaps
    transition_interval : (W, W, 2) 95% Wilson interval of each probability on its own
    success_counts : (W, 2) successes and trials in each state
    success_interval : (W, 2) 95% Wilson interval of each success probability
    arrival : None if the log has no arrivals
    dominance_violation : first pair of rows of the estimate that violates (M1), if any
    markov : test of the Markov property on the states
    states, succeeded, arrivals : (num_rounds,) the rounds themselves, for a replay
    meaning : what the states stand for, with the mean clients and examples of their rounds
    skipped : rounds that are missing, and blank cells
    """

    oracle: Oracle
    column: str
    cuts: tuple[float, ...]
    min_examples: float | None
    num_rounds: int
    visits: IntArray
    transition_counts: IntArray
    transition_interval: FloatArray
    success_counts: IntArray
    success_interval: FloatArray
    arrival: ArrivalFit | None
    dominance_violation: DominanceViolation | None
    markov: MarkovTest
    states: IntArray
    succeeded: BoolArray
    arrivals: FloatArray
    meaning: OracleStates
    skipped: SkippedRounds


def fit_oracle(
    log: ParticipationLog,
    *,
    column: str = "clients",
    num_states: int | None = None,
    cuts: Sequence[float] | None = None,
    min_examples: float | None = None,
) -> FittedOracle:
    """Estimate P^O and g by counting, the maximum likelihood estimate (formula F11).

    Parameters
    ----------
    column : the column that forms the states; a higher value is a better state
    num_states : W >= 2 states, as equally filled as ties allow; 3 if no cuts are given
    cuts : increasing values at which a new state begins; not together with num_states
    min_examples : a round with at least this many examples is a success; it overrides a success
        column, and is required if the log has none

    Raises
    ------
    InvalidInput
        if the log does not suffice: no such column, no success, fewer than two states, a state
        without a round or without a round after it
    """
    require_type(log, ParticipationLog, "log")
    log.column(column)
    needed = (column, "success" if min_examples is None else "examples", "arrival")
    skipped, log = log.find_skipped(needed), log.keep_complete(needed)
    chosen = _find_cuts(log, column, num_states, cuts)
    states = OracleStates(column, chosen).classify(log.column(column))
    visits = np.bincount(states, minlength=len(chosen) + 1)
    follows = np.diff(log.rounds) == 1
    moves = np.zeros((len(visits), len(visits)), dtype=np.int64)
    np.add.at(moves, (states[:-1][follows], states[1:][follows]), 1)
    _require_followed(log, column, chosen, visits, moves)
    succeeded = read_success(log, min_examples)
    successes = np.bincount(states[succeeded], minlength=len(visits))
    oracle = Oracle(moves / moves.sum(axis=1, keepdims=True), successes / visits)
    return FittedOracle(
        oracle=oracle,
        column=column,
        cuts=chosen,
        min_examples=min_examples,
        num_rounds=len(states),
        visits=visits,
        transition_counts=moves,
        transition_interval=_stack_interval(moves, moves.sum(axis=1, keepdims=True)),
        success_counts=np.stack([successes, visits], axis=1),
        success_interval=_stack_interval(successes, visits),
        arrival=_fit_arrival(log),
        dominance_violation=find_dominance_violation(oracle),
        markov=check_markov(states, len(visits), follows),
        states=states,
        succeeded=succeeded,
        arrivals=log.columns.get("arrival", np.zeros(len(states))),
        meaning=_describe_states(log, column, chosen, states, min_examples),
        skipped=skipped,
    )


def _stack_interval(successes: IntArray, trials: IntArray) -> FloatArray:
    return np.stack(wilson_interval(successes, trials), axis=-1)


def _describe_states(
    log: ParticipationLog,
    column: str,
    cuts: tuple[float, ...],
    states: IntArray,
    min_examples: float | None,
) -> OracleStates:
    """Return what the states stand for, with the means of the log's columns where it has them."""
    participation = examples = None
    clients = log.columns.get("clients")
    clients = None if clients is None or np.isnan(clients).any() else clients
    # A mean of whole numbers, rounded, lies between the least and the largest of them.
    if clients is not None and np.all(clients == np.floor(clients)):
        participation = tuple(map(round, _average(clients, states)))
    if "examples" in log.columns and not np.isnan(log.columns["examples"]).any():
        examples = tuple(round(mean, 1) for mean in _average(log.columns["examples"], states))
    least = None if min_examples is None else float(min_examples)
    gaps = "skip" if log.gaps == "skip" else None
    return OracleStates(column, cuts, participation, examples, least, gaps)


def _average(values: FloatArray, states: IntArray) -> list[float]:
    means: list[float] = (np.bincount(states, values) / np.bincount(states)).tolist()
    return means


def read_success(log: ParticipationLog, min_examples: float | None) -> BoolArray:
    """Return which rounds of a log are successes, (n,).

    By the column success or, if `min_examples` is given, by the number of examples.
    """
    if min_examples is None:
        if "success" not in log.columns:
            raise InvalidInput(
                f"{log.path} has no column success: give min_examples (--min-examples), "
                "the least number of examples of a successful round"
            )
        return log.column("success") > 0.0
    require_number(min_examples, "min_examples (--min-examples)", above=True)
    return log.column("examples") >= min_examples


def _fit_arrival(log: ParticipationLog) -> ArrivalFit | None:
    sizes = log.columns.get("arrival", np.empty(0))
    happened = sizes[sizes > 0.0]
    if not len(happened):
        return None
    different, counts = np.unique(happened.astype(np.int64), return_counts=True)
    low, high = wilson_interval(np.array([len(happened), *counts]), len(sizes))
    interval, *size_intervals = zip(low.tolist(), high.tolist(), strict=True)
    return ArrivalFit(
        arrival_prob=len(happened) / len(sizes),
        interval=interval,
        arrival_size=int(different[0]) if len(different) == 1 else float(happened.mean()),
        sizes_vary=len(different) > 1,
        num_arrivals=len(happened),
        sizes=tuple(different.tolist()),
        size_probs=tuple((counts / len(sizes)).tolist()),
        size_intervals=tuple(size_intervals),
    )


def _find_cuts(
    log: ParticipationLog, column: str, num_states: int | None, cuts: Sequence[float] | None
) -> tuple[float, ...]:
    if cuts is None:
        return _choose_cuts(log, column, DEFAULT_NUM_STATES if num_states is None else num_states)
    if num_states is not None:
        raise InvalidInput("states and cuts exclude each other: give one of the two")
    values = read_numbers(cuts, "cuts")
    if values.ndim != 1 or not values.size:
        raise InvalidInput(f"cuts must be a list of at least one number, got {quote(cuts)}")
    chosen = tuple(values.tolist())
    came = ", ".join(f"{cut:g}" for cut in chosen)
    if not all(map(math.isfinite, chosen)):
        raise InvalidInput(f"cuts must be finite numbers, got {came}")
    if any(second <= first for first, second in itertools.pairwise(chosen)):
        raise InvalidInput(f"cuts must increase, got {came}")
    return chosen


def _choose_cuts(log: ParticipationLog, column: str, num_states: int) -> tuple[float, ...]:
    read_count(num_states, "states", least=2)
    distinct, counts = np.unique(log.column(column), return_counts=True)
    if len(distinct) == 1:
        raise InvalidInput(
            f"{log.path}: column {column} is {distinct[0]:g} in every round, "
            "which makes one state, and an oracle needs at least two"
        )
    if len(distinct) < num_states:
        raise InvalidInput(
            f"{log.path}: column {column} has {len(distinct)} different values, "
            f"which make at most {len(distinct)} states, got states {num_states}"
        )
    return tuple(float(distinct[start]) for start in _split_evenly(counts, num_states))


def _split_evenly(counts: IntArray, num_groups: int) -> list[int]:
    """Partition a sequence of counts into contiguous groups with the least sum of squared sizes.

    The counts are of the rounds with each distinct value, which is not divided.  Returns the index
    of the first value of each group but the first.
    """
    ends = np.concatenate([[0.0], np.cumsum(counts, dtype=np.float64)])
    best = ends**2
    origins = []
    for groups in range(2, num_groups + 1):
        best, origin = _add_group(best, ends, groups)
        origins.append(origin)
    starts = [len(counts)]
    for origin in reversed(origins):
        starts.append(int(origin[starts[-1]]))
    return starts[:0:-1]


def _add_group(best: FloatArray, ends: FloatArray, groups: int) -> tuple[FloatArray, IntArray]:
    """Return the least cost of the first b values in `groups` groups, one step of the recursion.

    The best start of the last group is nondecreasing in b (the square of a size is convex), so
    divide and conquer over b takes d log d steps instead of d^2.
    """
    last = len(ends) - 1
    cost = np.full(len(ends), np.inf)
    origin = np.zeros(len(ends), dtype=np.int64)
    pending = [(groups, last, groups - 1, last - 1)]
    while pending:
        low, high, first, final = pending.pop()
        if low > high:
            continue
        middle = (low + high) // 2
        places = slice(first, min(final, middle - 1) + 1)
        tried = best[places] + (ends[middle] - ends[places]) ** 2
        found = first + int(tried.argmin())
        cost[middle], origin[middle] = tried[found - first], found
        pending += [(low, middle - 1, first, found), (middle + 1, high, found, final)]
    return cost, origin


def _describe_state(column: str, cuts: tuple[float, ...], state: int) -> str:
    low = f"{cuts[state - 1]:g} <= " if state else ""
    high = f" < {cuts[state]:g}" if state < len(cuts) else ""
    return f"state {state} ({low}{column}{high})"


def _require_followed(
    log: ParticipationLog, column: str, cuts: tuple[float, ...], visits: IntArray, moves: IntArray
) -> None:
    """Raise `InvalidInput` unless every state has a round, and a round after it."""
    came = ", ".join(f"{cut:g}" for cut in cuts)
    filled = np.flatnonzero(visits)
    if len(filled) == 1:
        raise InvalidInput(
            f"{log.path}: cuts {came} put every round into "
            f"{_describe_state(column, cuts, int(filled[0]))}, and an oracle needs two states"
        )
    for state in np.flatnonzero(visits == 0):
        values = log.column(column)
        raise InvalidInput(
            f"{log.path}: cuts {came} leave {_describe_state(column, cuts, int(state))} without "
            f"a round, {column} runs from {values.min():g} to {values.max():g}"
        )

    for state in np.flatnonzero(moves.sum(axis=1) == 0):
        where = f"occurs in the last round only (round {log.rounds[-1]})"
        if visits[state] > 1 or np.any(np.diff(log.rounds) > 1):
            where = "occurs only in the last round or before missing rounds"
        raise InvalidInput(
            f"{log.path}: {_describe_state(column, cuts, int(state))} {where}, so that no round "
            "follows it; give other cuts or fewer states"
        )


def sample_oracles(
    transition_counts: IntArray,
    success_counts: IntArray,
    num_samples: int,
    *,
    generator: np.random.Generator,
) -> list[Oracle]:
    """Sample oracles from their posterior distribution given the counts (formula F11).

    Under Jeffreys' prior every row of P^O is Dirichlet(counts + 1/2) and every g(o) is
    Beta(successes + 1/2, failures + 1/2), all independent.  A move that was never seen keeps a
    small probability, because the counts do not rule it out.

    Parameters
    ----------
    transition_counts : (W, W) moves from row to column
    success_counts : (W, 2) successes and trials in each state
    """
    # A Dirichlet sample is a row of gamma samples divided by its sum.
    shape = (num_samples, *transition_counts.shape)
    weights = generator.standard_gamma(transition_counts + JEFFREYS, size=shape)
    rows = weights / weights.sum(axis=2, keepdims=True)
    successes, trials = success_counts.T
    success = generator.beta(
        successes + JEFFREYS, trials - successes + JEFFREYS, size=(num_samples, len(successes))
    )
    return [Oracle(transition, g) for transition, g in zip(rows, success, strict=True)]
