"""The largest probability to finish with learning a strict minority (F5 of docs/paper_map.md).

The estimate (6) of the proportional-sampling eavesdropper is the decoy as long as fewer than half
of the queries are learning queries.  After k learning queries in N rounds that is 2 k < N, so the
budget for N rounds is (N - 1) // 2 learning queries.

With n rounds left, oracle state o, m updates needed and b learning queries left in the budget, the
largest probability of finishing is

    C_n(o, m, b) = max { sum_o' P(o, o') C_{n-1}(o', m, b),
                         sum_o' P(o, o') [g(o) C_{n-1}(o', m - 1, b - 1)
                                          + (1 - g(o)) C_{n-1}(o', m, b - 1)] },

the second term for m > 0 and b > 0 only, with C_0 = 1 at m = 0 and 0 elsewhere.  If learning has
to be a strict minority of every prefix (2 k < t after each round t), a learning query is also
excluded if it would make half of the queries so far, or more, learning queries.

Ties go to obfuscating: learning must raise the probability by more than a relative 1e-12.  So the
policy obfuscates once finishing has become impossible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.arguments import read_count, require_type
from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput

TIE_TOLERANCE = 1e-12
MAX_TABLE_ENTRIES = 1_000_000_000  # one byte each


def minority_budget(rounds: int) -> int:
    """Return the most learning queries that are fewer than the decoy's, (N - 1) // 2."""
    return (read_count(rounds, "rounds") - 1) // 2


