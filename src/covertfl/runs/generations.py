"""Generations: the schedule of exchangeable trajectories (docs/exchangeable.md).

A generation queries all K trajectories one after the other, in an order drawn anew for each, each
until its round is accepted.  When all have been accepted, all move together: the true one by the
replies to its query, each decoy as its image (`decoys.replica`).  Who is asked when, what repeats,
who moves when and when it stops has the same distribution whichever trajectory is the true one.

A round is judged alike for all trajectories: replies to every query are sifted and counted in the
same way and averaged in the frame of the truth, and a round whose average fails is not accepted.
The average of the replies to the true query waits until the generation ends.

If nothing is owed, generations go on over the present states and the replies are ignored.  After
the last update of a horizon the states before it go on being sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from covertfl.decoys.replica import Replicas
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.learner import LearnerState
from covertfl.runs.responder import Outcome, Query
from covertfl.seeding import Stream, make_generator

PENDING = "generation-pending"  # name of the average that waits, in a checkpoint


@dataclass(frozen=True, eq=False)
class Generation:
    """How far the present generation has come.

    Parameters
    ----------
    number : 0, 1, ..., generations in which nothing is owed included
    place : trajectories whose round has been accepted
    is_owed : whether an update is owed, so that the generation ends with a move
    pending : (P,) average of the replies to the true query, once it has been accepted
    """

    number: int = 0
    place: int = 0
    is_owed: bool = False
    pending: Vector | None = None

    def enter(self, backlog: int) -> Generation:
        """Return the generation that a round with this backlog belongs to.

        One that began with nothing owed is left as soon as something is.
        """
        if self.place == 0:
            return replace(self, is_owed=backlog > 0)
        if backlog > 0 and not self.is_owed:
            return self.leave().enter(backlog)
        return self

    def leave(self) -> Generation:
        """Return the next generation before its first round."""
        return Generation(self.number + 1)

    def find_slot(self, trajectories: int, *, seed: int) -> int:
        """Return the slot that is queried next, in an order drawn from the hidden seed."""
        generator = make_generator(seed, Stream.ORDER, self.number)
        return int(generator.permutation(trajectories)[self.place])

    def pack(self, filler: Vector) -> tuple[dict[str, Any], dict[str, Vector]]:
        """Return what a checkpoint keeps: JSON values, and arrays by name.

        The (P,) filler takes the place of an average that is not there yet: how long a checkpoint
        takes to write must not tell whether the true query has been accepted.
        """
        facts = {"number": self.number, "place": self.place, "is_owed": self.is_owed}
        absent = ["pending"] if self.pending is None else []
        arrays = {PENDING: filler if self.pending is None else self.pending}
        return {**facts, "absent": absent}, arrays

    @classmethod
    def from_checkpoint(cls, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Generation:
        """Return the generation of a checkpoint, the first one if it has none."""
        facts = dict(facts)
        is_absent = "pending" in facts.pop("absent", ())
        return cls(**facts, pending=None if is_absent else arrays.get(PENDING))


def show(learner: LearnerState, replicas: Replicas, *, is_final: bool = False) -> LearnerState:
    """Return the state with the decoys and the queries that follow from the true weights.

    After the last update of a horizon (`is_final`), queries stay as they are.
    """
    # The true weights are reflected by ones: their zeros then have the same sign as a decoy's.
    true, *decoys = (replicas.reflect(learner.true, number) for number in range(replicas.size))
    moves = (learner.updates,) * len(decoys)
    learner = replace(learner, true=true, decoys=tuple(decoys), moves=moves)
    if is_final:
        return learner
    return replace(learner, sent=learner.trajectories)


def recall(learner: LearnerState, replicas: Replicas, shown: Vector | None) -> LearnerState:
    """Return the state of a checkpoint, which holds the true weights alone.

    `shown` are those before the last update of a horizon, whose images are sent after it.
    """
    if shown is None:
        return show(learner, replicas)
    before = show(replace(learner, true=shown), replicas)
    return show(replace(learner, sent=before.sent), replicas, is_final=True)


def advance(
    responder: ClientResponder,
    learner: LearnerState,
    generation: Generation,
    query: Query,
    outcome: Outcome,
    *,
    is_last: bool,
) -> tuple[LearnerState, Generation, Outcome]:
    """Return the state, the generation and the outcome after a round of a generation.

    Parameters
    ----------
    is_last : whether the update of this generation is the last of a horizon
    """
    replicas = responder.replicas
    if replicas is None:
        raise InvalidInput("generations need replicas, got none")
    # Where somebody can measure the time, all rounds take the same; elsewhere none is wasted.
    is_needed = outcome.accepted or responder.is_steady
    average = responder.average(learner, query, outcome) if is_needed else None
    if not outcome.accepted or average is None:
        return learner, generation, replace(outcome, accepted=False)
    taken = average if generation.is_owed and query.trajectory == 0 else generation.pending
    generation = replace(generation, place=generation.place + 1, pending=taken)
    if generation.place < replicas.size:
        return learner, generation, outcome
    if generation.is_owed:
        assert generation.pending is not None
        settled = responder.settle(learner, generation.pending)
        is_final = is_last and settled.updates > learner.updates
        learner = show(settled, replicas, is_final=is_final)
    return learner, generation.leave(), outcome
