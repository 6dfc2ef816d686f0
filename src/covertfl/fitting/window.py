"""The problem that the latest rounds of a run describe, and which of them are out of date.

A policy that is refreshed during a run is solved for this problem.  Its costs and limits are the
user's; every probability is estimated from the rounds, none is read from the problem (formula F11
of docs/paper_map.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.evaluation.bounds import service_capacity
from covertfl.fitting.oracle import JEFFREYS
from covertfl.solvers.spga.experience import Experience

# Standard errors that the estimated load of an unbounded queue is raised by.
CAUTION = 1.0
# An unbounded queue with a larger share of its service capacity in use counts as overloaded.
LARGEST_LOAD = 0.98
# Probability of arrivals that have not been seen.
UNSEEN = 1e-12
# Least number of latest rounds that are compared with the rounds before them.
FEWEST_COMPARED = 100
# Probability with which a test finds a change where there is none.
FALSE_ALARM = 1e-6


def fit_window(problem: Problem, seen: Experience) -> Problem | None:
    """Return the problem with all its probabilities estimated from rounds (formula F11).

    None if there is no such queue: no update has arrived, or more arrive than could be done.

    Parameters
    ----------
    problem : its costs, limit and capacity are kept
    seen : at least one round
    """
    fitted = replace(problem, oracle=_fit_oracle(seen, problem.oracle.num_states))
    if isinstance(fitted, FiniteHorizon):
        return fitted
    queue = _fit_arrivals(fitted, seen)
    if queue is None or queue.capacity is not None:
        return queue
    return _raise_load(queue, estimate_error(seen))


def _fit_oracle(seen: Experience, num_states: int) -> Oracle:
    """Estimate P^O and g under Jeffreys' prior, so that every move keeps some probability."""
    moves, successes = (counts + JEFFREYS for counts in _count(seen, num_states)[:2])
    transition = moves / moves.sum(axis=1, keepdims=True)
    return Oracle(transition, successes[:, 1] / successes.sum(axis=1))


def _fit_arrivals(problem: QueueProblem, seen: Experience) -> QueueProblem | None:
    """Return the queue with the load of the rounds, None if nothing has arrived.

    The arrival indices stay the problem's, so that its policies know them: each has the rounded
    mean of the sizes seen with it, or the problem's size if there were none, and their load.
    """
    index = problem.index_arrivals(seen.arrival)
    if not np.any(index):
        return None
    sizes: dict[int, float] = {}
    largest = 0
    for place, size in enumerate(problem.arrival_support[1:].tolist(), start=1):
        arrived = seen.arrival[index == place]
        mean = float(arrived.mean()) if len(arrived) else size
        largest = max(math.floor(mean + 0.5), largest + 1)
        sizes[largest] = max(float(arrived.sum()) / (len(seen) * largest), UNSEEN)
    return _with_sizes(problem, sizes, 1.0 / max(sum(sizes.values()), 1.0))


def _with_sizes(
    problem: QueueProblem, sizes: Mapping[int, float], factor: float = 1.0
) -> QueueProblem:
    """Return the queue with other arrivals, whose probabilities are multiplied by a factor."""
    probs = {size: factor * prob for size, prob in sizes.items()}
    return replace(problem, arrival_prob=None, arrival_size=None, arrival_sizes=probs)


def _raise_load(queue: QueueProblem, error: float) -> QueueProblem | None:
    """Return an unbounded queue with its load raised by a standard error, None if overloaded.

    If the load is taken for too small, the backlog grows for a long time; if it is taken for too
    large, some privacy is lost until more rounds have been seen.
    """
    assert queue.arrival_sizes is not None
    factor = 1.0 + CAUTION * error / queue.load
    is_overloaded = factor * queue.load > LARGEST_LOAD * service_capacity(queue)
    if is_overloaded or factor * float(queue.arrival_probs[1:].sum()) > 1.0:
        return None
    return _with_sizes(queue, queue.arrival_sizes, factor)


def estimate_error(seen: Experience) -> float:
    """Return the standard error of the mean drift, arrivals minus would-be successes in a round.

    It is found by batch means, sqrt(T) batches of sqrt(T) rounds, because successive rounds are
    dependent through the oracle.  Infinite for fewer than four rounds.
    """
    side = math.isqrt(len(seen))
    if side < 2:
        return math.inf
    drift = (seen.arrival - seen.success.astype(np.int64))[-side * side :]
    return float(drift.reshape(side, side).mean(axis=1).std(ddof=1)) / math.sqrt(side)


def count_outdated(seen: Experience, num_states: int) -> int:
    """Return how many of the first rounds describe another system than the rest, often 0.

    The latest 100, 200, 400, ... rounds are compared with those before them by a likelihood-ratio
    test of equal transition, success and arrival probabilities.  Of the significant differences
    the most significant one is the change.
    """
    from scipy.special import gammaincc

    least, outdated, latest = FALSE_ALARM, 0, FEWEST_COMPARED
    while 2 * latest <= len(seen):
        parts = (_take(seen, slice(None, -latest)), _take(seen, slice(-latest, None)))
        sizes = np.unique(seen.arrival)
        deviance, freedom = 0.0, 0
        for before, after in zip(*(_count(part, num_states, sizes) for part in parts), strict=True):
            deviance += measure_deviance(before, after)
            seen_both = (before.sum(axis=1) > 0) & (after.sum(axis=1) > 0)
            freedom += int(np.maximum(np.sum(before + after > 0, axis=1) - 1, 0)[seen_both].sum())
        prob = float(gammaincc(0.5 * freedom, 0.5 * deviance)) if freedom else 1.0
        if prob < least:
            least, outdated = prob, len(seen) - latest
        latest *= 2
    return outdated


def measure_deviance(before: FloatArray, after: FloatArray) -> float:
    """Return twice the log-likelihood ratio of two (rows, categories) tables of counts.

    Under equal probabilities in each row it has asymptotically a chi-square distribution.
    """
    both = before + after
    pooled = both / np.maximum(both.sum(axis=1, keepdims=True), 1.0)
    deviance = 0.0
    for counts in (before, after):
        own = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        happened = counts > 0
        deviance += float(np.sum(counts[happened] * np.log(own[happened] / pooled[happened])))
    return max(2.0 * deviance, 0.0)


def _count(
    seen: Experience, num_states: int, sizes: IntArray | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Count moves (W, W), failures and successes (W, 2), and arrivals of each size (1, sizes)."""
    states = seen.oracle_state
    moves = np.bincount(states[:-1] * num_states + states[1:], minlength=num_states**2)
    successes = np.bincount(2 * states + seen.success, minlength=2 * num_states)
    at = np.zeros(0, dtype=np.int64) if sizes is None else np.searchsorted(sizes, seen.arrival)
    arrivals = np.bincount(at, minlength=0 if sizes is None else len(sizes))
    return (
        moves.reshape(num_states, num_states).astype(np.float64),
        successes.reshape(num_states, 2).astype(np.float64),
        arrivals[np.newaxis].astype(np.float64),
    )


def _take(seen: Experience, part: slice) -> Experience:
    return Experience(seen.oracle_state[part], seen.arrival[part], seen.success[part])
