"""The largest chance to finish while learning stays a strict minority: formula F5.

The estimate (6) of the proportional-sampling eavesdropper is the decoy as long as fewer than half
of the queries were learning ones.  After k learning queries in N rounds that is 2 k < N, so N
rounds have room for (N - 1) // 2 learning queries: the budget.  With n rounds left, oracle state
o, m updates needed and b learning queries left in the budget, the largest chance of finishing is

    C_n(o, m, b) = max { sum_o' P(o, o') C_{n-1}(o', m, b),
                         sum_o' P(o, o') [g(o) C_{n-1}(o', m - 1, b - 1)
                                          + (1 - g(o)) C_{n-1}(o', m, b - 1)] },

the second line for m > 0 and b > 0 only, with C_0 = 1 at m = 0 and 0 elsewhere.  If every prefix
has to be a strict minority (2 k < t after each round t), a learning query is also refused while it
would make half of the queries so far, or more, learning ones.

Ties go to obfuscating, where learning must add more than a relative 1e-12 to the chance.  So the
policy obfuscates once finishing has become impossible: it keeps the minority.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput

TIE_TOLERANCE = 1e-12
MAX_TABLE_ENTRIES = 1_000_000_000  # one byte each


def minority_budget(rounds: int) -> int:
    """Most learning queries that are a strict minority of `rounds` queries, (N - 1) // 2."""
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}")
    return (rounds - 1) // 2


@dataclass(frozen=True, eq=False)
class MinorityPolicy:
    """The policy with the largest chance to finish under a budget of learning queries (F5).

    Parameters
    ----------
    learn : (N, W, M + 1, B + 1) booleans [rounds_left - 1][oracle][backlog][budget left]
    """

    learn: BoolArray

    @property
    def budget(self) -> int:
        """Most learning queries it sends, B."""
        return int(self.learn.shape[3]) - 1

    def learn_prob(self, observation: Observation) -> FloatArray:
        """0 or 1; always 0 once the budget is spent.

        Raises
        ------
        InvalidInput
            if rounds left or backlog lie beyond the horizon the policy was made for
        """
        rounds, _, levels, _ = self.learn.shape
        rounds_left, backlog = np.asarray(observation.rounds_left), np.asarray(observation.backlog)
        _require_within(rounds_left, "rounds_left", 1, rounds)
        _require_within(backlog, "backlog", 0, levels - 1)
        left = np.maximum(self.budget - np.asarray(observation.learning_queries), 0)
        chosen = self.learn[rounds_left - 1, observation.oracle_state, backlog, left]
        return np.asarray(chosen, dtype=np.float64)


def _require_within(values: npt.NDArray[np.int64], name: str, low: int, high: int) -> None:
    if np.any((values < low) | (values > high)):
        raise InvalidInput(
            f"{name} must lie in {low}..{high} for this policy, "
            f"got {int(values.min())}..{int(values.max())}"
        )


@dataclass(frozen=True, eq=False)
class MinoritySolution:
    """The policy of F5 and its chance.

    Parameters
    ----------
    problem : what was solved; its costs play no part
    every_prefix : whether learning is a strict minority after every round, or at the end
    chances : (W,) chance of finishing, by first oracle state
    policy : what reaches it
    """

    problem: FiniteHorizon
    every_prefix: bool
    probs: FloatArray
    policy: MinorityPolicy


def completion_probs(oracle: Oracle, updates: int, rounds: int) -> FloatArray:
    """Largest chance to finish with learning a strict minority at the end, 2 k < N (F5).

    Parameters
    ----------
    updates : M, at least 1
    rounds : N, at least 1

    Returns
    -------
    (W,) by first oracle state
    """
    return _finish(oracle, updates, rounds, every_prefix=False, learn=None)


def prefix_completion_probs(oracle: Oracle, updates: int, rounds: int) -> FloatArray:
    """Largest chance to finish with learning a strict minority after every round t, 2 k < t (F5).

    Parameters
    ----------
    updates : M, at least 1
    rounds : N, at least 1

    Returns
    -------
    (W,) by first oracle state
    """
    return _finish(oracle, updates, rounds, every_prefix=True, learn=None)


def solve_minority(problem: FiniteHorizon, *, every_prefix: bool = False) -> MinoritySolution:
    """The policy with the largest chance to finish with learning a strict minority (F5).

    Parameters
    ----------
    problem : oracle, rounds and updates are used, costs are not
    every_prefix : demand the minority after every round, not only at the end

    Raises
    ------
    InvalidInput
        if the table of the policy would not fit into the memory of an ordinary machine
    """
    oracle, rounds, updates = problem.oracle, problem.rounds, problem.updates
    shape = (rounds, oracle.num_states, updates + 1, minority_budget(rounds) + 1)
    entries = int(np.prod(shape, dtype=np.float64))
    if entries > MAX_TABLE_ENTRIES:
        raise InvalidInput(
            f"rounds and updates must leave the minority policy at most {MAX_TABLE_ENTRIES:,} "
            f"states, got {entries:,} with rounds = {rounds} and updates = {updates}"
        )
    learn = np.zeros(shape, dtype=np.bool_)
    probs = _finish(oracle, updates, rounds, every_prefix=every_prefix, learn=learn)
    learn.setflags(write=False)
    return MinoritySolution(problem, every_prefix, probs, MinorityPolicy(learn))


