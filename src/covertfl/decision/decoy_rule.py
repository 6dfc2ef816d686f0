"""Which decoy an obfuscating query goes to, if there are several.

The eavesdropper by proportional sampling, equation (6), takes the trajectory with most queries.  If
obfuscating queries were divided evenly among D decoys, that would soon be the true one.  So one
decoy, the lead, gets them all, except for q = `least_queries` of each other decoy, by which it is
seen.  These are *owed*, (D - 1) q in all, and go to the other decoys one after another.

In a horizon, a query is spared for a decoy that is owed one only if that cannot change what (6)
names at the end: with k learning queries and n of the lead before a round that is one of r left,
and at most f learning queries after it, if

    n > k + f    the lead stays ahead of the truth, or
    k > n + r    it cannot draw level any more.

Without either, the query is the lead's, as with one decoy, and queries may remain owed at the end.
A policy that never sends more than B learning queries (`budget`) limits f: with 2 B < N - (D - 1) q
every owed query is sent, because the lead has B + 1 queries before the last (D - 1) q of them.

A queue has no last round: the lead and the decoys that are owed a query take turns until nothing
is owed, and then the lead gets every obfuscating query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from covertfl.arrays import BoolArray, IntArray
from covertfl.decision.arguments import read_count
from covertfl.decision.policy import Observation, Policy, Whole
from covertfl.errors import InvalidInput

MAX_DECOYS = 1000  # each has a model in memory, so that a mistyped count must not exhaust it


@dataclass(frozen=True)
class DecoyRule:
    """How obfuscating queries are divided among decoys.

    Parameters
    ----------
    num_decoys : D, in 1 .. MAX_DECOYS
    least_queries : q, queries of each decoy but the lead, at least 0
    """

    num_decoys: int = 1
    least_queries: int = 1

    def __post_init__(self) -> None:
        if read_count(self.num_decoys, "decoys") > MAX_DECOYS:
            raise InvalidInput(f"decoys must be at most {MAX_DECOYS}, got {self.num_decoys}")
        read_count(self.least_queries, "least_queries", least=0)

    @property
    def reserve(self) -> int:
        """Number of queries of all decoys but the lead, (D - 1) q."""
        return (self.num_decoys - 1) * self.least_queries

    def choose(self, queries: Sequence[int], order: Sequence[int], *, spares: bool) -> int:
        """Return the decoy that an obfuscating query goes to.

        Parameters
        ----------
        queries : number of queries so far of each trajectory, the true one first
        order : the decoys 1 .. D, the lead first, then in the order in which they are served
        spares : whether a query may be spared for a decoy that is owed one
        """
        lead, *others = order
        if not spares:
            return lead
        return next((decoy for decoy in others if queries[decoy] < self.least_queries), lead)


ONE_DECOY = DecoyRule()


def may_spare(learning: Whole, lead: Whole, further: Whole, rounds_left: Whole) -> BoolArray:
    """Return whether a query can be spared by the lead without changing what (6) names at the end.

    Parameters
    ----------
    learning, lead : queries so far of the true trajectory and of the lead
    further : largest number of learning queries after this round
    rounds_left : this round included
    """
    ahead = np.asarray(lead) > np.asarray(learning) + further
    return np.asarray(ahead | (np.asarray(learning) > np.asarray(lead) + rounds_left))


def takes_turn(lead: int, served: int) -> bool:
    """Return whether a query of a queue is spared, given queries of the lead and of the others."""
    return lead > served


def count_further(
    policy: Policy, backlog: Whole, rounds_left: int, learning: int, num_states: int
) -> IntArray:
    """Return the largest number of learning queries after this round, if it obfuscates.

    It is zero if the policy learns in no oracle state with this backlog, which then stays as it is.

    Parameters
    ----------
    backlog : of the round, one number or (Y,)
    rounds_left, learning : of the round, and learning queries so far
    """
    levels, later = np.atleast_1d(backlog), rounds_left - 1
    ahead = Observation(
        np.arange(num_states)[:, None, None],
        levels,
        rounds_left=np.arange(1, rounds_left)[:, None],
        learning_queries=learning,
    )
    probs = np.broadcast_to(policy.learn_prob(ahead), (num_states, later, len(levels)))
    return np.where(np.any(probs, axis=(0, 1)), limit_further(policy, later, learning), 0)


def limit_further(policy: Policy, later: Whole, learning: Whole) -> Whole:
    """Return the fewer of the rounds to come and the learning queries left in a policy's budget."""
    budget: int | None = getattr(policy, "budget", None)
    return later if budget is None else np.minimum(later, np.maximum(budget - learning, 0))
