"""The decision problems: learn or obfuscate, in a finite horizon or with a queue (section 3).

Objects and their symbols in the paper:

=================  ==========  ================================================================
name               symbol      meaning
=================  ==========  ================================================================
`oracle_state`     o (y^O)     how good this round is, 0 (worst) .. W - 1
`backlog`          y (y^L)     updates still needed, 0 .. `updates` or 0 .. `capacity`
`arrival`          e (y^E)     index of this round's arrival: 0 for none, then sizes ascending
`Action`           u           1 learn (true weights), 0 obfuscate (decoy weights)
`privacy_cost`     c(o)        cost of a learning query; obfuscating costs nothing
`LearningCost`     l           terminal cost in the horizon, cost per round with a queue
`limit`            Lambda      bound on the average of the cost that is not minimised
=================  ==========  ================================================================

Backlog 0 is a state in which learning is not admissible (deviation D1).  Per-state tables of a
queue problem are arrays [oracle][arrival][backlog]; where states are numbered, it is in C order.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.arguments import (
    describe_shape,
    quote,
    read_count,
    read_numbers,
    require_choice,
    require_number,
    require_type,
)
from covertfl.decision.oracle import Oracle, require_irreducible
from covertfl.errors import InvalidInput

Shape = Literal["constant", "linear", "quadratic", "triangular", "table"]
Charged = Literal["always", "when-obfuscating"]
Objective = Literal["privacy", "learning"]

LOSS_FACTOR = 1e9  # a lost update costs as much as this many rounds with a full queue
MAX_STATES = 10_000_000  # fits into the memory of an ordinary machine
FORMS = "give arrival_prob and arrival_size, or arrival_sizes"
SUM_TOLERANCE = 1e-9  # decimal probabilities rarely sum to exactly 1


class Action(enum.IntEnum):
    """The action u of a round."""

    OBFUSCATE = 0
    LEARN = 1


@dataclass(frozen=True)
class LearningCost:
    """The learning cost l(y) of a backlog y.

    Parameters
    ----------
    shape : constant a*1[y>0], linear a*y, quadratic a*y^2, triangular a*y*(y+1)/2, or table
    scale : the factor a, at least 0 (not used by a table)
    charged : rounds in which a queue is charged; a horizon is charged once, at the end
    values : costs of the table, by backlog from 0
    by_state : (W,) factors of at least 0, for queues: in oracle state o a backlog y costs
        by_state[o] * l(y); empty if all are 1
    """

    shape: Shape = "linear"
    scale: float = 0.6
    charged: Charged = "always"
    values: tuple[float, ...] = ()
    by_state: tuple[float, ...] = ()

    if TYPE_CHECKING:

        def __init__(
            self,
            shape: Shape = "linear",
            scale: float = 0.6,
            charged: Charged = "always",
            values: npt.ArrayLike = (),
            by_state: npt.ArrayLike = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        require_choice(self.shape, get_args(Shape), "learning.shape")
        require_choice(self.charged, get_args(Charged), "learning.charged")
        require_number(self.scale, "learning.scale")
        for name in ("values", "by_state"):
            row = read_numbers(getattr(self, name), f"learning.{name}")
            if row.ndim != 1:
                raise InvalidInput(
                    f"learning.{name} must be one row of numbers, got {describe_shape(row)}"
                )
            object.__setattr__(self, name, tuple(row.tolist()))
        if self.shape == "table" and not self.values:
            raise InvalidInput("learning.values is required with shape = table, got none")
        if self.shape != "table" and self.values:
            raise InvalidInput(
                f"learning.values goes with shape = table only, got shape = {self.shape}"
            )
        for name in ("values", "by_state"):
            for place, value in enumerate(getattr(self, name)):
                require_number(value, f"learning.{name}[{place}]")

    def at(self, backlog: IntArray) -> FloatArray:
        """Return the cost l(y) of each backlog, without `by_state`; a table must cover them."""
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
        """Raise `InvalidInput` unless a table has one value for each backlog up to the largest."""
        if self.shape == "table" and len(self.values) != largest_backlog + 1:
            raise InvalidInput(
                f"learning.values must have {largest_backlog + 1} values, one for each backlog "
                f"0..{largest_backlog}, got {len(self.values)}"
            )


def _read_privacy_cost(values: npt.ArrayLike, oracle: Oracle) -> FloatArray:
    require_type(oracle, Oracle, "oracle")
    costs = read_numbers(values, "privacy")
    if costs.shape != (oracle.num_states,):
        raise InvalidInput(
            f"privacy must have one cost for each of the {oracle.num_states} oracle states, "
            f"got {costs.size}"
        )
    for state, cost in enumerate(costs):
        require_number(cost, f"privacy[{state}]")
    costs.setflags(write=False)
    return costs


@dataclass(frozen=True, eq=False)
class FiniteHorizon:
    """The finite-horizon problem of section 3.1: `updates` updates in `rounds` rounds.

    Parameters
    ----------
    oracle : the Markov oracle
    privacy_cost : (W,) cost of a learning query, at least 0 (c)
    learning_cost : terminal cost of the backlog that is left (l)
    rounds : N, at least 1
    updates : M, at least 1
    """

    oracle: Oracle
    privacy_cost: FloatArray
    learning_cost: LearningCost
    rounds: int
    updates: int

    if TYPE_CHECKING:

        def __init__(
            self,
            oracle: Oracle,
            privacy_cost: npt.ArrayLike,
            learning_cost: LearningCost,
            rounds: int,
            updates: int,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "privacy_cost", _read_privacy_cost(self.privacy_cost, self.oracle))
        require_type(self.learning_cost, LearningCost, "learning_cost")
        for name in ("rounds", "updates"):
            read_count(getattr(self, name), name)
        if self.learning_cost.by_state:
            raise InvalidInput(
                "learning.by_state is for queue problems; "
                "a horizon is charged after its last round, in no oracle state"
            )
        self.learning_cost.require_length(self.updates)

    def terminal_cost(self) -> FloatArray:
        """Return the cost l(y) of ending with backlog y, (updates + 1,): equation (7) at n = 0."""
        return self.learning_cost.at(np.arange(self.updates + 1))


@dataclass(frozen=True, eq=False)
class QueueProblem:
    """The constrained average-cost problem of a queue, equation (9) with the dynamics (8).

    In state (o, y, e) the backlog moves to min(capacity, y + arrival_support[e] - s), where s = 1
    with probability success[o] if learning and y > 0, else 0; then o' ~ transition[o] and
    e' ~ arrival_probs.  Arrivals are given by `arrival_prob` and `arrival_size`, or by
    `arrival_sizes`; either form gives (A,) `arrival_support`, 0 and the sizes in ascending order,
    and their probabilities `arrival_probs`.

    Parameters
    ----------
    oracle : the Markov oracle, irreducible
    privacy_cost : (W,) cost of a learning query, at least 0 (c)
    learning_cost : cost of the backlog in each round (l), by_state[o] * l(y) in oracle state o
    arrival_prob : probability of an arrival in a round, in (0, 1] (delta)
    arrival_size : updates in an arrival, at least 1 (M)
    limit : limit on the average of the cost that is not minimised (Lambda)
    objective : which average is minimised, "privacy" or "learning"
    capacity : largest backlog; with None the solver increases it until a full queue is negligible
    overflow_cost : learning cost of each lost update; may be None only if capacity is None
    full_cost : extra learning cost of obfuscating at capacity
    arrival_sizes : probability of an arrival of each size in a round, the sum at most 1
    """

    oracle: Oracle
    privacy_cost: FloatArray
    learning_cost: LearningCost
    arrival_prob: float | None = None
    arrival_size: int | None = None
    limit: float = math.nan
    objective: Objective = "privacy"
    capacity: int | None = None
    overflow_cost: float | None = None
    full_cost: float = 0.0
    arrival_sizes: Mapping[int, float] | None = None
    arrival_support: IntArray = field(init=False, repr=False)
    arrival_probs: FloatArray = field(init=False, repr=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            oracle: Oracle,
            privacy_cost: npt.ArrayLike,
            learning_cost: LearningCost,
            arrival_prob: float | None = None,
            arrival_size: int | None = None,
            limit: float = math.nan,
            objective: Objective = "privacy",
            capacity: int | None = None,
            overflow_cost: float | None = None,
            full_cost: float = 0.0,
            arrival_sizes: Mapping[int, float] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "privacy_cost", _read_privacy_cost(self.privacy_cost, self.oracle))
        require_type(self.learning_cost, LearningCost, "learning_cost")
        require_irreducible(self.oracle)
        self._check_by_state(len(self.learning_cost.by_state))
        arrivals = resolve_arrivals(self.arrival_prob, self.arrival_size, self.arrival_sizes)
        for name, values in zip(("arrival_support", "arrival_probs"), arrivals, strict=True):
            object.__setattr__(self, name, values)
        require_choice(self.objective, get_args(Objective), "minimise")
        require_number(self.limit, self.limit_name)
        require_number(self.full_cost, "full_cost")
        if self.overflow_cost is not None:
            require_number(self.overflow_cost, "overflow_cost")
        if self.capacity is None:
            if self.learning_cost.shape == "table":
                raise InvalidInput(
                    'a learning cost given as a table needs a numeric capacity, got "auto"'
                )
            return
        self._check_capacity(self.capacity)

    def _check_by_state(self, given: int) -> None:
        if given not in (0, self.oracle.num_states):
            raise InvalidInput(
                f"learning.by_state must have one factor for each of the {self.oracle.num_states} "
                f"oracle states, got {given}"
            )

    def _check_capacity(self, capacity: int) -> None:
        read_count(capacity, "capacity")
        if self.overflow_cost is None:
            raise InvalidInput(
                f"overflow_cost, the cost of a lost update, is required with capacity = {capacity}"
            )
        if self.num_states > MAX_STATES:
            raise InvalidInput(
                f"capacity must leave at most {MAX_STATES:,} states, "
                f"got {self.num_states:,} with capacity {capacity}"
            )
        self.learning_cost.require_length(capacity)

    @property
    def limit_name(self) -> str:
        """Name of the limit in a problem file."""
        return "learning_limit" if self.objective == "privacy" else "privacy_limit"

    @property
    def num_levels(self) -> int:
        """Number of backlogs, capacity + 1; the capacity must be numeric."""
        if self.capacity is None:
            raise InvalidInput("a numeric capacity is needed, but the problem's capacity is auto")
        return self.capacity + 1

    @property
    def table_shape(self) -> tuple[int, int, int]:
        """Shape (W, A, capacity + 1) of a table [oracle][arrival][backlog]."""
        return (self.oracle.num_states, len(self.arrival_support), self.num_levels)

    @property
    def num_states(self) -> int:
        """Number of states (o, y, e)."""
        return math.prod(self.table_shape)

    @property
    def load(self) -> float:
        """Expected number of updates that arrive in a round, sum(probability * size)."""
        return float(self.arrival_probs @ self.arrival_support)

    @property
    def largest_arrival(self) -> int:
        """Largest number of updates that arrive in a round."""
        return int(self.arrival_support[-1])

    @property
    def state_factors(self) -> FloatArray:
        """Factors of the learning cost by oracle state, (W,)."""
        return np.array(self.learning_cost.by_state or np.ones(self.oracle.num_states))

    def backlog_cost(self, oracle_state: int | IntArray, backlog: IntArray) -> FloatArray:
        """Return the cost by_state[o] * l(y) of each pair of oracle state and backlog."""
        return np.asarray(self.state_factors[oracle_state] * self.learning_cost.at(backlog))

    def index_arrivals(self, sizes: int | IntArray) -> IntArray:
        """Return the arrival index of each size; a size between two takes the larger one's.

        A size above the largest takes that one's, so that policies know what to do with arrivals
        that the problem did not foresee.
        """
        return np.minimum(np.searchsorted(self.arrival_support, sizes), len(self.arrival_probs) - 1)

    def draw_arrivals(self, uniforms: float | FloatArray) -> IntArray:
        """Return the arrival index of each draw that is uniform on [0, 1)."""
        reached = np.cumsum(self.arrival_probs[1:])
        index = 1 + np.searchsorted(reached, uniforms, side="right")
        return np.where(uniforms < reached[-1], index, 0)

    def with_capacity(self, capacity: int) -> QueueProblem:
        """Return the same problem truncated at `capacity`.

        Without an overflow cost, a lost update is charged l(capacity), the cost of a full queue for
        one round, times the largest factor of `by_state`, and LOSS_FACTOR times that if l grows:
        with an unbounded queue, giving up would cost more than any number (deviation D7).
        """
        read_count(capacity, "capacity")
        charge = self.overflow_cost
        if charge is None:
            charge = float(self.learning_cost.at(np.array([capacity]))[0])
            charge *= float(self.state_factors.max())
            if self.learning_cost.shape != "constant":
                charge *= LOSS_FACTOR
        return replace(self, capacity=capacity, overflow_cost=charge)

    def with_limit(self, limit: float) -> QueueProblem:
        """Return the same problem with another limit."""
        return replace(self, limit=limit)


def next_backlog(problem: QueueProblem, *, served: bool) -> IntArray:
    """Return the backlog after a round, (A, capacity + 1) by arrival and backlog: equation (8).

    It is clipped to 0 .. capacity.  At backlog 0 no update can be done, and 0 stays 0.
    """
    return np.clip(_unclipped_backlog(problem, served), 0, problem.num_levels - 1)


def _unclipped_backlog(problem: QueueProblem, served: bool) -> IntArray:
    arrived = problem.arrival_support[:, None]
    return np.asarray(arrived + np.arange(problem.num_levels) - int(served), dtype=np.int64)


def lost_updates(problem: QueueProblem, *, served: bool) -> FloatArray:
    """Return the updates lost to a full queue, (A, capacity + 1) by arrival and backlog."""
    over = _unclipped_backlog(problem, served) - (problem.num_levels - 1)
    return np.maximum(over, 0).astype(np.float64)


def expected_lost(problem: QueueProblem, action: Action) -> FloatArray:
    """Return the expected number of updates lost in a round, (W, A, capacity + 1)."""
    if action is Action.OBFUSCATE:
        return np.broadcast_to(lost_updates(problem, served=False), problem.table_shape)
    g = problem.oracle.success[:, None, None]
    return (1.0 - g) * lost_updates(problem, served=False) + g * lost_updates(problem, served=True)


def round_learning_cost(problem: QueueProblem, action: Action) -> FloatArray:
    """Return the expected learning cost of a round, (W, A, capacity + 1).

    It is by_state[o] * l(y) in the rounds that `charged` selects, plus full_cost if obfuscating at
    capacity, plus overflow_cost for each lost update: the constrained cost of equation (9).
    """
    held = problem.state_factors[:, None, None] * problem.learning_cost.at(
        np.arange(problem.num_levels)
    )
    assert problem.overflow_cost is not None
    if action is Action.LEARN and problem.learning_cost.charged == "when-obfuscating":
        held = np.zeros_like(held)
    if action is Action.OBFUSCATE:
        held[:, :, -1] += problem.full_cost
    return held + problem.overflow_cost * expected_lost(problem, action)


Problem = FiniteHorizon | QueueProblem


def resolve_arrivals(prob: object, size: object, sizes: object) -> tuple[IntArray, FloatArray]:
    """Return support and probabilities of the arrivals, (A,) each; (A - 1) sizes and none first.

    Parameters
    ----------
    prob, size : probability of an arrival in a round, in (0, 1], and its size; None with `sizes`
    sizes : probability by size, the sum at most 1; None with the other two
    """
    if sizes is None:
        for name, value in (("arrival_prob", prob), ("arrival_size", size)):
            if value is None:
                raise InvalidInput(f"{name} is missing: {FORMS}")
        by_size = {read_count(size, "arrival_size"): _read_prob(prob, "arrival_prob")}
    elif prob is not None or size is not None:
        raise InvalidInput(f"arrival_sizes takes the place of the other two: {FORMS}")
    else:
        by_size = _read_sizes(sizes)
    support = np.array([0, *sorted(by_size)], dtype=np.int64)
    probs = np.array([0.0, *(by_size[number] for number in sorted(by_size))])
    total = math.fsum(probs)
    if total > 1.0 + SUM_TOLERANCE:
        raise InvalidInput(f"arrival_sizes must sum to at most 1, got {total:.10g}")
    probs /= max(total, 1.0)
    probs[0] = max(1.0 - total, 0.0)
    for values in (support, probs):
        values.setflags(write=False)
    return support, probs


def _read_prob(value: object, name: str) -> float:
    if not (isinstance(value, Real) and 0.0 < float(value) <= 1.0):
        raise InvalidInput(f"{name} must lie in (0, 1], got {quote(value)}")
    return float(value)


def _read_sizes(sizes: object) -> dict[int, float]:
    if not (isinstance(sizes, Mapping) and sizes):
        raise InvalidInput(f"arrival_sizes must have a probability by size, got {quote(sizes)}")
    return {
        read_count(size, "a size in arrival_sizes"): _read_prob(prob, f"arrival_sizes.{size}")
        for size, prob in sizes.items()
    }
