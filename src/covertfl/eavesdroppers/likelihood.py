"""By schedule: the best eavesdropper that knows problem and policy.

Under the hypothesis that a trajectory is the true one, the queries show in which rounds the learner
learned.  A forward filter carries the distribution of the hidden oracle state and backlog from
round to round, and with it the likelihood of the hypothesis.  No eavesdropper that sees only which
trajectory each query belongs to identifies the true one with a higher probability (formula F4 of
docs/paper_map.md).

With several decoys a hypothesis also names the lead (`decision.decoy_rule`), and the likelihood
includes which queries the lead spares.  Queries that no hypothesis explains, as where trajectories
were separated wrongly, are judged by the actions alone.

In an exchangeable schedule every trajectory is queried as the true one is, and the posterior is
equal to the prior.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.decoy_rule import count_further, may_spare, takes_turn
from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon
from covertfl.eavesdroppers.eavesdropper import (
    Listener,
    Means,
    Scheme,
    SeenQuery,
    normalise,
    softmax,
)
from covertfl.evaluation.horizon import resolve_first_distribution

# Without a capacity, the largest backlogs are dropped if their total probability is below this.
LEAST_PROB = 1e-14


class HiddenDistribution:
    """Likelihood of the rounds so far, and the distribution of the hidden state given them."""

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        problem = scheme.problem
        owed = problem.updates if isinstance(problem, FiniteHorizon) else 0
        self._distribution = np.zeros((problem.oracle.num_states, owed + 1))
        self._distribution[:, owed] = resolve_first_distribution(problem.oracle, scheme.first)
        self.log_likelihood, self._round, self._queries = 0.0, 0, 0

    def step(self, learns: bool, allowed: FloatArray | float = 1.0) -> None:
        """Advance by a round in which the learner learned, or obfuscated.

        `allowed` is the probability, by backlog or for all, that it chose the decoy it did.
        """
        self._round += 1
        if not np.isfinite(self.log_likelihood):
            return
        self._distribution = self._distribution * allowed
        joint = self._weigh_actions(learns)
        total = float(joint.sum())
        if total <= 0.0:
            self.log_likelihood = -np.inf
            return
        self.log_likelihood += float(np.log(total))
        self._distribution = self._scheme.problem.oracle.transition.T @ (joint / total)
        self._queries += learns

    def find_spared(self, lead: int, served: int) -> FloatArray | float:
        """Return whether the next round would spare a query of the lead, by backlog or for all.

        The numbers are the queries so far of the lead and of the other decoys.
        """
        problem, policy = self._scheme.problem, self._scheme.policy
        if not isinstance(problem, FiniteHorizon):
            return float(takes_turn(lead, served))
        num_states, levels = self._distribution.shape
        left = max(problem.rounds - self._round, 1)
        further = count_further(policy, np.arange(levels), left, self._queries, num_states)
        return may_spare(self._queries, lead, further, left).astype(np.float64)

    def _weigh_actions(self, learns: bool) -> FloatArray:
        """Return the joint probability of (oracle state, next backlog) and the action."""
        problem = self._scheme.problem
        if isinstance(problem, FiniteHorizon):
            return self._act(self._distribution, learns, arrival=0)
        parts = []
        for arrival, size in enumerate(problem.arrival_support):
            weighed = self._distribution * problem.arrival_probs[arrival]
            acted = self._act(weighed, learns, arrival=arrival)
            parts.append(_arrive(acted, int(size), problem.capacity))
        grown = parts.pop()  # the largest arrival: the others lead to no larger backlog
        for part in parts:
            grown[:, : part.shape[1]] += part
        return _trim(grown) if problem.capacity is None else grown

    def _act(self, distribution: FloatArray, learns: bool, *, arrival: int) -> FloatArray:
        """Return the joint probability of (oracle state, backlog without arrivals) and action."""
        problem = self._scheme.problem
        oracle_state = np.arange(distribution.shape[0])[:, np.newaxis]
        backlog = np.arange(distribution.shape[1])[np.newaxis]
        left = 0
        if isinstance(problem, FiniteHorizon):
            left = max(problem.rounds - self._round + 1, 1)
        observation = Observation(oracle_state, backlog, arrival, left, self._queries)
        prob = np.broadcast_to(self._scheme.policy.learn_prob(observation), distribution.shape)
        if not learns:
            return np.asarray(distribution * (1.0 - prob))
        joint = distribution * prob
        success = problem.oracle.success[:, np.newaxis]
        if self._scheme.takes_every_reply:
            success = np.ones_like(success)
        served = joint * success
        after = joint - served
        after[:, :-1] += served[:, 1:]
        after[:, 0] += served[:, 0]
        return np.asarray(after)


def _arrive(distribution: FloatArray, size: int, capacity: int | None) -> FloatArray:
    """Return the distribution after an arrival; updates beyond the capacity are lost."""
    after = np.pad(distribution, ((0, 0), (size, 0)))
    if capacity is None or after.shape[1] <= capacity + 1:
        return after
    kept = after[:, : capacity + 1].copy()
    kept[:, -1] += after[:, capacity + 1 :].sum(axis=1)
    return kept


def _trim(distribution: FloatArray) -> FloatArray:
    """Return the distribution without its largest backlogs of negligible probability."""
    beyond = np.cumsum(distribution.sum(axis=0)[::-1])[::-1]
    return distribution[:, : max(int(np.sum(beyond > LEAST_PROB * beyond[0])), 1)]


@dataclass(frozen=True, eq=False)
class _Guess:
    """A hypothesis about several decoys; a trajectory that has not been queried is None.

    Parameters
    ----------
    sent, served : queries so far of the lead and of the other decoys
    """

    hidden: HiddenDistribution
    true: int | None = None
    lead: int | None = None
    sent: int = 0
    served: int = 0

    def follow(self, scheme: Scheme, number: int, earlier: int) -> Iterator[_Guess]:
        """Yield the hypotheses that a query of a trajectory leaves, which had `earlier` queries."""
        rule = scheme.decoys
        if number == self.true or (earlier == 0 and self.true is None):
            yield replace(self, hidden=self._advance(True), true=number)
        if number == self.true:
            return
        is_owed = self.served < rule.reserve
        spared = self.hidden.find_spared(self.sent, self.served) if is_owed else 0.0
        if number == self.lead or (earlier == 0 and self.lead is None):
            hidden = self._advance(False, 1.0 - spared)
            yield replace(self, hidden=hidden, lead=number, sent=self.sent + 1)
        if number != self.lead and is_owed and earlier == self.served % rule.least_queries:
            yield replace(self, hidden=self._advance(False, spared), served=self.served + 1)

    def _advance(self, learns: bool, allowed: FloatArray | float = 1.0) -> HiddenDistribution:
        hidden = copy.copy(self.hidden)  # its distribution is replaced, never changed
        hidden.step(learns, allowed)
        return hidden


class LikelihoodEavesdropper(Listener):
    """Eavesdropper that compares the likelihood of the schedule under each hypothesis."""

    needs: ClassVar[tuple[str, ...]] = ("scheme",)
    threat = "sees every query, knows problem and policy, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.scheme is not None
        self._scheme = means.scheme
        self._hypotheses: list[HiddenDistribution] = []
        several = self._scheme.decoys.reserve > 0
        self._guesses = [_Guess(HiddenDistribution(self._scheme))] if several else []

    def observe(self, query: SeenQuery) -> None:
        """Advance the filter of every hypothesis."""
        earlier, known = self._seen.total, query.trajectory < len(self._seen)
        queried = self._seen.counts[query.trajectory] if known else 0
        super().observe(query)
        if self._scheme.exchangeable:
            return
        followed = (
            guess.follow(self._scheme, query.trajectory, queried) for guess in self._guesses
        )
        self._guesses = [
            guess
            for guesses in followed
            for guess in guesses
            if np.isfinite(guess.hidden.log_likelihood)
        ]
        while len(self._hypotheses) < max(len(self._seen), 2):
            distribution = HiddenDistribution(self._scheme)
            for _ in range(earlier):  # a trajectory not seen before was not queried
                distribution.step(False)
            self._hypotheses.append(distribution)
        for number, distribution in enumerate(self._hypotheses):
            distribution.step(number == query.trajectory)

    def belief(self) -> FloatArray:
        """Return the posterior over the trajectories seen so far, from equal priors."""
        if self._scheme.exchangeable:
            return normalise(np.ones(len(self._seen)))
        logs = np.full(len(self._seen), -np.inf)
        for guess in self._guesses:
            if guess.true is not None:
                logs[guess.true] = np.logaddexp(logs[guess.true], guess.hidden.log_likelihood)
        if not np.any(np.isfinite(logs)):
            known = self._hypotheses[: len(self._seen)]
            # An obfuscating query may be of any other trajectory.
            choice = np.log(max(len(known) - 1, 1))
            others = self._seen.total - np.array(self._seen.counts)
            logs = np.array([each.log_likelihood for each in known]) - choice * others
        return softmax(logs)

    def figures(self) -> dict[str, FloatArray]:
        """Return the posterior."""
        return {"posterior": self.belief()}
