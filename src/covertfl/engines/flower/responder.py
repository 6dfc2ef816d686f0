"""Clients behind a Flower grid, as responders to the queries of a run.

The work of a round does not depend on the action: every query is sent to all sampled clients and
their replies are read in the same way; the true trajectory's move and a decoy's are both computed,
and the one that is not needed is discarded (`GridResponder.update`, `GridResponder.rescore`).
With replicas the replies to each are aggregated in the frame of the truth (`GridResponder.average`)
and all trajectories move in the same round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Message

from covertfl.arrays import IntArray
from covertfl.engines.flower.array_form import ArrayForm, list_encoded
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.gathering import Keeping
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.strategy_settings import Accepts
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.engine import ClientWork, Work
from covertfl.runs.participation import Attendance, infer_state
from covertfl.runs.responder import Remembered
from covertfl.schemes.replies import (
    LearnerState,
    SiftedReplies,
    average_replies,
    is_finite,
    sift_replies,
)
from covertfl.schemes.scheme import Outcome, Query
from covertfl.seeding import Stream, make_generator


def choose_keeping(inner: InnerStrategies | None, clients: ClientResponder) -> Keeping:
    """Return what must be kept of replies, which does not depend on the action.

    Their mean is enough, unless a decoy uses them, a level chooses among them or the wrapped
    strategy may use them in another way.
    """
    has_eager = clients.decoy is not None and clients.decoy.needs_replies
    is_chosen = clients.replicas is not None and clients.level is not None
    if not (has_eager or is_chosen) and (inner is None or inner.takes_mean):
        return "mean"
    return "vectors" if inner is None or has_eager else "messages"


@dataclass(frozen=True, eq=False, kw_only=True)
class GridResponder(ClientResponder):
    """The clients of a federation behind a grid.

    Parameters
    ----------
    inner : wrapped strategies, None to average as the simulator does
    accepts : decides whether a round succeeds, None to follow the run's settings
    most_examples : largest number of examples that is accepted in a reply
    """

    form: ArrayForm
    exchange: Carrier
    most_examples: int
    inner: InnerStrategies | None = None
    accepts: Accepts | None = None
    _present: list[int] = field(default_factory=list, init=False)

    @property
    def is_steady(self) -> bool:
        """Return True: clients measure the time until the next query."""
        return True

    def score(self, weights: Vector) -> float:
        """Return the accuracy on the validation set; 0 if there is none."""
        return super().score(weights) if len(self.task.validation) else 0.0

    def observe(self, round_number: int) -> int | None:
        """Return the oracle state, from the number of nodes that are connected.

        None, so that it is drawn or replayed, if something else than clients determines it.
        """
        self._present[:] = self.exchange.look()
        states = self.settings.states
        if states is not None and not states.by_clients:
            return None
        return infer_state(self.settings, len(self._present))

    def ask(self, query: Query) -> Generator[Work, Any, Outcome]:
        """Send the query to the sampled clients and return what became of it."""
        asked = self._choose(query.round)
        nothing = np.zeros(len(asked), dtype=np.int64)
        attendance = Attendance(asked, nothing)
        replies = yield ClientWork(query.round, query.weights, attendance, unused=self.ignored)
        replies = [reply for reply in replies if reply.client not in self.ignored]
        # Values that are not kept as vectors were checked when they came.
        gathered = self.exchange.gathered
        size = len(query.weights) if gathered.keeping == "vectors" else 0
        sifted = sift_replies(replies, size, self.most_examples)
        sifted = replace(sifted, average=gathered.average)
        came = {reply.client: reply.examples for reply in replies if reply.fault is None}
        attendance = Attendance(asked, self._count_batches(asked, came))
        has_quorum = self.has_quorum(len(sifted.clients))
        accepted = has_quorum and self._accepts(query, sifted)
        return Outcome(attendance, sifted.total, sifted, accepted, has_quorum)

    def _choose(self, round_number: int) -> IntArray:
        """Return the clients that are asked; the sampling does not depend on the action."""
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

    def _accepts(self, query: Query, replies: SiftedReplies) -> bool:
        if self.accepts is not None:
            number = len(replies.clients)
            return number > 0 and bool(self.accepts(replies.total, number))
        return self.is_accepted(query.oracle_state, query.round, replies.total)

    def update(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, is_moving: bool
    ) -> Generator[Work, Any, LearnerState | None]:
        """Compute the learner's move and a decoy's in every round, and use at most one of them.

        Clients wait for the next query: the time until it comes must not depend on the action.
        None where that of the queried trajectory fails, used or not.
        """
        learns, obfuscates = is_moving and query.trajectory == 0, is_moving and query.trajectory > 0
        learned = self.move_learner(learner, query, outcome, kept=learns)
        decoy = replace(query, trajectory=1, weights=learner.query(1))
        obfuscated = yield from self.move_decoy(learner, decoy, outcome, kept=obfuscates)
        moved = learned if query.trajectory == 0 else obfuscated
        return moved if is_moving or moved is None else learner

    def rescore(
        self, scores: Sequence[float], before: LearnerState, after: LearnerState
    ) -> Generator[Work, Any, tuple[float, ...]]:
        """Score every trajectory anew, moved or not, so that every round takes the same time.

        Replicas all move in the same rounds, so that they need not be scored in the others.
        """
        if self.replicas is not None:
            return (yield from super().rescore(scores, before, after))
        return tuple(self.score(weights) for weights in after.trajectories)

    def move_learner(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, kept: bool = True
    ) -> LearnerState | None:
        """Move the true trajectory with the wrapped strategy, or as the simulator does.

        None where that fails: clients must not be able to end the training.  A result that is not
        `kept` is computed only for the time it takes.
        """
        if not outcome.replies.clients:
            return None
        if self.inner is None:
            learned = super().move_learner(learner, query, outcome)
            self._make_ready(0, learner.true if learned is None else learned.true, kept=kept)
            return learned
        average = outcome.replies.average
        given = self.inner.clean(self._messages(outcome)) if average is None else average
        true = self.inner.aggregate(0, learner.true, given, kept=kept)
        return None if true is None else replace(learner, true=true, updates=learner.updates + 1)

    def average(self, learner: LearnerState, query: Query, outcome: Outcome) -> Vector | None:
        """Return what the replies to any replica amount to, in the frame of the truth.

        That is their average, or where a copy of the wrapped strategy moves on them.  None where
        there are none, or the aggregation fails: the round is then not accepted, whichever
        trajectory it was.
        """
        if self.inner is None:
            average = super().average(learner, query, outcome)
            return average if average is not None and is_finite(average) else None
        used = self.use_level(query, outcome)
        if used is None:
            return None
        kept, replicas = outcome.accepted and query.trajectory == 0, self.replicas
        assert replicas is not None
        if used.replies.average is not None:
            restored = replicas.restore(average_replies(used.replies), query.trajectory)
            return self.inner.attempt(learner.true, restored, kept=kept)
        # As `restore` does, array by array.
        signs = replicas.signs[query.trajectory]
        messages = self.inner.flip(self._messages(used), replicas.pivot, signs)
        return self.inner.attempt(learner.true, messages, kept=kept)

    def settle(self, learner: LearnerState, average: Vector) -> LearnerState:
        """Move the true trajectory at the end of a generation, unless to what is not finite."""
        if self.inner is None:
            settled = super().settle(learner, average)
        else:
            settled = replace(learner, true=average, updates=learner.updates + 1)
        if not is_finite(settled.true):
            return learner
        if self.inner is not None:
            self.inner.settle()
        return settled

    def move_decoy(
        self, learner: LearnerState, query: Query, outcome: Outcome, *, kept: bool = True
    ) -> Generator[Work, Any, LearnerState | None]:
        """Move the decoy, with a strategy of its own where strategies are wrapped.

        None where that fails.  A result that is not `kept` is computed only for the time it takes.
        """
        proposed = yield from self.propose(learner, query, outcome)
        if proposed is None:
            return None
        trajectory = query.trajectory
        if self.inner is not None and outcome.replies.clients:
            given: Sequence[Message] | Vector = proposed
            if outcome.replies.average is None:
                given = self.inner.propose(self._messages(outcome), proposed)
            moved = self.inner.aggregate(trajectory, query.weights, given, kept=kept)
        else:
            moved = proposed if self._make_ready(trajectory, proposed, kept=kept) else None
        return None if moved is None else learner.with_decoy(trajectory, moved)

    def _make_ready(self, trajectory: int, weights: Vector, *, kept: bool) -> bool:
        """Encode new weights before the round of their query begins, whatever the action.

        Return whether they are finite; otherwise the trajectory must stay where it is.
        """
        arrays, is_sound = self.form.write(weights), is_finite(weights)
        if kept and is_sound:
            self.form.keep(trajectory, weights, arrays)
        return is_sound

    def _messages(self, outcome: Outcome) -> list[Message]:
        return [self.exchange.gathered.messages[client] for client in outcome.replies.clients]

    def prepare(self, learner: LearnerState) -> None:
        """Encode what replicas send next, all of them in the round in which they move."""
        if self.replicas is not None:
            self.form.prepare(list_encoded(learner))

    def describe(self, learner: LearnerState) -> dict[str, Any]:
        """Describe the final weights, and the clock by which rounds started."""
        return {**super().describe(learner), **self.exchange.clock.describe()}

    def remember(self) -> Remembered:
        """Return what the wrapped strategies remember, and the counts that clients claimed."""
        kept = Remembered() if self.inner is None else self.inner.remember()
        return Remembered(kept.arrays, {**kept.facts, **self.exchange.gathered.claims.remember()})