@dataclass(frozen=True, eq=False)
class MinorityPolicy:
    """The policy with the largest probability to finish within a budget of learning queries (F5).

    Parameters
    ----------
    learn : (N, W, M + 1, B + 1) booleans [rounds_left - 1][oracle][backlog][budget left]
    """

    learn: BoolArray

    @property
    def budget(self) -> int:
        """Largest number of learning queries it sends, B."""
        return int(self.learn.shape[3]) - 1

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return 0 or 1; always 0 once the budget is spent.

        Raises `InvalidInput` if the observation is of no state of the policy's problem.
        """
        rounds, num_states, levels, _ = self.learn.shape
        rounds_left, backlog = np.asarray(observation.rounds_left), np.asarray(observation.backlog)
        oracle_state = np.asarray(observation.oracle_state)
        for values, name, low, high in (
            (rounds_left, "rounds_left", 1, rounds),
            (oracle_state, "oracle_state", 0, num_states - 1),
            (backlog, "backlog", 0, levels - 1),
        ):
            if np.any((values < low) | (values > high)):
                raise InvalidInput(
                    f"{name} must lie in {low}..{high} for this policy, "
                    f"got {int(values.min())}..{int(values.max())}"
                )
        left = np.maximum(self.budget - np.asarray(observation.learning_queries), 0)
        chosen = self.learn[rounds_left - 1, oracle_state, backlog, left]
        return np.asarray(chosen, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class MinoritySolution:
    """The policy of formula F5 and its probability of finishing.

    Parameters
    ----------
    problem : the problem that was solved; its costs are not used
    every_prefix : whether learning is a strict minority after every round, or only at the end
    finish_probs : (W,) largest probability of finishing, by first oracle state
    policy : the policy that attains it
    """

    problem: FiniteHorizon
    every_prefix: bool
    finish_probs: FloatArray
    policy: MinorityPolicy


def solve_minority(problem: FiniteHorizon, *, every_prefix: bool = False) -> MinoritySolution:
    """Compute the policy most likely to finish with learning a strict minority (formula F5).

    Parameters
    ----------
    problem : its oracle, rounds and updates are used, its costs are not
    every_prefix : require the minority after every round, not only at the end

    Raises
    ------
    InvalidInput
        if the table of the policy would not fit into the memory of an ordinary machine
    """
    require_type(problem, FiniteHorizon, "problem")
    oracle, rounds, updates = problem.oracle, problem.rounds, problem.updates
    shape = (rounds, oracle.num_states, updates + 1, minority_budget(rounds) + 1)
    entries = int(np.prod(shape, dtype=np.float64))
    if entries > MAX_TABLE_ENTRIES:
        raise InvalidInput(
            f"rounds and updates must leave the minority policy at most {MAX_TABLE_ENTRIES:,} "
            f"states, got {entries:,} with rounds = {rounds} and updates = {updates}"
        )
    learn = np.zeros(shape, dtype=np.bool_)
    probs = completion_by_updates(oracle, updates, rounds, every_prefix=every_prefix, learn=learn)
    learn.setflags(write=False)
    return MinoritySolution(problem, every_prefix, probs[:, updates], MinorityPolicy(learn))


def completion_by_rounds(oracle: Oracle, updates: int, max_rounds: int) -> FloatArray:
    """Return the largest probability to finish covertly in N = 0 .. max_rounds (formula F5).

    The oracle must be irreducible; the first state has its stationary distribution.
    """
    read_count(max_rounds, "max_rounds")
    by_rounds = _stationary_completion(oracle, updates)
    return np.array([0.0, *(next(by_rounds) for _ in range(max_rounds))])


def rounds_needed(
    oracle: Oracle,
    updates: int,
    finish_probs: Sequence[float] = (0.9, 0.95, 0.99),
    *,
    max_rounds: int,
) -> dict[float, int | None]:
    """Find the fewest rounds to finish covertly with given probabilities (formula F5).

    One pass over the number of rounds, which ends as soon as the largest probability is reached.

    The oracle must be irreducible; the first state has its stationary distribution.  Returns the
    rounds by probability, each in (0, 1], and None where `max_rounds` do not suffice.
    """
    for finish_prob in finish_probs:
        if not 0.0 < finish_prob <= 1.0:
            raise InvalidInput(f"finish_probs must lie in (0, 1], got {finish_prob:g}")
    read_count(max_rounds, "max_rounds")
    by_rounds = _stationary_completion(oracle, updates)
    return find_first_rounds(by_rounds, finish_probs, max_rounds)


def find_first_rounds(
    by_rounds: Iterator[float], finish_probs: Sequence[float], max_rounds: int
) -> dict[float, int | None]:
    """Find the first round at which each probability is reached, None beyond `max_rounds`.

    Parameters
    ----------
    by_rounds : probabilities of finishing within 1, 2, ... rounds, read as far as needed
    """
    needed: dict[float, int | None] = dict.fromkeys(finish_probs)
    open_probs = sorted(set(finish_probs))
    for rounds in range(1, max_rounds + 1):
        if not open_probs:
            break
        reached = next(by_rounds)
        while open_probs and reached >= open_probs[0] * (1.0 - TIE_TOLERANCE):
            needed[open_probs.pop(0)] = rounds
    return needed


def completion_probs(
    oracle: Oracle, updates: int, rounds: int, *, every_prefix: bool = False
) -> FloatArray:
    """Return the largest probability, (W,) by first oracle state, to finish covertly (F5).

    Parameters as in `completion_by_updates`.
    """
    return completion_by_updates(oracle, updates, rounds, every_prefix=every_prefix)[:, updates]


def completion_by_updates(
    oracle: Oracle,
    updates: int,
    rounds: int,
    *,
    every_prefix: bool = False,
    learn: BoolArray | None = None,
) -> FloatArray:
    """Return the largest probability to finish 0 .. M updates covertly in N rounds (F5).

    The array is (W, M + 1), by first oracle state and number of updates.

    Parameters
    ----------
    updates, rounds : M and N, at least 1
    every_prefix : require learning queries to be fewer than the decoy's after every round
    learn : (N, W, M + 1, B + 1) array that the policy is written to, if given
    """
    budget = minority_budget(rounds)
    probs = _final_probs(oracle, updates, budget)
    for n in range(1, rounds + 1):
        # N - n rounds are over: with this one, a prefix allows (N - n) // 2 learning queries.
        least = max(1, budget + 1 - (rounds - n) // 2) if every_prefix else 1
        obfuscating, learning = _finish_probs_by_action(oracle, probs, least)
        if learn is not None:
            learn[n - 1] = learning > (1.0 + TIE_TOLERANCE) * obfuscating
        probs = np.maximum(obfuscating, learning)
    return np.minimum(probs[:, :, budget], 1.0)


def _stationary_completion(oracle: Oracle, updates: int) -> Iterator[float]:
    """Yield the probability with the budget of N rounds for N = 1, 2, ....

    C_n does not depend on N, so one recursion serves every N.  With n rounds left, a budget above n
    is as good as n: the budget axis grows by one in each step, by repeating its end.
    """
    distribution = compute_stationary_distribution(oracle)
    probs = _final_probs(oracle, updates, 0)
    rounds = 0
    while True:
        rounds += 1
        wider = np.concatenate([probs, probs[:, :, -1:]], axis=2)
        probs = np.maximum(*_finish_probs_by_action(oracle, wider, 1))
        budget = minority_budget(rounds)
        yield min(float(distribution @ probs[:, updates, budget]), 1.0)


def _final_probs(oracle: Oracle, updates: int, budget: int) -> FloatArray:
    """Return C_0, whether it has finished, (W, M + 1, B + 1)."""
    read_count(updates, "updates")
    probs = np.zeros((oracle.num_states, updates + 1, budget + 1))
    probs[:, 0] = 1.0
    return probs


def _finish_probs_by_action(
    oracle: Oracle, probs: FloatArray, least_budget: int
) -> tuple[FloatArray, FloatArray]:
    """Return the probability of finishing after each action, the operator of formula F5.

    From C_{n-1}, (W, M + 1, B + 1) by oracle state, updates needed and budget left, it makes those
    of obfuscating and of learning; the latter is 0 with less than `least_budget` >= 1 left.
    """
    g = oracle.success[:, None, None]
    obfuscating = np.tensordot(oracle.transition, probs, axes=1)
    learning = np.zeros_like(obfuscating)
    spent = obfuscating[:, :, least_budget - 1 : -1]
    learning[:, 1:, least_budget:] = g * spent[:, :-1] + (1.0 - g) * spent[:, 1:]
    return obfuscating, learning
