"""An oracle state that is only partly known: the learner reads it wrong with some probability.

A policy then acts on the state that was read, while costs, participation and success follow the
true one.  Readings are independent given the true state, so that seen from the true state the
policy is `MisreadPolicy`: whatever evaluates, simulates or eavesdrops on a policy does so exactly
with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.arguments import describe_shape, read_numbers
from covertfl.decision.policy import Observation, Policy
from covertfl.errors import InvalidInput

ROW_TOLERANCE = 1e-9  # of the sum of a row


def build_confusion(misread: float | Sequence[Sequence[float]], num_states: int) -> FloatArray:
    """Return the (W, W) probabilities of reading a state (column) in a true state (row).

    Parameters
    ----------
    misread : the matrix itself, or the probability in [0, 1] of reading a wrong state, each of the
        others being equally likely
    num_states : W >= 1
    """
    matrix = read_numbers(misread, "misread")
    if matrix.ndim == 0:
        error = float(matrix)
        if not 0.0 <= error <= 1.0:
            raise InvalidInput(f"misread must lie in [0, 1], got {error:g}")
        if num_states == 1:
            return np.ones((1, 1))
        wrong = np.full((num_states, num_states), error / (num_states - 1))
        np.fill_diagonal(wrong, 1.0 - error)
        return wrong
    if matrix.shape != (num_states, num_states):
        raise InvalidInput(
            f"misread must be a probability or {num_states} x {num_states} of them (true state x "
            f"state that is read), got {describe_shape(matrix)}"
        )
    is_wrong = (matrix < 0.0).any(axis=1) | (np.abs(matrix.sum(axis=1) - 1.0) > ROW_TOLERANCE)
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        came = ", ".join(f"{value:g}" for value in matrix[row])
        raise InvalidInput(f"misread row {row} must be probabilities that sum to 1, got {came}")
    return matrix


def read_state(confusion: FloatArray, oracle_state: int, *, generator: np.random.Generator) -> int:
    """Draw the state that is read in a true oracle state."""
    reached = np.cumsum(confusion[oracle_state]) > generator.random()
    return int(np.argmax(reached)) if reached.any() else len(confusion) - 1


@dataclass(frozen=True, eq=False)
class MisreadPolicy:
    """A policy that acts on the state that is read, as a policy of the true state.

    It learns with the average probability over what may be read.

    Parameters
    ----------
    policy : of the state that is read
    confusion : (W, W) probabilities of reading a state (column) in a true state (row)
    """

    policy: Policy
    confusion: FloatArray

    @property
    def budget(self) -> int | None:
        """Largest number of learning queries, None if the policy has no such limit."""
        return getattr(self.policy, "budget", None)

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probability of learning given the true oracle state."""
        state = np.asarray(observation.oracle_state)
        prob: FloatArray = np.zeros(())
        for read, share in enumerate(self.confusion.T):
            as_read = replace(observation, oracle_state=np.full_like(state, read))
            prob = prob + share[state] * self.policy.learn_prob(as_read)
        return prob
