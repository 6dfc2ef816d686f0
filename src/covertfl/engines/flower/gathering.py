"""What is kept of the valid replies of a round.

A server whose strategy only averages adds each reply to an exact sum as it comes and drops it: it
needs the memory of a few models, however many clients there are, and the order in which replies
come does not matter to the last bit.  All others keep the replies.  Which of the two depends on the
settings of the run, never on the action.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from flwr.app import Message, MetricRecord

from covertfl.engines.flower.claims import Claims
from covertfl.engines.flower.messages import (
    NOTHING,
    find_metrics,
    find_odd_metrics,
    has_more,
    has_odd_metrics,
)
from covertfl.kernels.exact_sum import TOGETHER, ExactSum
from covertfl.kernels.weights import Vector
from covertfl.runs.learner import Reply

# Their mean, all of them as vectors beside their messages, or their messages alone.
Keeping = Literal["mean", "vectors", "messages"]
WRONG_METRICS = "wrong metrics"
# Parameters up to which several replies are read in a row.
FEW_PARAMETERS = 2**20


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
