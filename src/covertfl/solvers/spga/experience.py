"""Sources of experience: past or simulated rounds, independent of the actions taken in them.

Neither the oracle's path nor the would-be success of a round depends on the learner's actions
(section 3.1), and neither do arrivals.  So one stretch of experience scores every policy: no
transition probabilities are needed, and two policies can be compared on the very same rounds.

Three sources implement one protocol: a simulator made from a problem, a recorded log that is
replayed, and a live feed to which each round is added as it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Experience:
    """A stretch of rounds.

    Parameters
    ----------
    oracle_state : (T,) oracle state of each round
    arrival : (T,) updates that arrived in it, 0 in most
    success : (T,) whether a learning query would have succeeded
    """

    oracle_state: IntArray
    arrival: IntArray
    success: BoolArray

    def __len__(self) -> int:
        return len(self.oracle_state)


class Source(Protocol):
    """Anything that returns experience."""

    def next_rounds(self, count: int) -> Experience:
        """Return the next `count` rounds, continuing from the previous ones where possible."""
        ...


class SimulatedSource:
    """Rounds drawn from an oracle and an arrival process.

    Parameters
    ----------
    oracle : P^O and g
    arrival_prob, arrival_size : probability of an arrival in a round, and its size; or (K,) those
        of each of several sizes
    generator : source of all randomness
    first : first oracle state; sampled from the stationary distribution if None
    episode : number of rounds after which the path restarts from `first`; never if None
    """

    def __init__(
        self,
        oracle: Oracle,
        arrival_prob: float | FloatArray = 0.0,
        arrival_size: int | IntArray = 0,
        *,
        generator: np.random.Generator,
        first: int | None = None,
        episode: int | None = None,
    ) -> None:
        cumulative = np.cumsum(oracle.transition, axis=1)
        cumulative /= cumulative[:, -1:]  # exactly 1 at the end
        if first is None:
            first_distribution = compute_stationary_distribution(oracle)
        else:
            first_distribution = np.eye(oracle.num_states)[first]
        self._generator = generator
        self._oracle = (cumulative, np.cumsum(first_distribution)[np.newaxis], oracle.success)
        reached = np.cumsum(np.atleast_1d(arrival_prob), dtype=np.float64)
        self._arrival = (reached, np.atleast_1d(arrival_size).astype(np.int64))
        self._episode = episode or 0
        self._state, self._since_start = -1, 0

    def next_rounds(self, count: int) -> Experience:
        """Draw the next `count` rounds."""
        from covertfl.solvers.spga.kernel import draw_rounds

        states = np.empty(count, dtype=np.int64)
        arrivals = np.empty(count, dtype=np.int64)
        successes = np.empty(count, dtype=np.bool_)
        self._state, self._since_start = draw_rounds(
            self._generator,
            self._oracle,
            self._arrival,
            self._episode,
            self._state,
            self._since_start,
            (states, arrivals, successes),
        )
        return Experience(states, arrivals, successes)


class ReplayedLog:
    """A recorded stretch of rounds, returned in order and starting over at its end."""

    def __init__(self, recorded: Experience) -> None:
        if not len(recorded):
            raise InvalidInput("a log to replay must have at least one round, got none")
        self.recorded, self._next = recorded, 0

    def next_rounds(self, count: int) -> Experience:
        """Return the next `count` rounds of the log."""
        at = (self._next + np.arange(count)) % len(self.recorded)
        self._next = int((self._next + count) % len(self.recorded))
        return _take(self.recorded, at)


def _take(recorded: Experience, at: IntArray) -> Experience:
    return Experience(recorded.oracle_state[at], recorded.arrival[at], recorded.success[at])
