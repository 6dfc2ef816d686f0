"""The stochastic oracle: how good a round is, as a Markov chain (section 3.1 of the paper).

An oracle has W states, numbered from the worst (0) to the best (W - 1).  Its path does not depend
on the learner's actions: the next state is sampled from the row of the current one (P^O), and a
learning query in state o succeeds with probability g(o).  The learner knows both, and the current
state, before it sends the query (assumption M4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.arguments import describe_shape, read_numbers
from covertfl.errors import InvalidInput

ROW_SUM_TOLERANCE = 1e-8
TAIL_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class Oracle:
    """A validated Markov oracle.

    Parameters
    ----------
    transition : (W, W) probabilities of the next state, each row sums to 1 (P^O)
    success : (W,) probability in [0, 1] that a learning query succeeds (g)

    Raises
    ------
    InvalidInput
        if a probability is missing or wrong, naming its row and value
    """

    transition: FloatArray
    success: FloatArray

    if TYPE_CHECKING:

        def __init__(self, transition: npt.ArrayLike, success: npt.ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        transition = read_numbers(self.transition, "transition")
        success = read_numbers(self.success, "success")
        _check_transition(transition)
        if success.shape != (len(transition),):
            raise InvalidInput(
                "success must have one probability for each of the "
                f"{len(transition)} oracle states, got {describe_shape(success)}"
            )
        for state, success_prob in enumerate(success):
            if not 0.0 <= success_prob <= 1.0:
                raise InvalidInput(f"success[{state}] must lie in [0, 1], got {success_prob:g}")
        # Rows typed with ten digits miss 1 by more than a linear program tolerates.
        transition = transition / transition.sum(axis=1, keepdims=True)
        transition.setflags(write=False)
        success.setflags(write=False)
        object.__setattr__(self, "transition", transition)
        object.__setattr__(self, "success", success)

    @property
    def num_states(self) -> int:
        """Number of oracle states, W."""
        return len(self.success)


def _check_transition(transition: FloatArray) -> None:
    if transition.ndim != 2 or transition.shape[0] != transition.shape[1] or not transition.size:
        raise InvalidInput(
            f"transition must be square, one row for each state, got {describe_shape(transition)}"
        )
    for row, probs in enumerate(transition):
        for column, prob in enumerate(probs):
            if not 0.0 <= prob <= 1.0:
                raise InvalidInput(
                    f"transition row {row} must hold probabilities in [0, 1], "
                    f"got {prob:g} in column {column}"
                )
        total = float(probs.sum())
        if abs(total - 1.0) > ROW_SUM_TOLERANCE:
            raise InvalidInput(f"transition row {row} must sum to 1, got {total:.10g}")


def find_reachable(transition: FloatArray, start: int) -> BoolArray:
    """Find the states, (W,), that can be reached from `start` in zero or more steps."""
    reached = np.zeros(len(transition), dtype=np.bool_)
    reached[start] = True
    frontier = [start]
    while frontier:
        followers = np.flatnonzero((transition[frontier.pop()] > 0.0) & ~reached)
        reached[followers] = True
        frontier.extend(int(state) for state in followers)
    return reached


def require_irreducible(oracle: Oracle) -> None:
    """Raise `InvalidInput` unless every state can be reached from every other.

    Otherwise a long-run average depends on the first state.
    """
    for start in range(oracle.num_states):
        unreached = np.flatnonzero(~find_reachable(oracle.transition, start))
        if len(unreached):
            raise InvalidInput(
                "transition must let every state be reached from every other for a long-run "
                f"average, but state {unreached[0]} cannot be reached from state {start}"
            )


def compute_stationary_distribution(oracle: Oracle) -> FloatArray:
    """Compute the stationary distribution by Grassmann-Taksar-Heyman elimination.

    The elimination has no subtraction, so each probability is accurate in all its digits.  Returns
    (W,) probabilities pi with pi P^O = pi; raises `InvalidInput` if the oracle is reducible.
    """
    require_irreducible(oracle)
    matrix = np.array(oracle.transition)
    for last in range(len(matrix) - 1, 0, -1):
        leaving = matrix[last, :last].sum()
        matrix[:last, last] /= leaving
        matrix[:last, :last] += np.outer(matrix[:last, last], matrix[last, :last])
    distribution = np.ones(len(matrix))
    for state in range(1, len(matrix)):
        distribution[state] = distribution[:state] @ matrix[:state, state]
    return np.asarray(distribution / distribution.sum(), dtype=np.float64)


@dataclass(frozen=True)
class DominanceViolation:
    """The first pair of rows that violates dominance (M1), and the tail sum that shows it."""

    worse: int
    better: int
    tail_from: int
    tail_of_worse: float
    tail_of_better: float

    def __str__(self) -> str:
        return (
            f"rows {self.worse} and {self.better}: the probability of state {self.tail_from} or "
            f"better is {self.tail_of_worse:.6g} after state {self.worse} but only "
            f"{self.tail_of_better:.6g} after state {self.better}"
        )


def find_dominance_violation(oracle: Oracle) -> DominanceViolation | None:
    """Find the first violation of first-order stochastic dominance of the rows, assumption (M1).

    For i > j every tail sum of row i must be at least that of row j; checking neighbours is
    enough because the order is transitive.
    """
    tails = np.cumsum(oracle.transition[:, ::-1], axis=1)[:, ::-1]
    for worse in range(oracle.num_states - 1):
        short = np.flatnonzero(tails[worse + 1] < tails[worse] - TAIL_TOLERANCE)
        if len(short):
            tail = int(short[0])
            return DominanceViolation(
                worse, worse + 1, tail, float(tails[worse, tail]), float(tails[worse + 1, tail])
            )
    return None
