"""Success of the best eavesdropper that knows the policy (formula F4 of docs/paper_map.md).

It sees to which trajectory each query belongs, and nothing else: a sequence of N labels, which say
nothing by themselves.  With D decoys there are K = D + 1 hypotheses, one for each trajectory that
may be the true one.  If P(z, j) is the probability of the sequence z with trajectory j true, no
rule names the true trajectory with a probability above

    sum_z max_j P(z, j) = E max_j P(j | z),

and taking the likeliest trajectory attains it.  With one decoy that is (1 + TV)/2, TV the total
variation between the distribution of the action sequence and that of its complement.

P(z, j) is a sum over which other trajectory is the lead (`decision.decoy_rule`).  Given both, the
labels show the actions and which obfuscating queries the lead spared.  The probability of these
comes from a forward recursion over the hidden oracle state and backlog; the numbers of queries so
far are not hidden given the sequence.  The sum over z is enumerated if it is short, and otherwise
estimated from sequences that are sampled: the mean of max_j P(j | z).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray, IntArray
from covertfl.decision.arguments import read_count, require_type
from covertfl.decision.decoy_rule import ONE_DECOY, DecoyRule, limit_further, may_spare
from covertfl.decision.policy import Policy, require_policy
from covertfl.decision.problem import FiniteHorizon
from covertfl.errors import InvalidInput
from covertfl.evaluation.horizon import (
    HorizonSample,
    resolve_first_distribution,
    simulate_horizon_policy,
    tabulate_round,
)

MAX_ENUMERATED = 4096
NORMAL_QUANTILE = 1.959963984540054  # of 97.5%
TAIL_PROB = 0.025  # on each side of a 95% interval
BATCH_ENTRIES = 50_000  # numbers in a batch of hidden distributions; fits into a processor's cache
UNSEEN = -1  # a trajectory without queries


@dataclass(frozen=True)
class ScheduleBound:
    """Probability that the best eavesdropper names the true trajectory from the schedule alone.

    Parameters
    ----------
    value : E max_j P(j | z), in [1/K, 1]; with one decoy (1 + TV)/2
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
    decoys: DecoyRule = ONE_DECOY,
) -> ScheduleBound:
    """Compute the success probability E max_j P(j | z) of the best eavesdropper (formula F4).

    Parameters
    ----------
    problem, policy : known to the eavesdropper; any policy of a finite horizon
    num_samples : number of sequences to sample if there are more than 4096, at least 2
    generator : source of all randomness; not used if all sequences are enumerated
    first : (W,) distribution of the first oracle state, as known to the eavesdropper; stationary
        if None
    decoys : how obfuscating queries are divided among decoys, known to the eavesdropper too
    """
    require_type(problem, FiniteHorizon, "problem")
    require_policy(policy)
    require_type(generator, np.random.Generator, "generator")
    require_type(decoys, DecoyRule, "decoys")
    read_count(num_samples, "num_samples", least=2)
    labels = decoys.num_decoys + 1
    if labels**problem.rounds <= MAX_ENUMERATED:
        return _enumerate_bound(problem, policy, first, decoys)
    sample = simulate_horizon_policy(problem, policy, num_samples, generator=generator, first=first)
    sequences = place_queries(problem, policy, sample, decoys)
    logs = trajectory_log_probs(problem, policy, sequences, first=first, decoys=decoys)
    posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
    return _estimate_bound(1.0 / posterior.sum(axis=1), labels)


def exchangeable_bound(num_trajectories: int) -> float:
    """Return the best eavesdropper's success against K exchangeable trajectories, 1/K (formula F4).

    If the schedule's distribution is the same whichever is the true one, no rule beats a guess.
    """
    return 1.0 / read_count(num_trajectories, "num_trajectories")


def place_queries(
    problem: FiniteHorizon, policy: Policy, sample: HorizonSample, decoys: DecoyRule
) -> IntArray:
    """Return the trajectory of each query, (R, N), in simulated runs with several decoys.

    It is 0 for the true trajectory, 1 for the lead and 2, 3, ... for the others as they are served.
    """
    model = _Model(problem, policy, decoys)
    made = np.cumsum(sample.successes, axis=1)
    backlog = problem.updates - made + sample.successes  # before each round
    placed = np.where(sample.actions, 0, 1)
    learning = np.zeros(len(placed), dtype=np.int64)
    served = np.zeros(len(placed), dtype=np.int64)
    for t in range(problem.rounds):
        lead = t - learning - served
        spares = model.list_spared(t, learning, lead)[backlog[:, t], np.arange(len(placed))]
        spares &= ~sample.actions[:, t] & (served < decoys.reserve)
        placed[spares, t] = 2 + served[spares] // max(decoys.least_queries, 1)
        learning += sample.actions[:, t]
        served += spares
    return placed


