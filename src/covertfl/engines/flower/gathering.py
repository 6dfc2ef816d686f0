"""What is kept of the valid replies of a round.

A server whose strategy only averages adds each reply to an exact sum as it comes and drops it: it
needs the memory of a few models, however many clients there are, and the order in which replies
come does not matter to the last bit.  All others keep the replies.  Which of the two depends on the
settings of the run, never on the action.

The number of examples that a client claims is its weight in the average, so `Claims` bounds it.  No
claim may exceed what the largest client can have.  Where that is only an estimate, because the
server does not know the clients' data, a client must also stay below twice the median of its own
earlier counts: it cannot claim little in most rounds and much where it wants to steer.  A claim
above the bound is refused, not reduced: what is behind it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from flwr.app import Message, MetricRecord

from covertfl.engines.flower.messages import (
    NOTHING,
    find_metrics,
    find_odd_metrics,
    has_more,
    has_odd_metrics,
)
from covertfl.kernels.exact_sum import TOGETHER, ExactSum
from covertfl.kernels.job import Vector
from covertfl.schemes.replies import Reply

# Their mean, all of them as vectors beside their messages, or their messages alone.
Keeping = Literal["mean", "vectors", "messages"]
WRONG_METRICS = "wrong metrics"
# Parameters up to which several replies are read in a row.
FEW_PARAMETERS = 2**20
# A client may claim this many times an estimate, and this many times its own median.
TIMES = 2
# Counts of a client that its median needs, and the latest ones that it is taken of.
LEAST_COUNTS, MOST_COUNTS = 3, 15
# Name of the counts in a checkpoint.
CLAIMS = "claims"


class Gathered:
    """The valid replies of one round after the other.

    Parameters
    ----------
    keeping : what is kept
    size : number of weights of the model
    claims : bounds of the numbers of examples that clients claim
    has_strategy : whether a strategy is wrapped, which needs the same metrics of all replies

    `in_a_row` replies are read together: a large one when it comes, of small ones as many as are
    added together, which takes less time.
    """

    def __init__(self, keeping: Keeping, size: int, claims: Claims, *, has_strategy: bool) -> None:
        self.keeping: Keeping = keeping
        self.claims = claims
        self.in_a_row = TOGETHER if size <= FEW_PARAMETERS else 1
        self._has_strategy = has_strategy
        self._sum = ExactSum(size if keeping == "mean" else 0)
        self.messages: dict[int, Message] = {}
        self._metrics: dict[int, MetricRecord] = {}
        # One record for all replies with the same count and nothing else, as most have.
        self._plain: dict[int, MetricRecord] = {}
        self.average: Vector | None = None

    def begin(self) -> None:
        """Forget the replies of the last round."""
        self._sum.clear()
        self.messages, self._metrics, self._plain, self.average = {}, {}, {}, None

    def take(self, reply: Reply, message: Message, *, is_used: bool) -> Reply:
        """Keep a reply whose message was found valid, with values in parts; return what is kept.

        It is returned with a fault if its metrics are refused after all.  One that is not used is
        checked like all others.
        """
        metrics = find_metrics(message)
        if self.keeping == "mean":
            if self._has_strategy and has_odd_metrics(metrics):
                return Reply(reply.client, None, None, WRONG_METRICS)
            if is_used:
                self._sum.add_parts(reply.values, reply.examples)
            values = NOTHING
        else:
            self.messages[reply.client] = message
            values = np.concatenate(reply.values)
        if not has_more(metrics):
            metrics = self._plain.setdefault(reply.examples, metrics)
        self._metrics[reply.client] = metrics
        return Reply(reply.client, values, reply.examples)

    def end(self) -> set[int]:
        """Compute the mean; return the clients whose replies are refused for their metrics.

        No reply that was added can be refused any more.  It need not be: metrics do not matter to
        a mean of weights.
        """
        if self._sum.total:
            self.average = self._sum.mean()
        odd = find_odd_metrics(self._metrics) if self._has_strategy else set()
        for client in odd:
            del self._metrics[client]
        if self.keeping == "mean":
            return set()
        for client in odd:
            del self.messages[client]
        return odd

    @property
    def metrics(self) -> list[MetricRecord]:
        """Metrics of valid replies in the order of the clients."""
        return [self._metrics[client] for client in sorted(self._metrics)]


class Claims:
    """Bounds of the numbers of examples that clients claim.

    Parameters
    ----------
    most : bound for all clients in all rounds
    follows : whether a client's own earlier counts bound its later ones
    """

    def __init__(self, most: int, *, follows: bool) -> None:
        self._most, self._follows = most, follows
        # Tuples of numbers cost the garbage collector nothing, however many clients there are.
        self._counts: dict[int, tuple[int, ...]] = {}

    def bound(self, client: int) -> int:
        """Return the largest count that is accepted from a client now."""
        counts = self._counts.get(client, ())
        if len(counts) < LEAST_COUNTS:
            return self._most
        ordered, middle = sorted(counts), len(counts) // 2
        # The median of an even number of counts is halfway between two.
        twice = ordered[middle] + ordered[middle - 1 + len(counts) % 2]
        return min(self._most, TIMES * twice // 2)

    def take(self, counts: Mapping[int, int]) -> None:
        """Add the counts of a round's valid replies, by client."""
        if self._follows:
            for client, count in counts.items():
                self._counts[client] = (*self._counts.get(client, ()), count)[-MOST_COUNTS:]

    def refuse(self, client: int) -> None:
        """Count a claim that was too large as the largest that is accepted.

        A client that began with few examples is then refused for some rounds, not for good.
        """
        self.take({client: self.bound(client)})

    def remember(self) -> dict[str, Any]:
        """Return the facts that a resumed run needs; none if no client follows its own counts."""
        counts = {str(client): counts for client, counts in sorted(self._counts.items())}
        return {CLAIMS: counts} if self._follows else {}

    def recall(self, facts: Mapping[str, Any]) -> None:
        """Restore what `remember` returned."""
        stored = facts.get(CLAIMS, {})
        self._counts = {int(client): tuple(counts) for client, counts in stored.items()}
