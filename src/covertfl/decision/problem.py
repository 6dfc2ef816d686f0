"""What is to be decided: learn or obfuscate, in a finite horizon or with a queue (section 3).

Objects and their symbols in the paper:

=================  ==========  ================================================================
name               symbol      meaning
=================  ==========  ================================================================
`oracle_state`     o (y^O)     how good this round is, 0 (worst) .. W - 1
`backlog`          y (y^L)     updates still needed, 0 .. `updates` or 0 .. `capacity`
`arrival`          e (y^E)     1 if this round's arrival of `arrival_size` updates happened
`Action`           u           1 learn (true weights), 0 obfuscate (decoy weights)
`privacy_cost`     c(o)        cost of a learning query; obfuscating costs nothing
`LearningCost`     l           terminal cost in the horizon, cost per round with a queue
`limit`            Lambda      bound on the average of the cost that is not minimised
=================  ==========  ================================================================

Backlog 0 is a state in which learning is not admissible (deviation D1).  Per-state tables of a
queue problem are arrays [oracle][arrival][backlog]; their C-order is the one state index, computed
by `state_index`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Literal, get_args

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.oracle import Oracle, require_irreducible
from covertfl.errors import InvalidInput

Shape = Literal["constant", "linear", "quadratic", "triangular", "table"]
Charged = Literal["always", "when-obfuscating"]
Objective = Literal["privacy", "learning"]

LOSS_FACTOR = 1e9  # rounds of a full queue that a lost update counts for
MAX_STATES = 10_000_000  # what fits into the memory of an ordinary machine


class Action(enum.IntEnum):
    """The action u of a round."""

    OBFUSCATE = 0
    LEARN = 1


def _require_number(value: float, name: str, *, low: float = 0.0) -> None:
    if not (math.isfinite(value) and value >= low):
        raise InvalidInput(f"{name} must be a finite number of at least {low:g}, got {value:g}")


def _require_count(value: int, name: str) -> None:
    if not (isinstance(value, Integral) and value >= 1):
        raise InvalidInput(f"{name} must be a whole number of at least 1, got {value}")


@dataclass(frozen=True)
class LearningCost:
    """The learning cost l(y) of a backlog y.

    Parameters
    ----------
    shape : constant a*1[y>0], linear a*y, quadratic a*y^2, triangular a*y*(y+1)/2, or table
    scale : the factor a, at least 0 (not used by a table)
    charged : in which rounds a queue pays it; a horizon pays it once, at the end
    values : the table, from backlog 0 on
    """

    shape: Shape = "linear"
    scale: float = 0.6
    charged: Charged = "always"
    values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise InvalidInput(
                f"learning.shape must be one of {', '.join(get_args(Shape))}, got {self.shape!r}"
            )
        if self.charged not in get_args(Charged):
            raise InvalidInput(
                f"learning.charged must be always or when-obfuscating, got {self.charged!r}"
            )
        _require_number(self.scale, "learning.scale")
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        for backlog, value in enumerate(self.values):
            _require_number(value, f"learning.values[{backlog}]")
        if (self.shape == "table") != bool(self.values):
            raise InvalidInput("learning.values goes with shape table, and only with it")

    def at(self, backlog: IntArray) -> FloatArray:
        """Cost l(y) of each backlog; a table must reach as far as the largest."""
        y = np.asarray(backlog, dtype=np.float64)
        if self.shape == "constant":
            return np.where(y > 0, self.scale, 0.0)
        if self.shape == "linear":
            return self.scale * y
        if self.shape == "quadratic":
            return self.scale * y * y
        if self.shape == "triangular":
            return self.scale * y * (y + 1.0) / 2.0
        return np.asarray(self.values, dtype=np.float64)[np.asarray(backlog)]

    def require_length(self, largest_backlog: int) -> None:
        """Raise `InvalidInput` unless a table has one value for each backlog 0 .. largest."""
        if self.shape == "table" and len(self.values) != largest_backlog + 1:
            raise InvalidInput(
                f"learning.values must have {largest_backlog + 1} values, one for each backlog "
                f"0..{largest_backlog}, got {len(self.values)}"
            )


def _read_privacy_cost(values: object, oracle: Oracle) -> FloatArray:
    try:
        costs = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput("privacy must be numbers, one for each oracle state") from error
    if costs.shape != (oracle.num_states,):
        raise InvalidInput(
            f"privacy must have one cost for each of the {oracle.num_states} oracle states, "
            f"got {costs.size}"
        )
    for state, cost in enumerate(costs):
        _require_number(float(cost), f"privacy[{state}]")
    costs.setflags(write=False)
    return costs


@dataclass(frozen=True, eq=False)
class FiniteHorizon:
    """Finish `updates` updates in `rounds` rounds; what is left costs l at the end (section 3.1).

    Parameters
    ----------
    oracle : the Markov oracle
    privacy_cost : (W,) cost of a learning query, at least 0
    learning_cost : terminal cost of the backlog that is left
    rounds : N, at least 1
    updates : M, at least 1
    """

    oracle: Oracle
    privacy_cost: FloatArray
    learning_cost: LearningCost
    rounds: int
    updates: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "privacy_cost", _read_privacy_cost(self.privacy_cost, self.oracle))
        for name in ("rounds", "updates"):
            _require_count(getattr(self, name), name)
        self.learning_cost.require_length(self.updates)

    def terminal_cost(self) -> FloatArray:
        """(updates + 1,) cost l(y) of ending with backlog y, equation (7) at n = 0."""
        return self.learning_cost.at(np.arange(self.updates + 1))


@dataclass(frozen=True, eq=False)
class QueueProblem:
    """Serve a queue of updates for ever: the constrained problem (9) with dynamics (8).

    In state (o, y, e) the backlog moves to min(capacity, y + e * arrival_size - s), where s = 1
    with chance success[o] if learning and y > 0, else 0; then o' ~ transition[o] and
    e' ~ Bernoulli(arrival_prob).

    Parameters
    ----------
    oracle : the Markov oracle, irreducible
    privacy_cost : (W,) cost of a learning query, at least 0
    learning_cost : cost per round of the backlog
    arrival_prob : chance of an arrival in a round, in (0, 1] (delta)
    arrival_size : updates in an arrival, at least 1 (M)
    limit : bound on the average of the cost that is not minimised (Lambda)
    objective : which average is minimised, "privacy" or "learning"
    capacity : largest backlog; None lets the solver grow it until it does not matter
    overflow_cost : learning cost of each lost update; None only where capacity is None
    full_cost : extra learning cost of obfuscating at capacity
    """

    oracle: Oracle
    privacy_cost: FloatArray
    learning_cost: LearningCost
    arrival_prob: float
    arrival_size: int
    limit: float
    objective: Objective = "privacy"
    capacity: int | None = None
    overflow_cost: float | None = None
    full_cost: float = field(default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "privacy_cost", _read_privacy_cost(self.privacy_cost, self.oracle))
        require_irreducible(self.oracle)
        if not 0.0 < self.arrival_prob <= 1.0:
            raise InvalidInput(f"arrival_prob must lie in (0, 1], got {self.arrival_prob:g}")
        _require_count(self.arrival_size, "arrival_size")
        if self.objective not in get_args(Objective):
            raise InvalidInput(f"minimise must be privacy or learning, got {self.objective!r}")
        _require_number(self.limit, self.limit_name)
        _require_number(self.full_cost, "full_cost")
        if self.overflow_cost is not None:
            _require_number(self.overflow_cost, "overflow_cost")
        if self.capacity is None:
            if self.learning_cost.shape == "table":
                raise InvalidInput(
                    'a learning cost given as a table needs a capacity in numbers, got "auto"'
                )
            return
        self._check_capacity(self.capacity)

    def _check_capacity(self, capacity: int) -> None:
        _require_count(capacity, "capacity")
        if self.overflow_cost is None:
            raise InvalidInput(
                f"overflow_cost, what a lost update costs, is required with capacity = {capacity}"
            )
        if self.num_states > MAX_STATES:
            raise InvalidInput(
                f"capacity must leave at most {MAX_STATES:,} states, "
                f"got {self.num_states:,} with capacity {capacity}"
            )
        self.learning_cost.require_length(capacity)

    @property
    def limit_name(self) -> str:
        """The key of the limit in a problem file."""
        return "learning_limit" if self.objective == "privacy" else "privacy_limit"

    @property
    def num_levels(self) -> int:
        """Number of backlogs, capacity + 1; the capacity must be a number."""
        if self.capacity is None:
            raise InvalidInput("this needs a capacity in numbers; the problem says auto")
        return self.capacity + 1

    @property
    def table_shape(self) -> tuple[int, int, int]:
        """Shape (W, 2, capacity + 1) of a table [oracle][arrival][backlog]."""
        return (self.oracle.num_states, 2, self.num_levels)

    @property
    def num_states(self) -> int:
        """Number of states (o, y, e)."""
        return math.prod(self.table_shape)

    @property
    def load(self) -> float:
        """Updates that arrive in a round on average, delta * M."""
        return self.arrival_prob * self.arrival_size

    def with_capacity(self, capacity: int) -> QueueProblem:
        """The same problem cut off at `capacity`.

        Where no overflow cost was given, a lost update is charged l(capacity), as if the full
        queue were held for one round more, and LOSS_FACTOR times that if l grows: with an endless
        queue, giving up would cost more than any number (deviation D7).
        """
        charge = self.overflow_cost
        if charge is None:
            charge = float(self.learning_cost.at(np.array([capacity]))[0])
            if self.learning_cost.shape != "constant":
                charge *= LOSS_FACTOR
        return replace(self, capacity=capacity, overflow_cost=charge)

    def with_limit(self, limit: float) -> QueueProblem:
        """The same problem with another limit."""
        return replace(self, limit=limit)


def state_index(problem: QueueProblem, oracle_state: int, arrival: int, backlog: int) -> int:
    """Position of state (o, e, y) in a flattened table: the one state index."""
    return (oracle_state * 2 + arrival) * problem.num_levels + backlog


def next_backlog(problem: QueueProblem, *, served: bool) -> IntArray:
    """Backlog after a round, equation (8) with a floor at 0 and a ceiling at capacity.

    Returns
    -------
    (2, capacity + 1) by arrival and backlog; served at backlog 0 is not admissible and left at 0
    """
    arrived = np.arange(2)[:, None] * problem.arrival_size
    backlog = arrived + np.arange(problem.num_levels) - int(served)
    return np.asarray(np.clip(backlog, 0, problem.num_levels - 1), dtype=np.int64)


def lost_updates(problem: QueueProblem, *, served: bool) -> FloatArray:
    """Updates lost to a full queue in a round, by arrival and backlog.

    Returns
    -------
    (2, capacity + 1)
    """
    arrived = np.arange(2)[:, None] * problem.arrival_size
    over = arrived + np.arange(problem.num_levels) - int(served) - (problem.num_levels - 1)
    return np.asarray(np.maximum(over, 0), dtype=np.float64)


def expected_lost(problem: QueueProblem, action: Action) -> FloatArray:
    """Expected updates lost in a round, (W, 2, capacity + 1)."""
    if action is Action.OBFUSCATE:
        return np.broadcast_to(lost_updates(problem, served=False), problem.table_shape)
    g = problem.oracle.success[:, None, None]
    return (1.0 - g) * lost_updates(problem, served=False) + g * lost_updates(problem, served=True)


def round_learning_cost(problem: QueueProblem, action: Action) -> FloatArray:
    """Expected learning cost of a round, (W, 2, capacity + 1).

    l(y) as `charged` says, plus full_cost if obfuscating at capacity, plus overflow_cost for each
    update lost.
    """
    held = problem.learning_cost.at(np.arange(problem.num_levels))
    assert problem.overflow_cost is not None
    if action is Action.LEARN and problem.learning_cost.charged == "when-obfuscating":
        held = np.zeros_like(held)
    if action is Action.OBFUSCATE:
        held = held.copy()
        held[-1] += problem.full_cost
    return held + problem.overflow_cost * expected_lost(problem, action)


Problem = FiniteHorizon | QueueProblem
