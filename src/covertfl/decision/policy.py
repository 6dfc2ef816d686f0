"""Policies: the probability of learning, given what is known before a query.

Every policy has one method, `learn_prob(observation)`.  The fields of an observation may be
integers or integer arrays that broadcast together, so the same method serves a single round, a
batch of simulated runs and the construction of a table.  Two tables are used throughout:

- a queue table is [oracle][arrival][backlog],
- a horizon table is [rounds_left - 1][oracle][backlog],

and both hold the probability of *learning*.  At backlog 0 no policy of this module learns, except
`RandomPlacement`, which ignores the backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.arguments import (
    describe_shape,
    quote,
    read_count,
    read_numbers,
    require_number,
    require_type,
)
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.errors import InvalidInput

Whole = int | IntArray


@dataclass(frozen=True)
class Observation:
    """What the learner knows before it sends a query; integers or arrays that broadcast.

    Parameters
    ----------
    oracle_state : 0 (worst) .. W - 1
    backlog : updates owed
    arrival : arrival index of this round: 0 for none, then the problem's sizes ascending
    rounds_left : rounds left, this one included; 0 where there is no horizon
    learning_queries : learning queries sent so far
    """

    oracle_state: Whole
    backlog: Whole
    arrival: Whole = 0
    rounds_left: Whole = 0
    learning_queries: Whole = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, np.ndarray):
                read_count(value, name, least=0)
            elif value.dtype.kind not in "iu" or np.any(value < 0):
                raise InvalidInput(f"{name} must be whole numbers of at least 0")
        try:
            np.broadcast(*vars(self).values())
        except ValueError as error:
            raise InvalidInput(f"an observation's arrays must broadcast: {error}") from error


class Policy(Protocol):
    """Anything with a probability of learning for every observation."""

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probability of learning, in the shape that the observation broadcasts to."""
        ...