def trajectory_log_probs(
    problem: FiniteHorizon,
    policy: Policy,
    sequences: npt.ArrayLike,
    *,
    first: npt.ArrayLike | None = None,
    decoys: DecoyRule = ONE_DECOY,
) -> FloatArray:
    """Compute log P(z, j), (S, D + 1), of label sequences z and each trajectory j as the true one.

    Sequences that differ in the names of the labels only are counted as one; trajectories without
    queries have equal shares.  It is -inf where it cannot happen.

    Parameters
    ----------
    sequences : (S, N) labels 0 .. D of the trajectories queried
    first : (W,) distribution of the first oracle state; stationary if None
    """
    labels = np.asarray(sequences)
    counts = np.stack([(labels == j).sum(axis=1) for j in range(decoys.num_decoys + 1)], axis=1)
    cases = [
        (row, true, lead)
        for row, count in enumerate(counts.tolist())
        for true, lead in _list_pairs(count, decoys)
    ]
    rows, true, lead = np.array(cases, dtype=np.int64).reshape(-1, 3).T
    model = _Model(problem, policy, decoys)
    logs = model.compute_log_probs(labels[rows], true, lead, first)
    joint = np.full((len(labels), decoys.num_decoys + 2), -np.inf)  # the last for UNSEEN
    np.logaddexp.at(joint, (rows, true), logs)
    unseen = counts == 0
    with np.errstate(divide="ignore"):
        share = joint[:, -1:] - np.log(np.maximum(unseen.sum(axis=1, keepdims=True), 1))
    return np.where(unseen, share, joint[:, :-1])


def _list_pairs(counts: Sequence[int], decoys: DecoyRule) -> Iterator[tuple[int, int]]:
    """Yield the pairs of true trajectory and lead that numbers of queries allow.

    Any other trajectory has `least_queries` at most, and there are D - 1 others.
    """
    seen = [label for label, count in enumerate(counts) if count]
    most = decoys.least_queries if decoys.num_decoys > 1 else 0
    often = {label for label in seen if counts[label] > most}
    # Whoever is queried often is true or the lead, so with two such no third need be tried.
    free = [*seen, UNSEEN] if len(often) < 2 else sorted(often)
    fixed = [*often] if len(often) == 1 else free
    for true, lead in {*itertools.product(fixed, free), *itertools.product(free, fixed)}:
        hidden = (true == UNSEEN) + (lead == UNSEEN)
        fits = len(seen) + hidden <= len(counts) and often <= {true, lead}
        if fits and (true != lead or hidden == 2):
            yield true, lead


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
    true, lead = np.ones(len(sequences), dtype=np.int64), np.zeros(len(sequences), dtype=np.int64)
    model = _Model(problem, policy, ONE_DECOY)
    return model.compute_log_probs(sequences.astype(np.int64), true, lead, first)


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


