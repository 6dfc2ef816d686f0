"""The Flower engine: clients behind a grid answer the queries of a run.

The work of a round does not depend on what was sent: every query goes to all sampled clients, their
replies are read in the same way, and schemes compute the same moves whatever they keep
(`Aggregator.is_steady`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from covertfl.arrays import IntArray
from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.gathering import Gathered, Keeping
from covertfl.engines.flower.inner_strategies import Given, InnerStrategies
from covertfl.engines.flower.strategy_settings import Accepts
from covertfl.kernels.job import Vector
from covertfl.runs.engine import Work
from covertfl.runs.participation import Acceptance, Clients, infer_state
from covertfl.runs.settings import RunSettings
from covertfl.schemes.replies import (
    Aggregator,
    Reply,
    Scaling,
    ServerMemory,
    SiftedReplies,
    average_replies,
    is_finite,
    sift_replies,
)
from covertfl.schemes.scheme import Outcome, Packed, Query, Scheme
from covertfl.seeding import Stream, make_generator


def choose_keeping(inner: InnerStrategies | None, scheme: Scheme) -> Keeping:
    """Return what must be kept of replies, which does not depend on what was sent.

    Their mean is enough, unless the scheme needs more, checks replies itself, or the wrapped
    strategy may use them in another way.
    """
    needs_values = scheme.reading == "values" or type(scheme).fault is not Scheme.fault
    if scheme.reading == "mean" and not needs_values and (inner is None or inner.takes_mean):
        return "mean"
    return "vectors" if inner is None or needs_values else "messages"


@dataclass(frozen=True, eq=False)
class WrappedAggregator:
    """Lets wrapped strategies turn replies into moves; they remember what they need.

    Parameters
    ----------
    inner : a strategy for each slot
    gathered : the messages of the replies of a round
    """

    inner: InnerStrategies
    gathered: Gathered
    is_steady: bool = True

    def start(self, weights: Vector) -> ServerMemory | None:
        """Return None: a strategy remembers by itself."""
        return None

    def attempt(
        self,
        slot: int,
        weights: Vector,
        replies: SiftedReplies,
        *,
        keeps: bool,
        scaling: Scaling | None = None,
        proposal: Vector | None = None,
    ) -> Vector | None:
        """Return the weights to which a copy of the slot's strategy moves, None where it fails.

        Clients must not be able to end the training.
        """
        if replies.clients:
            given = self._give(replies, scaling, proposal)
            return self.inner.attempt(slot, weights, given, keeps=keeps)
        return proposal if proposal is not None and is_finite(proposal) else None

    def _give(
        self, replies: SiftedReplies, scaling: Scaling | None, proposal: Vector | None
    ) -> Given:
        """Return what the strategy is given: an average where that is enough, else messages."""
        if replies.average is not None:
            average = average_replies(replies) if proposal is None else proposal
            return average if scaling is None else scaling.apply(average)
        messages = [self.gathered.messages[client] for client in replies.clients]
        if proposal is not None:
            return self.inner.propose(messages, proposal)
        if scaling is not None:  # as `Scaling.apply` does, array by array
            return self.inner.scale(messages, scaling.name, scaling.factors)
        return self.inner.clean(messages)

    def finish(
        self, weights: Vector, memory: ServerMemory | None, aggregate: Vector
    ) -> tuple[Vector, ServerMemory | None] | None:
        """Return the weights to which the strategy has moved."""
        return aggregate, None

    def keep(self, slot: int) -> None:
        """Let the copy that has moved take the place of the slot's strategy."""
        self.inner.keep(slot)