def completion_by_rounds(oracle: Oracle, updates: int, max_rounds: int) -> FloatArray:
    """Largest chance to finish with a strict minority at the end, by the number of rounds (F5).

    Parameters
    ----------
    oracle : irreducible; the first state is drawn from its stationary law
    updates : M, at least 1
    max_rounds : at least 1

    Returns
    -------
    (max_rounds + 1,) chances for 0 .. max_rounds rounds, nondecreasing
    """
    if max_rounds < 1:
        raise InvalidInput(f"max_rounds must be at least 1, got {max_rounds}")
    by_rounds = _stationary_completion(oracle, updates)
    return np.array([0.0, *(next(by_rounds) for _ in range(max_rounds))])


def rounds_needed(
    oracle: Oracle,
    updates: int,
    probs: Sequence[float] = (0.9, 0.95, 0.99),
    *,
    max_rounds: int,
) -> dict[float, int | None]:
    """Fewest rounds that give each chance to finish with a strict minority at the end (F5).

    One pass over the number of rounds, which ends as soon as the largest chance is reached.

    Parameters
    ----------
    oracle : irreducible; the first state is drawn from its stationary law
    updates : M, at least 1
    chances : each in (0, 1]
    max_rounds : where to give up, at least 1

    Returns
    -------
    rounds by chance, None where `max_rounds` do not suffice
    """
    for prob in probs:
        if not 0.0 < prob <= 1.0:
            raise InvalidInput(f"chances must lie in (0, 1], got {prob:g}")
    if max_rounds < 1:
        raise InvalidInput(f"max_rounds must be at least 1, got {max_rounds}")
    needed: dict[float, int | None] = dict.fromkeys(probs)
    open_probs = sorted(set(probs))
    by_rounds = _stationary_completion(oracle, updates)
    for rounds in range(1, max_rounds + 1):
        if not open_probs:
            break
        reached = next(by_rounds)
        while open_probs and reached >= open_probs[0] * (1.0 - TIE_TOLERANCE):
            needed[open_probs.pop(0)] = rounds
    return needed


def _finish(
    oracle: Oracle, updates: int, rounds: int, *, every_prefix: bool, learn: BoolArray | None
) -> FloatArray:
    """Run the recursion over all rounds; fills `learn` where it is given."""
    budget = minority_budget(rounds)
    probs = _probs_at_the_end(oracle, updates, budget)
    for n in range(1, rounds + 1):
        # Before this round N - n are over: a prefix allows (N - n) // 2 learning queries with it.
        least = max(1, budget + 1 - (rounds - n) // 2) if every_prefix else 1
        obfuscating, learning = _action_probs(oracle, probs, least)
        if learn is not None:
            learn[n - 1] = learning > (1.0 + TIE_TOLERANCE) * obfuscating
        probs = np.maximum(obfuscating, learning)
    return np.minimum(probs[:, updates, budget], 1.0)


def _stationary_completion(oracle: Oracle, updates: int) -> Iterator[float]:
    """Chance with the end-of-horizon budget for N = 1, 2, ... rounds.

    C_n does not depend on N, so one recursion serves every N.  With n rounds left a budget beyond
    n is as good as n: the budget axis grows by one in each step, by repeating its end.
    """
    distribution = compute_stationary_distribution(oracle)
    probs = _probs_at_the_end(oracle, updates, 0)
    rounds = 0
    while True:
        rounds += 1
        wider = np.concatenate([probs, probs[:, :, -1:]], axis=2)
        probs = np.maximum(*_action_probs(oracle, wider, 1))
        yield min(float(distribution @ probs[:, updates, minority_budget(rounds)]), 1.0)


def _probs_at_the_end(oracle: Oracle, updates: int, budget: int) -> FloatArray:
    """C_0: finished or not, (W, M + 1, B + 1)."""
    if updates < 1:
        raise InvalidInput(f"updates must be at least 1, got {updates}")
    probs = np.zeros((oracle.num_states, updates + 1, budget + 1))
    probs[:, 0] = 1.0
    return probs


def _action_probs(
    oracle: Oracle, probs: FloatArray, least_budget: int
) -> tuple[FloatArray, FloatArray]:
    """Chance of finishing after each action: the operator of F5.

    Parameters
    ----------
    chances : (W, M + 1, B + 1) C_{n-1} by oracle state, updates needed and budget left
    least_budget : least budget left, at least 1, with which a learning query is allowed

    Returns
    -------
    obfuscating and learning, (W, M + 1, B + 1) each; learning is 0 where it is not allowed
    """
    g = oracle.success[:, None, None]
    obfuscating = np.tensordot(oracle.transition, probs, axes=1)
    learning = np.zeros_like(obfuscating)
    spent = obfuscating[:, :, least_budget - 1 : -1]
    learning[:, 1:, least_budget:] = g * spent[:, :-1] + (1.0 - g) * spent[:, 1:]
    return obfuscating, learning