@dataclass(frozen=True)
class GreedyPolicy:
    """The policy that learns as long as an update is owed."""

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return 1 where the backlog is positive, else 0."""
        backlog, _ = np.broadcast_arrays(observation.backlog, observation.oracle_state)
        return np.asarray(backlog > 0, dtype=np.float64)


@dataclass(frozen=True)
class RandomPlacement:
    """A policy that places `learning_queries` queries uniformly at random over the horizon.

    Given the number placed so far, the next round is one of them with probability (still to place)
    / (rounds left), which makes every placement equally likely.  The backlog is ignored, as in the
    paper's comparison.
    """

    learning_queries: int

    def __post_init__(self) -> None:
        read_count(self.learning_queries, "learning_queries", least=0)

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the learning queries still to place divided by the rounds left."""
        to_place = np.maximum(self.learning_queries - np.asarray(observation.learning_queries), 0)
        rounds_left = np.asarray(observation.rounds_left)
        if np.any(rounds_left < 1):
            raise InvalidInput("random placement needs a horizon: rounds_left must be at least 1")
        learn_prob = np.minimum(to_place / rounds_left, 1.0)
        shape = np.broadcast_shapes(
            learn_prob.shape, np.shape(observation.oracle_state), np.shape(observation.backlog)
        )
        return np.broadcast_to(learn_prob, shape).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _LearnTable:
    """A policy as a table of probabilities of learning, 0 at backlog 0."""

    table: FloatArray

    if TYPE_CHECKING:

        def __init__(self, table: npt.ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        table = read_numbers(self.table, "learn_prob")
        if table.ndim != 3 or not table.size:
            raise InvalidInput(f"learn_prob must have 3 levels of lists, got {table.ndim}")
        outside = np.argwhere(~((table >= 0.0) & (table <= 1.0)))
        if len(outside):
            place = "".join(f"[{index}]" for index in outside[0])
            came = f"{table[tuple(outside[0])]:g}"
            raise InvalidInput(f"learn_prob{place} must lie in [0, 1], got {came}")
        if np.any(table[:, :, 0] > 0.0):
            raise InvalidInput("learn_prob must be 0 at backlog 0, where no update is owed")
        table.setflags(write=False)
        object.__setattr__(self, "table", table)

    def _find_entries(self, *index: Whole) -> FloatArray:
        try:
            return np.asarray(self.table[index])
        except IndexError as error:
            raise InvalidInput(
                "policy must cover every oracle state and backlog of the problem; "
                f"this table of {describe_shape(self.table)} does not: {error}"
            ) from error


class QueueTable(_LearnTable):
    """A stationary policy of a queue problem, as a table.

    Parameters
    ----------
    table : [oracle][arrival][backlog] probabilities of learning, 0 at backlog 0
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table.shape[1] < 2:
            raise InvalidInput("learn_prob must have at least 2 arrival states, got 1")

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the table's entry; a backlog beyond the table takes its last one."""
        backlog = np.minimum(observation.backlog, self.table.shape[2] - 1)
        return self._find_entries(observation.oracle_state, observation.arrival, backlog)


class HorizonTable(_LearnTable):
    """A policy of a finite horizon, as a table.

    Parameters
    ----------
    table : [rounds_left - 1][oracle][backlog] probabilities of learning, 0 at backlog 0
    """

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the table's entry; more rounds left than the table has take its last ones."""
        if np.any(np.asarray(observation.rounds_left) < 1):
            raise InvalidInput("a horizon table needs rounds_left of at least 1")
        row = np.minimum(observation.rounds_left, len(self.table)) - 1
        return self._find_entries(row, observation.oracle_state, observation.backlog)


def require_policy(policy: object) -> None:
    """Raise `InvalidInput` unless `policy` has the method of a policy; a class has not."""
    if isinstance(policy, type) or not callable(getattr(policy, "learn_prob", None)):
        raise InvalidInput(f"policy must have a method learn_prob, got {quote(policy)}")


def tabulate_for_queue(policy: Policy, problem: QueueProblem) -> QueueTable:
    """Return a policy as a table of the problem's states.

    Learning at backlog 0 is not admissible, so its probability is set to 0 (deviation D1).
    """
    require_policy(policy)
    oracle_state, arrival, backlog = np.indices(problem.table_shape, sparse=True)
    observation = Observation(oracle_state, backlog, arrival)
    table = np.array(np.broadcast_to(policy.learn_prob(observation), problem.table_shape))
    table[:, :, 0] = 0.0
    return QueueTable(table)


def build_threshold_table(problem: QueueProblem, thresholds: npt.ArrayLike) -> QueueTable:
    """Build the stationary policy that learns from a threshold on, the form of Theorem 2.

    The thresholds are (W, A) by oracle state and arrival; capacity + 1 is to never learn.
    """
    return build_mixture_table(problem, thresholds, thresholds, 1.0)


def _broadcast(values: npt.ArrayLike, shape: tuple[int, ...], name: str) -> FloatArray:
    numbers = read_numbers(values, name)
    try:
        array = np.broadcast_to(numbers, shape)
    except ValueError as error:
        raise InvalidInput(
            f"{name} must be {' x '.join(map(str, shape))} numbers, got {describe_shape(numbers)}"
        ) from error
    if np.any(np.isnan(array)):
        raise InvalidInput(f"{name} must be numbers, got nan")
    return array


def build_mixture_table(
    problem: QueueProblem, first: npt.ArrayLike, certain: npt.ArrayLike, between: npt.ArrayLike
) -> QueueTable:
    """Build the two-threshold policy of equation (13).

    Parameters
    ----------
    first : (W, A) backlog phi_1 from which learning is possible
    certain : (W, A) backlog phi_2 >= phi_1 from which learning is certain
    between : (W, A) probability p of learning for phi_1 <= y < phi_2
    """
    require_type(problem, QueueProblem, "problem")
    backlog = np.arange(problem.num_levels)
    phi1, phi2, p = (
        _broadcast(values, problem.table_shape[:2], name)[:, :, None]
        for values, name in ((first, "first"), (certain, "certain"), (between, "between"))
    )
    if np.any(phi2 < phi1):
        raise InvalidInput("the threshold of certain learning must not be below the first one")
    table = np.where(backlog >= phi2, 1.0, np.where(backlog >= phi1, p, 0.0))
    table[:, :, 0] = 0.0
    return QueueTable(table)


def build_sigmoid_table(
    problem: QueueProblem, parameters: npt.ArrayLike, temperature: float
) -> QueueTable:
    """Build the sigmoid policy of equation (14), 0 at backlog 0 (deviation D15).

    Parameters
    ----------
    parameters : (3, W, A) the paper's theta_1, theta_2 and h by oracle state and arrival
    temperature : tau > 0; the policy tends to (13) as tau goes to 0
    """
    require_type(problem, QueueProblem, "problem")
    require_number(temperature, "temperature", above=True)
    shape = (3, *problem.table_shape[:2])
    theta1, theta2, h = _broadcast(parameters, shape, "parameters")[..., None]
    backlog = np.arange(problem.num_levels)
    # tanh does not overflow where exp would.
    near, far = (
        0.5 * (1.0 + np.tanh(0.5 * ((backlog - theta) / temperature))) for theta in (theta1, theta2)
    )
    table = h * near + (1.0 - h) * far
    table[:, :, 0] = 0.0
    return QueueTable(table)


def build_horizon_threshold_table(
    problem: FiniteHorizon, thresholds: npt.ArrayLike
) -> HorizonTable:
    """Build the finite-horizon policy that learns from the threshold chi_n(o) on (Theorem 2).

    The thresholds are (N, W) by rounds left - 1 and oracle state, or (W,) if stationary.
    """
    require_type(problem, FiniteHorizon, "problem")
    shape = (problem.rounds, problem.oracle.num_states)
    chi = _broadcast(thresholds, shape, "thresholds")[:, :, None]
    table = (np.arange(problem.updates + 1) >= chi).astype(np.float64)
    table[:, :, 0] = 0.0
    return HorizonTable(table)
