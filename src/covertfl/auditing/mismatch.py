"""A test of the rounds of runs against the oracle that their policy was solved for.

Transitions between oracle states and accepted rounds are counted and compared with the problem's
probabilities by the likelihood-ratio statistic G = 2 sum(count log(count / expected)).  Its
distribution is approximated by chi-squared with one degree of freedom for each free probability; a
transition that the problem excludes is a mismatch whatever the counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle

LEAST_EXPECTED = 0.1  # a cell with a smaller expected count, and no event, has no freedom to vary
WARN_BELOW = 0.01  # p-value
LEAST_PROB = 1e-5
LARGEST_NUMBER = 1e308  # JSON has no infinity


@dataclass(frozen=True)
class Mismatch:
    """The test of a model against rounds.

    Parameters
    ----------
    statistic : G, infinite if something impossible happened
    degrees : of freedom
    p_value : probability of a statistic at least as large if the model is right
    """

    statistic: float
    degrees: int
    p_value: float
    rounds: int

    @property
    def is_warned(self) -> bool:
        """Return whether the rounds contradict the model."""
        return self.p_value < WARN_BELOW

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of `covertfl audit --json`."""
        return {**vars(self), "statistic": min(self.statistic, LARGEST_NUMBER)}


def check_model(oracle: Oracle, runs: Sequence[Sequence[Mapping[str, Any]]]) -> Mismatch:
    """Compare the private records of runs with an oracle."""
    from scipy.special import gammaincc

    num = oracle.num_states
    moves, outcomes = np.zeros((num, num)), np.zeros((num, 2))
    for records in runs:
        states = [int(record["oracle_state"]) for record in records]
        for before, after in itertools.pairwise(states):
            moves[before, after] += 1
        for state, record in zip(states, records, strict=True):
            outcomes[state, int(bool(record["accepted"]))] += 1
    # Measured probabilities of 0 and 1 are only nearly so.
    success = np.clip(oracle.success, LEAST_PROB, 1.0 - LEAST_PROB)
    probs = np.column_stack([1.0 - success, success])
    parts = [_compare(moves, oracle.transition), _compare(outcomes, probs)]
    statistic, degrees = (sum(part[index] for part in parts) for index in (0, 1))
    p_value = 1.0
    if degrees:
        p_value = float(gammaincc(degrees / 2.0, statistic / 2.0))
    elif np.isinf(statistic):
        p_value = 0.0
    return Mismatch(float(statistic), int(degrees), p_value, int(outcomes.sum()))


def _compare(counts: FloatArray, probs: FloatArray) -> tuple[float, int]:
    """Return G and its degrees of freedom, over the rows with any counts."""
    seen = counts.sum(axis=1) > 0
    counts, probs = counts[seen], probs[seen]
    expected = counts.sum(axis=1, keepdims=True) * probs
    if np.any((counts > 0) & (expected <= 0)):
        return float("inf"), 0
    ratio = np.divide(counts, expected, out=np.ones_like(counts), where=counts > 0)
    free = np.sum((expected >= LEAST_EXPECTED) | (counts > 0), axis=1)
    degrees = int(np.sum(np.maximum(free - 1, 0)))
    # Not negative, as rounding makes it where the rounds are those the model was fitted to.
    return max(float(2.0 * np.sum(counts * np.log(ratio))), 0.0), degrees
