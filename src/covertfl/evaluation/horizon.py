"""Evaluation of policies in a finite horizon, exactly and by simulation.

The exact evaluation carries the joint distribution of (oracle state, backlog, learning queries so
far) forward from round to round, so it serves every policy that depends on these and on the rounds
left, randomised ones included.  A policy may learn at backlog 0 (`RandomPlacement` does): the query
is counted and has its privacy cost, but makes no update.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.arguments import read_count, read_numbers, require_type
from covertfl.decision.oracle import (
    ROW_SUM_TOLERANCE,
    Oracle,
    compute_stationary_distribution,
    find_reachable,
)
from covertfl.decision.policy import Observation, Policy, require_policy
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput, NoSolution


@dataclass(frozen=True)
class HorizonEvaluation:
    """Expected costs and probabilities of a policy in a finite horizon.

    Parameters
    ----------
    privacy_cost : expected privacy cost of all rounds
    terminal_cost : expected cost l of the backlog left at the end
    learning_queries : expected number of learning queries
    exposure : expected learning queries / rounds, in [0, 1]
    finish_prob : probability that no update is owed at the end
    minority_prob : probability that learning queries are a strict minority at the end, 2 k < N
    covert_finish_prob : probability of both
    named_prob : probability that the counting eavesdropper, equation (6), names the truth at the
        end: 2 k > N, a tie counting half
    """

    privacy_cost: float
    terminal_cost: float
    learning_queries: float
    exposure: float
    finish_prob: float
    minority_prob: float
    covert_finish_prob: float
    named_prob: float

    @property
    def total_cost(self) -> float:
        """Privacy cost plus terminal cost, the objective of equation (7)."""
        return self.privacy_cost + self.terminal_cost


@dataclass(frozen=True, eq=False)
class HorizonSample:
    """Simulated runs of a policy in a finite horizon, R runs of N rounds.

    Parameters
    ----------
    actions : (R, N) True for a learning query
    oracle_states : (R, N) oracle state of each round
    successes : (R, N) True if the round made an update, so that the backlog fell by one
    backlog_left : (R,) updates owed at the end
    """

    actions: BoolArray
    oracle_states: IntArray
    successes: BoolArray
    backlog_left: IntArray

    @property
    def learning_queries(self) -> IntArray:
        """Number of learning queries of each run, (R,)."""
        return np.asarray(self.actions.sum(axis=1), dtype=np.int64)


def resolve_first_distribution(oracle: Oracle, first: npt.ArrayLike | None) -> FloatArray:
    """Return the distribution of the first oracle state: the given one, or the stationary one.

    Raises `InvalidInput` if `first` does not hold W probabilities that sum to 1, or is None and
    the oracle has no unique stationary distribution.
    """
    if first is None:
        try:
            return compute_stationary_distribution(oracle)
        except InvalidInput as error:
            raise InvalidInput(
                "first, the distribution of the first oracle state, must be given for this "
                f"oracle, which has no unique stationary distribution: {error}"
            ) from error
    distribution = read_numbers(first, "first")
    if distribution.shape != (oracle.num_states,):
        raise InvalidInput(
            f"first must have one probability for each of the {oracle.num_states} oracle states, "
            f"got shape {distribution.shape}"
        )
    if not (
        np.all(distribution >= 0.0) and abs(float(distribution.sum()) - 1.0) <= ROW_SUM_TOLERANCE
    ):
        raise InvalidInput(
            f"first must be probabilities that sum to 1, got {distribution.tolist()}"
        )
    return distribution


def tabulate_round(problem: FiniteHorizon, policy: Policy, rounds_left: int) -> FloatArray:
    """Tabulate the probability of learning in one round, in every state that can occur there.

    With n rounds left, this one included, the table is (W, M + 1, N - n + 1) by oracle state,
    backlog and learning queries so far.  Raises `InvalidInput` if the policy does not cover it.
    """
    shape = (problem.oracle.num_states, problem.updates + 1, problem.rounds - rounds_left + 1)
    oracle_state, backlog, learning_queries = np.indices(shape, sparse=True)
    observation = Observation(
        oracle_state, backlog, rounds_left=rounds_left, learning_queries=learning_queries
    )
    return np.broadcast_to(policy.learn_prob(observation), shape)


def evaluate_horizon_policy(
    problem: FiniteHorizon, policy: Policy, *, first: npt.ArrayLike | None = None
) -> HorizonEvaluation:
    """Compute the expected costs and the probabilities of a policy exactly.

    Parameters
    ----------
    policy : any policy of a finite horizon
    first : (W,) distribution of the first oracle state; stationary if None
    """
    require_type(problem, FiniteHorizon, "problem")
    require_policy(policy)
    distribution = np.zeros((problem.oracle.num_states, problem.updates + 1, 1))
    distribution[:, -1, 0] = resolve_first_distribution(problem.oracle, first)
    privacy_cost = 0.0
    for rounds_left in range(problem.rounds, 0, -1):
        learning = distribution * tabulate_round(problem, policy, rounds_left)
        privacy_cost += float(problem.privacy_cost @ learning.sum(axis=(1, 2)))
        distribution = _advance(problem.oracle, distribution - learning, learning)
    return _summarise(problem, distribution, privacy_cost)


def _advance(oracle: Oracle, obfuscating: FloatArray, learning: FloatArray) -> FloatArray:
    """Return the distribution after a round from the masses that obfuscated and learned in it.

    Those are (W, M + 1, K) by oracle state, backlog and learning queries so far, and the result
    is (W, M + 1, K + 1).
    """
    updated = oracle.success[:, None, None] * learning
    updated[:, 0] = 0.0
    kept = learning - updated
    kept[:, :-1] += updated[:, 1:]
    distribution = np.zeros((*learning.shape[:2], learning.shape[2] + 1))
    distribution[:, :, :-1] = obfuscating
    distribution[:, :, 1:] += kept
    return np.asarray(np.tensordot(oracle.transition.T, distribution, axes=1))


def _summarise(
    problem: FiniteHorizon, distribution: FloatArray, privacy_cost: float
) -> HorizonEvaluation:
    by_backlog = distribution.sum(axis=0)
    by_queries = by_backlog.sum(axis=0)
    queries = np.arange(problem.rounds + 1)
    is_minority = 2 * queries < problem.rounds
    learning_queries = float(by_queries @ queries)
    return HorizonEvaluation(
        privacy_cost=privacy_cost,
        terminal_cost=float(problem.terminal_cost() @ by_backlog.sum(axis=1)),
        learning_queries=learning_queries,
        exposure=learning_queries / problem.rounds,
        finish_prob=_to_prob(by_backlog[0]),
        minority_prob=_to_prob(by_queries[is_minority]),
        covert_finish_prob=_to_prob(by_backlog[0, is_minority]),
        named_prob=_to_prob(by_queries * np.heaviside(2 * queries - problem.rounds, 0.5)),
    )


def _to_prob(masses: FloatArray) -> float:
    return min(float(masses.sum()), 1.0)  # rounding may exceed 1


def simulate_horizon_policy(
    problem: FiniteHorizon,
    policy: Policy,
    num_runs: int,
    *,
    generator: np.random.Generator,
    first: npt.ArrayLike | None = None,
) -> HorizonSample:
    """Sample runs of a policy, all at once.

    Parameters
    ----------
    num_runs : R, at least 1
    generator : source of all randomness
    first : (W,) distribution of the first oracle state; stationary if None
    """
    require_type(problem, FiniteHorizon, "problem")
    require_policy(policy)
    require_type(generator, np.random.Generator, "generator")
    read_count(num_runs, "num_runs")
    oracle, rounds = problem.oracle, problem.rounds
    uniforms = generator.random((num_runs, rounds))
    states = _walk(oracle, resolve_first_distribution(oracle, first), uniforms)
    would_succeed = generator.random(states.shape) < oracle.success[states]
    draws = generator.random(states.shape)
    actions = np.zeros((num_runs, rounds), dtype=np.bool_)
    successes = np.zeros((num_runs, rounds), dtype=np.bool_)
    backlog = np.full(num_runs, problem.updates, dtype=np.int64)
    queries = np.zeros(num_runs, dtype=np.int64)
    for t in range(rounds):
        observation = Observation(
            states[:, t], backlog, rounds_left=rounds - t, learning_queries=queries
        )
        actions[:, t] = draws[:, t] < policy.learn_prob(observation)
        successes[:, t] = actions[:, t] & would_succeed[:, t] & (backlog > 0)
        backlog = backlog - successes[:, t]
        queries = queries + actions[:, t]
    return HorizonSample(actions, states, successes, backlog)


def _walk(oracle: Oracle, first: FloatArray, uniforms: FloatArray) -> IntArray:
    """Return the paths of the oracle that uniform draws, (num_runs, rounds), select."""
    cumulative = np.cumsum(oracle.transition, axis=1)
    cumulative /= cumulative[:, -1:]  # exactly 1 at the end, so that no draw falls beyond it
    distribution = np.cumsum(first)
    states = np.empty(uniforms.shape, dtype=np.int64)
    states[:, 0] = np.searchsorted(distribution / distribution[-1], uniforms[:, 0], side="right")
    for t in range(1, uniforms.shape[1]):
        states[:, t] = (cumulative[states[:, t - 1]] <= uniforms[:, t, None]).sum(axis=1)
    return states


def expected_greedy_queries(oracle: Oracle, updates: int) -> FloatArray:
    """Compute the greedy policy's expected learning queries until no update is owed.

    This is formula F10 of docs/paper_map.md.  With h_m(o) queries for m updates from state o, and
    h_0 = 0,

        h_m = 1 + G P h_{m-1} + (I - G) P h_m,   G = diag(g).

    Returns (W,) by first oracle state; raises `NoSolution` if from some state no query can ever
    succeed, so that the expectation is infinite.
    """
    read_count(updates, "updates")
    for start in range(oracle.num_states):
        if not np.any(oracle.success[find_reachable(oracle.transition, start)] > 0.0):
            raise NoSolution(
                "the greedy policy never finishes: no oracle state that can be reached from state "
                f"{start} has a positive probability of success"
            )
    g = oracle.success[:, None]
    waiting = np.eye(oracle.num_states) - (1.0 - g) * oracle.transition
    for_one = np.linalg.solve(waiting, np.ones(oracle.num_states))
    then = np.linalg.solve(waiting, g * oracle.transition)
    queries = np.zeros(oracle.num_states)
    for _ in range(updates):
        queries = for_one + then @ queries
    return queries


def mean_greedy_queries(oracle: Oracle, updates: int) -> float:
    """Return the queries of formula F10 averaged over a stationary first oracle state."""
    return float(
        resolve_first_distribution(oracle, None) @ expected_greedy_queries(oracle, updates)
    )
