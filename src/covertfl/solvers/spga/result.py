"""What a search returns: the parameters found, the policies they describe, and the history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.policy import QueueTable, build_sigmoid_table
from covertfl.decision.problem import QueueProblem


@dataclass(frozen=True, eq=False)
class SpgaHistory:
    """The iterations of a run.

    Parameters
    ----------
    privacy_cost, learning_cost : (K,) averages over the iteration's rollout
    multiplier : (K,) weight of the constrained cost
    parameters : (K, 3, W, A) after the iteration
    """

    privacy_cost: FloatArray
    learning_cost: FloatArray
    multiplier: FloatArray
    parameters: FloatArray


@dataclass(frozen=True, eq=False)
class SpgaRun:
    """The outcome of one search (Algorithm 1).

    Parameters
    ----------
    parameters : (3, W, A) theta_1, theta_2 and h of equation (14)
    temperature : tau of equation (14)
    multiplier : weight of the constrained cost at the end
    history : its iterations
    """

    parameters: FloatArray
    temperature: float
    multiplier: float
    history: SpgaHistory

    def policy(self, problem: QueueProblem) -> QueueTable:
        """Return the sigmoid policy (14) as a table of a problem with a numeric capacity."""
        return build_sigmoid_table(problem, self.parameters, self.temperature)


def round_parameters(parameters: FloatArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the two-threshold form (13) of the sigmoid policy (14) in the limit tau -> 0.

    From theta_1, theta_2 and h, (3, W, A), it makes the first threshold, the threshold of certain
    learning and the learning probability in between, (W, A) each.
    """
    theta1, theta2, h = parameters
    low, high = np.minimum(theta1, theta2), np.maximum(theta1, theta2)
    between = np.where(theta1 <= theta2, h, 1.0 - h)
    first, certain = (np.maximum(np.ceil(edge), 1.0).astype(np.int64) for edge in (low, high))
    # A threshold with a negligible weight is dropped.
    first = np.where(between < 1e-3, certain, first)
    certain = np.where(between > 1.0 - 1e-3, first, certain)
    return first, certain, between