@dataclass(frozen=True, eq=False)
class GridEngine:
    """The clients of a federation behind a grid.

    Parameters
    ----------
    settings : of the run
    acceptance : when a round is a success, unless `accepts` decides it
    aggregator : turns replies into moves
    form : how the model travels
    carrier : exchanges messages
    most_examples : largest number of examples that is accepted in a reply
    inner : wrapped strategies, None to average as the simulator does
    """

    settings: RunSettings
    acceptance: Acceptance
    aggregator: Aggregator
    form: ArrayForm
    carrier: Carrier
    most_examples: int
    inner: InnerStrategies | None = None
    accepts: Accepts | None = None
    _present: list[int] = field(default_factory=list, init=False)

    def observe(self, round_number: int) -> int | None:
        """Return the oracle state, from the number of nodes that are connected.

        None, so that it is drawn or replayed, if something else than clients determines it.
        """
        self._present[:] = self.carrier.look()
        states = self.settings.states
        if states is not None and not states.by_clients:
            return None
        return infer_state(self.settings, len(self._present))

    def ask(self, query: Query, scheme: Scheme, clients: Clients) -> Generator[Work, Any, Outcome]:
        """Send the query to the sampled clients and return what became of it."""
        asked, unused = self._choose(query.round), clients.ignored
        replies = self.carrier.ask(query.round, query.payload, asked.tolist(), unused)
        used = [reply for reply in replies if reply.client not in unused]
        gathered = self.carrier.gathered
        # Values that are not kept as vectors were checked when they came.
        is_kept = gathered.keeping == "vectors"
        fault = partial(scheme.fault, query) if is_kept else _find_known_fault
        sifted = sift_replies(used, fault, self.most_examples)
        sifted = replace(sifted, average=gathered.average)
        came = {reply.client: reply.examples for reply in used if reply.fault is None}
        has_quorum = self.acceptance.has_quorum(len(sifted.clients))
        accepted = has_quorum and self._accepts(query, clients, sifted)
        batches = self._count_batches(asked, came)
        return Outcome(asked, batches, sifted.total, sifted, accepted, has_quorum)
        yield  # a generator, like every engine's

    def _choose(self, round_number: int) -> IntArray:
        """Return the clients that are asked; the sampling does not depend on what is sent."""
        present = np.array(self._present, dtype=np.int64)
        if self.inner is None:
            return present
        number, seed = self.inner.count_sampled(len(present)), self.settings.hidden_seed
        if number == len(present):
            return np.sort(present)
        generator = make_generator(seed, Stream.PARTICIPATION, round_number)
        return np.sort(generator.permutation(present)[:number])

    def _count_batches(self, asked: IntArray, came: Mapping[int, Any]) -> IntArray:
        """Return the number of batches behind each client's reply; 0 where none came."""
        size = self.settings.sections.federation.batch_size
        counts = [came.get(int(client), 0) for client in asked]
        valid = [count if type(count) is int and 0 < count < 2**53 else 0 for count in counts]
        return np.array([-(-count // size) for count in valid], dtype=np.int64)

    def _accepts(self, query: Query, clients: Clients, replies: SiftedReplies) -> bool:
        if self.accepts is not None:
            number = len(replies.clients)
            return number > 0 and bool(self.accepts(replies.total, number))
        state, sizes = query.oracle_state, clients.sizes
        return self.acceptance.accepts(sizes, state, query.round, replies.total)

    def prepare(self, weights: Sequence[Vector], *, in_sight: bool) -> None:
        """Encode weights before the round of their query begins.

        Those that are encoded already are encoded again, unless clients see anyway what is new.
        """
        self.form.prepare(weights, renews=not in_sight)

    def remember(self) -> Packed:
        """Return what the wrapped strategies remember, and the counts that clients claimed."""
        kept = Packed() if self.inner is None else self.inner.remember()
        return Packed(kept.arrays, {**kept.facts, **self.carrier.gathered.claims.remember()})

    def describe(self) -> dict[str, Any]:
        """Describe the clock by which rounds started."""
        return self.carrier.clock.describe()


def _find_known_fault(reply: Reply) -> str | None:
    """Return the fault that was found when a reply came."""
    return reply.fault
