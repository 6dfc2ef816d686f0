"""By schedule: the best eavesdropper that knows problem and policy.

Under the hypothesis that a trajectory is the true one, the queries show in which rounds the learner
learned.  A forward filter carries the distribution of the hidden oracle state and backlog from
round to round, and with it the likelihood of the hypothesis.  No eavesdropper that sees only which
trajectory each query belongs to identifies the true one with a higher probability (formula F4 of
docs/paper_map.md).

In a symmetric schedule every trajectory is queried as the true one is, and the posterior is
equal to the prior.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Observation
from covertfl.decision.problem import FiniteHorizon
from covertfl.eavesdroppers.eavesdropper import (
    KnownScheme,
    Listener,
    Means,
    SeenQuery,
    normalise,
    softmax,
)
from covertfl.evaluation.horizon import resolve_first_distribution

# Without a capacity, the largest backlogs are dropped if their total probability is below this.
LEAST_PROB = 1e-14


class HiddenDistribution:
    """Likelihood of the rounds so far, and the distribution of the hidden state given them."""

    def __init__(self, scheme: KnownScheme) -> None:
        self._scheme = scheme
        problem = scheme.problem
        owed = problem.updates if isinstance(problem, FiniteHorizon) else 0
        self._distribution = np.zeros((problem.oracle.num_states, owed + 1))
        self._distribution[:, owed] = resolve_first_distribution(problem.oracle, scheme.first)
        self.log_likelihood, self._round, self._queries = 0.0, 0, 0

    def step(self, learns: bool) -> None:
        """Advance by a round in which the learner learned, or obfuscated."""
        self._round += 1
        if not np.isfinite(self.log_likelihood):
            return
        joint = self._weigh_actions(learns)
        total = float(joint.sum())
        if total <= 0.0:
            self.log_likelihood = -np.inf
            return
        self.log_likelihood += float(np.log(total))
        self._distribution = self._scheme.problem.oracle.transition.T @ (joint / total)
        self._queries += learns

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


class LikelihoodEavesdropper(Listener):
    """Eavesdropper that compares the likelihood of the schedule under each hypothesis."""

    needs: ClassVar[tuple[str, ...]] = ("scheme",)
    threat = "sees every query, knows problem and policy, owns no data"

    def __init__(self, means: Means) -> None:
        super().__init__(means)
        assert means.scheme is not None
        self._scheme = means.scheme
        self._hypotheses: list[HiddenDistribution] = []

    def observe(self, query: SeenQuery) -> None:
        """Advance the filter of every hypothesis."""
        earlier = self._seen.total
        super().observe(query)
        if self._scheme.is_symmetric:
            return
        while len(self._hypotheses) < max(len(self._seen), 2):
            distribution = HiddenDistribution(self._scheme)
            for _ in range(earlier):  # a trajectory not seen before was not queried
                distribution.step(False)
            self._hypotheses.append(distribution)
        for number, distribution in enumerate(self._hypotheses):
            distribution.step(number == query.trajectory)

    def belief(self) -> FloatArray:
        """Return the posterior over the trajectories seen so far, from equal priors."""
        if self._scheme.is_symmetric:
            return normalise(np.ones(len(self._seen)))
        known = self._hypotheses[: len(self._seen)]
        # More than two are seen where they were separated wrongly: an obfuscating query may then be
        # of any other trajectory.
        choice = np.log(max(len(known) - 1, 1))
        others = self._seen.total - np.array(self._seen.counts)
        return softmax(np.array([each.log_likelihood for each in known]) - choice * others)

    def figures(self) -> dict[str, FloatArray]:
        """Return the posterior."""
        return {"posterior": self.belief()}