class _Model:
    """Problem, policy and rule for decoys, tabulated by round."""

    def __init__(self, problem: FiniteHorizon, policy: Policy, decoys: DecoyRule) -> None:
        self._problem, self._policy, self._decoys = problem, policy, decoys
        self._tables = [tabulate_round(problem, policy, n) for n in range(problem.rounds, 0, -1)]
        self._idle = self._find_idle() if decoys.reserve else []

    def _find_idle(self) -> list[BoolArray]:
        """Return, by round, where the policy never learns again, (M + 1, queries so far + 1)."""
        idle = [np.ones(self._tables[-1].shape[1:], dtype=np.bool_)]
        for table in self._tables[:0:-1]:
            idle.append((idle[-1] & ~np.any(table, axis=0))[:, :-1])
        return idle[::-1]

    def list_spared(self, t: int, learning: IntArray, lead: IntArray) -> BoolArray:
        """Return whether the lead may spare a query after t rounds, (M + 1, S) by backlog.

        The numbers of queries so far are (S,) each.
        """
        levels, left = self._problem.updates + 1, self._problem.rounds - t
        if not self._decoys.reserve:
            return np.zeros((levels, len(learning)), dtype=np.bool_)
        most = limit_further(self._policy, left - 1, learning)
        further = np.where(self._idle[t][:, learning], 0, most)
        return may_spare(learning, lead, further, left)

    def compute_log_probs(
        self, labels: IntArray, true: IntArray, lead: IntArray, first: npt.ArrayLike | None
    ) -> FloatArray:
        """Return the log-probability, (S,), of label sequences given the true one and the lead.

        Parameters
        ----------
        labels : (S, N)
        true, lead : (S,) labels, or `UNSEEN`
        """
        problem = self._problem
        distribution = resolve_first_distribution(problem.oracle, first)
        size = max(1, BATCH_ENTRIES // (problem.oracle.num_states * (problem.updates + 1)))
        cuts = [slice(start, start + size) for start in range(0, len(labels), size)]
        parts = [self._run(labels[cut].T, true[cut], lead[cut], distribution) for cut in cuts]
        return np.concatenate([np.zeros(0), *parts])

    def _run(
        self, labels: IntArray, true: IntArray, lead: IntArray, first: FloatArray
    ) -> FloatArray:
        """Run the forward recursion over hidden (oracle, backlog), (W, M + 1, S), scaled to sum 1.

        The labels are (N, S).
        """
        problem, size = self._problem, labels.shape[1]
        hidden = np.zeros((problem.oracle.num_states, problem.updates + 1, size))
        hidden[:, -1] = first[:, None]
        learning, to_lead, served = np.zeros((3, size), dtype=np.int64)
        log_probs = np.zeros(size)
        for t, (table, label) in enumerate(zip(self._tables, labels, strict=True)):
            learns, leads = label == true, label == lead
            learn_here = table[:, :, learning]
            hidden *= np.where(learns, learn_here, 1.0 - learn_here)
            if self._decoys.reserve:
                earlier = (labels[:t] == label).sum(axis=0)
                hidden *= learns | self._allow(t, learning, to_lead, served, leads, earlier)
            total = hidden.sum(axis=(0, 1))
            with np.errstate(divide="ignore"):
                log_probs += np.log(total)
            hidden /= np.where(total > 0.0, total, 1.0)
            updated = hidden[:, 1:] * (problem.oracle.success[:, None, None] * learns)
            hidden[:, 1:] -= updated
            hidden[:, :-1] += updated
            flat = problem.oracle.transition.T @ hidden.reshape(len(hidden), -1)
            hidden = flat.reshape(hidden.shape)
            learning, to_lead = learning + learns, to_lead + leads
            served = served + ~(learns | leads)
        return log_probs

    def _allow(
        self,
        t: int,
        learning: IntArray,
        lead: IntArray,
        served: IntArray,
        leads: BoolArray,
        earlier: IntArray,
    ) -> BoolArray:
        """Return where an obfuscating query obeys the rule, (M + 1, S) by backlog.

        `earlier` is the number of queries of its trajectory so far.  Others are served one after
        another, so that the next one has as many as the reserve's last, unfinished part.
        """
        owed = served < self._decoys.reserve
        spared = self.list_spared(t, learning, lead) & owed
        is_next = earlier == served % max(self._decoys.least_queries, 1)
        return np.where(leads, ~spared, spared & is_next)


def _enumerate_bound(
    problem: FiniteHorizon, policy: Policy, first: npt.ArrayLike | None, decoys: DecoyRule
) -> ScheduleBound:
    labels = decoys.num_decoys + 1
    count = labels**problem.rounds
    sequences = (np.arange(count)[:, None] // labels ** np.arange(problem.rounds)) % labels
    # One naming of the trajectories: by their first queries.
    largest = np.maximum.accumulate(sequences, axis=1)
    known = np.hstack([np.full((count, 1), -1), largest[:, :-1]])
    sequences = sequences[np.all(sequences <= known + 1, axis=1)]
    logs = trajectory_log_probs(problem, policy, sequences, first=first, decoys=decoys)
    value = min(float(np.exp(logs.max(axis=1)).sum()), 1.0)
    return ScheduleBound(value, value, value, count, exact=True)


def _estimate_bound(terms: FloatArray, num_trajectories: int) -> ScheduleBound:
    """Average terms in [1/K, 1], with a 95% interval.

    The interval is the normal one, but on each side at least 1 - 0.025^(1/S) of the range wide:
    that is the exact bound if all S terms are equal, and it allows for rare other values.
    """
    count, least = len(terms), 1.0 / num_trajectories
    mean = float(terms.mean())
    normal = NORMAL_QUANTILE * float(terms.std(ddof=1)) / math.sqrt(count)
    half_width = max(normal, (1.0 - TAIL_PROB ** (1.0 / count)) * (1.0 - least))
    low, value, high = np.clip([mean - half_width, mean, mean + half_width], least, 1.0).tolist()
    return ScheduleBound(value, low, high, count, exact=False)
