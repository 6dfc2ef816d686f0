"""Success of the best eavesdropper that knows the policy (formula F4 of docs/paper_map.md).

It sees to which of two trajectories each query belongs, and nothing else: a sequence of N bits, up
to the names of the trajectories.  If the first trajectory is the true one, the bits are the
actions, otherwise their complement.  With equal prior probabilities no rule names the true
trajectory with a probability above (1 + TV)/2, where TV is the total variation between the
distribution P of the action sequence and the distribution Q of its complement; the likelihood ratio
test attains it.

The likelihood of a sequence comes from a forward recursion over the hidden oracle state and
backlog.  The number of learning queries so far is not hidden given the sequence.  TV itself is a
sum over 2^N sequences.  It is enumerated if they are few, and otherwise estimated from sequences
sampled from P: TV = E_P[(1 - Q/P)^+], and averaging this over a sequence and its complement, which
exchanges P and Q, gives TV = E_P[|P - Q| / (P + Q)] with less variance.
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
    value : (1 + TV)/2, in [0.5, 1]
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
    """Compute the success probability (1 + TV)/2 of the best eavesdropper (formula F4).

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
    actions = simulate_horizon_policy(
        problem, policy, num_samples, generator=generator, first=first
    ).actions
    log_ratio = compute_log_ratio(problem, policy, actions, first=first)
    # |P - Q| / (P + Q) with r = log P - log Q; an impossible complement has r = inf and counts 1.
    return _estimate_bound(np.abs(np.tanh(0.5 * log_ratio)))


def exchangeable_bound(num_trajectories: int) -> float:
    """Return the best eavesdropper's success against K exchangeable trajectories, 1/K (formula F4).

    If the schedule's distribution is the same whichever is the true one, no rule beats a guess.
    """
    return 1.0 / read_count(num_trajectories, "num_trajectories")


def compute_log_ratio(
    problem: FiniteHorizon,
    policy: Policy,
    actions: npt.ArrayLike,
    *,
    first: npt.ArrayLike | None = None,
) -> FloatArray:
    """Compute the log-likelihood ratio of action sequences against their complements.

    Parameters are those of `action_log_likelihood`; True in `actions` is a query of the trajectory
    that is assumed to be true.  Returns (S,) numbers, positive where the assumption is the likelier
    one, and 0 where both are impossible.
    """
    sequences = _read_actions(actions, problem.rounds)
    straight = action_log_likelihood(problem, policy, sequences, first=first)
    crossed = action_log_likelihood(problem, policy, ~sequences, first=first)
    ratio = np.zeros(len(sequences))
    np.subtract(straight, crossed, out=ratio, where=straight != crossed)
    return ratio


def action_log_likelihood(
    problem: FiniteHorizon,
    policy: Policy,
    actions: npt.ArrayLike,
    *,
    first: npt.ArrayLike | None = None,
) -> FloatArray:
    """Compute the exact log-probability, (S,), of action sequences under a policy.

    It is -inf for a sequence that cannot happen.

    Parameters
    ----------
    actions : (S, N) booleans, True for learning
    first : (W,) distribution of the first oracle state; stationary if None
    """
    sequences = _read_actions(actions, problem.rounds)
    distribution = resolve_first_distribution(problem.oracle, first)
    tables = [tabulate_round(problem, policy, n) for n in range(problem.rounds, 0, -1)]
    size = max(1, BATCH_ENTRIES // (problem.oracle.num_states * (problem.updates + 1)))
    batches = [sequences[start : start + size] for start in range(0, len(sequences), size)]
    parts = [_batch_log_likelihood(problem, tables, batch, distribution) for batch in batches]
    return np.concatenate([np.zeros(0), *parts])


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


def _batch_log_likelihood(
    problem: FiniteHorizon, tables: list[FloatArray], actions: BoolArray, first: FloatArray
) -> FloatArray:
    """Run the forward recursion over hidden (oracle, backlog), (W, M + 1, S), scaled to sum 1."""
    num_states, levels = problem.oracle.num_states, problem.updates + 1
    hidden = np.zeros((num_states, levels, len(actions)))
    hidden[:, -1] = first[:, None]
    queries = np.zeros(len(actions), dtype=np.int64)
    log_likelihood = np.zeros(len(actions))
    for learn_prob, learns in zip(tables, actions.T, strict=True):
        learn_here = learn_prob[:, :, queries]
        hidden *= np.where(learns, learn_here, 1.0 - learn_here)
        total = hidden.sum(axis=(0, 1))
        with np.errstate(divide="ignore"):
            log_likelihood += np.log(total)
        hidden /= np.where(total > 0.0, total, 1.0)
        updated = hidden[:, 1:] * (problem.oracle.success[:, None, None] * learns)
        hidden[:, 1:] -= updated
        hidden[:, :-1] += updated
        flat = problem.oracle.transition.T @ hidden.reshape(num_states, -1)
        hidden = flat.reshape(hidden.shape)
        queries += learns
    return log_likelihood


def _enumerate_bound(
    problem: FiniteHorizon, policy: Policy, first: npt.ArrayLike | None
) -> ScheduleBound:
    count = 2**problem.rounds
    sequences = (np.arange(count)[:, None] >> np.arange(problem.rounds)) & 1
    probs = np.exp(action_log_likelihood(problem, policy, sequences, first=first))
    # Complementing every bit of a number reverses the order of the numbers.
    total_variation = 0.5 * float(np.abs(probs - probs[::-1]).sum())
    value = _to_prob(total_variation)
    return ScheduleBound(value, value, value, count, exact=True)


def _estimate_bound(terms: FloatArray) -> ScheduleBound:
    """Average terms in [0, 1], with a 95% interval, and map the result to (1 + TV)/2.

    The interval is the normal one, but on each side at least 1 - 0.025^(1/S) wide: that is the
    exact bound if all S terms are equal, and it allows for rare other values.
    """
    count = len(terms)
    mean = float(terms.mean())
    normal = NORMAL_QUANTILE * float(terms.std(ddof=1)) / math.sqrt(count)
    half_width = max(normal, 1.0 - TAIL_PROB ** (1.0 / count))
    return ScheduleBound(
        _to_prob(mean), _to_prob(mean - half_width), _to_prob(mean + half_width), count, exact=False
    )


def _to_prob(total_variation: float) -> float:
    return 0.5 * (1.0 + min(max(total_variation, 0.0), 1.0))
