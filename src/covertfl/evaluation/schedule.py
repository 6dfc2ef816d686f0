"""Success of the best eavesdropper that knows the policy (formula F4 of docs/paper_map.md).

It sees to which trajectory each query belongs, and nothing else: a sequence of N labels, which say
nothing by themselves.  There are two hypotheses, one for each trajectory that may be the true one.
If P(z, j) is the probability of the sequence z with trajectory j true, no rule names the true
trajectory with a probability above

    sum_z max_j P(z, j) = E max_j P(j | z),

and taking the likelier trajectory attains it.  That is (1 + TV)/2, TV the total variation between
the distribution of the action sequence and that of its complement.

Given which trajectory is true, the labels show the actions.  Their probability comes from a forward
recursion over the hidden oracle state and backlog; the number of learning queries so far is not
hidden given the sequence.  The sum over z is enumerated if it is short, and otherwise estimated
from sequences that are sampled: the mean of max_j P(j | z).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.arguments import read_count, require_type
from covertfl.decision.policy import Policy, require_policy
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput
from covertfl.evaluation.horizon import (
    resolve_first_distribution,
    simulate_horizon_policy,
    tabulate_round,
)

MAX_ENUMERATED = 4096
NORMAL_QUANTILE = 1.959963984540054  # of 97.5%
TAIL_PROB = 0.025  # on each side of a 95% interval
BATCH_ENTRIES = 50_000  # numbers in a batch of hidden distributions; fits into a processor's cache


@dataclass(frozen=True)
class ScheduleBound:
    """Probability that the best eavesdropper names the true trajectory from the schedule alone.

    Parameters
    ----------
    value : E max_j P(j | z), (1 + TV)/2 in [1/2, 1]; 1/K of K trajectories that are queried alike
    low, high : 95% interval; the value itself if it is exact
    num_samples : number of sequences sampled, or enumerated if it is exact
    exact : whether all sequences were enumerated
    """

    value: float
    low: float
    high: float
    num_samples: int
    exact: bool


def bound_best_eavesdropper(
    problem: FiniteHorizon,
    policy: Policy,
    *,
    num_samples: int,
    generator: np.random.Generator,
    first: npt.ArrayLike | None = None,
) -> ScheduleBound:
    """Compute the success probability E max_j P(j | z) of the best eavesdropper (formula F4).

    Parameters
    ----------
    problem, policy : known to the eavesdropper; any policy of a finite horizon
    num_samples : number of sequences to sample if there are more than 4096, at least 2
    generator : source of all randomness; not used if all sequences are enumerated
    first : (W,) distribution of the first oracle state, as known to the eavesdropper; stationary
        if None
    """
    require_type(problem, FiniteHorizon, "problem")
    require_policy(policy)
    require_type(generator, np.random.Generator, "generator")
    read_count(num_samples, "num_samples", least=2)
    if 2**problem.rounds <= MAX_ENUMERATED:
        return _enumerate_bound(problem, policy, first)
    sample = simulate_horizon_policy(problem, policy, num_samples, generator=generator, first=first)
    logs = trajectory_log_probs(problem, policy, sample.actions, first=first)
    posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
    return _estimate_bound(1.0 / posterior.sum(axis=1))


def guessing_bound(num_trajectories: int) -> float:
    """Return the best eavesdropper's success against K trajectories queried alike, 1/K (F4).

    If the schedule's distribution is the same whichever is the true one, no rule beats a guess.
    """
    return 1.0 / read_count(num_trajectories, "num_trajectories")


def trajectory_log_probs(
    problem: FiniteHorizon,
    policy: Policy,
    actions: npt.ArrayLike,
    *,
    first: npt.ArrayLike | None = None,
) -> FloatArray:
    """Compute the log-probabilities, (S, 2), of action sequences and of their complements.

    The second is that of the same queries if the other trajectory is the true one.  It is -inf for
    a sequence that cannot happen.

    Parameters
    ----------
    actions : (S, N) booleans, True for learning
    first : (W,) distribution of the first oracle state; stationary if None
    """
    sequences = _read_actions(actions, problem.rounds)
    distribution = resolve_first_distribution(problem.oracle, first)
    tables = [tabulate_round(problem, policy, n) for n in range(problem.rounds, 0, -1)]
    both = np.stack([sequences, ~sequences], axis=1).reshape(-1, problem.rounds)
    size = max(1, BATCH_ENTRIES // (problem.oracle.num_states * (problem.updates + 1)))
    cuts = [slice(start, start + size) for start in range(0, len(both), size)]
    parts = [_filter_actions(problem, tables, both[cut].T, distribution) for cut in cuts]
    return np.concatenate([np.zeros(0), *parts]).reshape(-1, 2)


def _read_actions(actions: npt.ArrayLike, rounds: int) -> BoolArray:
    sequences = np.asarray(actions)
    if sequences.ndim != 2 or sequences.shape[1] != rounds:
        raise InvalidInput(
            f"actions must be rows of {rounds} actions, one for each round, "
            f"got shape {sequences.shape}"
        )
    if not np.all((sequences == 0) | (sequences == 1)):
        raise InvalidInput("actions must be 0 (obfuscate) or 1 (learn)")
    return sequences.astype(np.bool_)


def _filter_actions(
    problem: FiniteHorizon, tables: list[FloatArray], actions: BoolArray, first: FloatArray
) -> FloatArray:
    """Run the forward recursion over hidden (oracle, backlog), (W, M + 1, S), scaled to sum 1.

    The actions are (N, S), the tables the policy's by round.  Returns the log-probabilities, (S,).
    """
    size = actions.shape[1]
    hidden = np.zeros((problem.oracle.num_states, problem.updates + 1, size))
    hidden[:, -1] = first[:, None]
    learning = np.zeros(size, dtype=np.int64)
    log_probs = np.zeros(size)
    for table, learns in zip(tables, actions, strict=True):
        learn_here = table[:, :, learning]
        hidden *= np.where(learns, learn_here, 1.0 - learn_here)
        total = hidden.sum(axis=(0, 1))
        with np.errstate(divide="ignore"):
            log_probs += np.log(total)
        hidden /= np.where(total > 0.0, total, 1.0)
        updated = hidden[:, 1:] * (problem.oracle.success[:, None, None] * learns)
        hidden[:, 1:] -= updated
        hidden[:, :-1] += updated
        flat = problem.oracle.transition.T @ hidden.reshape(len(hidden), -1)
        hidden = flat.reshape(hidden.shape)
        learning = learning + learns
    return log_probs


def _enumerate_bound(
    problem: FiniteHorizon, policy: Policy, first: npt.ArrayLike | None
) -> ScheduleBound:
    count = 2**problem.rounds
    # One of each pair of complements: that whose first query is the true trajectory's.
    actions = (np.arange(0, count, 2)[:, None] // 2 ** np.arange(problem.rounds)) % 2 == 0
    logs = trajectory_log_probs(problem, policy, actions, first=first)
    value = min(float(np.exp(logs.max(axis=1)).sum()), 1.0)
    return ScheduleBound(value, value, value, count, exact=True)


def _estimate_bound(terms: FloatArray) -> ScheduleBound:
    """Average terms in [1/2, 1], with a 95% interval.

    The interval is the normal one, but on each side at least 1 - 0.025^(1/S) of the range wide:
    that is the exact bound if all S terms are equal, and it allows for rare other values.
    """
    count = len(terms)
    mean = float(terms.mean())
    normal = NORMAL_QUANTILE * float(terms.std(ddof=1)) / math.sqrt(count)
    half_width = max(normal, 0.5 * (1.0 - TAIL_PROB ** (1.0 / count)))
    low, value, high = np.clip([mean - half_width, mean, mean + half_width], 0.5, 1.0).tolist()
    return ScheduleBound(value, low, high, count, exact=False)
