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

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from covertfl.decoys.replica import Replicas, draw_order
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.learner import LearnerState
from covertfl.runs.responder import Outcome, Query
from covertfl.seeding import Stream, make_generator

# With guard `client`: weight of the noise of all decoys in the common step, and of the latest
# average in the running mean of what clients agree on at a decoy.
MIXED, REMEMBERED = 0.9, 0.5
AGREED = "generation-agreed-"  # in the names of arrays in a checkpoint


@dataclass(frozen=True, eq=False)
class Generation:
    """How far the present generation has come.

    Parameters
    ----------
    number : 0, 1, ..., generations in which nothing is owed included
    place : trajectories whose round has been accepted
    is_owed : whether an update is owed, so that the generation ends with a move
    pending : (P,) average of the replies to the true query, once it has been accepted
    noise : (P,) sum of the noise of replies to decoys so far, with guard `client`
    agreed : (P,) running mean, for each decoy, of what clients agree on there, with guard `client`
    """

    number: int = 0
    place: int = 0
    is_owed: bool = False
    pending: Vector | None = None
    noise: Vector | None = None
    agreed: Mapping[int, Vector] = field(default_factory=dict)

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
        return Generation(self.number + 1, agreed=self.agreed)

    def find_slot(self, trajectories: int, *, seed: int) -> int:
        """Return the slot that is queried next, in an order drawn from the hidden seed."""
        generator = make_generator(seed, Stream.ORDER, self.number)
        return draw_order(trajectories, generator=generator)[self.place]

    def pack(self, replicas: Replicas, filler: Vector) -> tuple[dict[str, Any], dict[str, Vector]]:
        """Return what a checkpoint keeps: JSON values, and arrays by name.

        The (P,) filler takes the place of arrays that are not there yet: how long a checkpoint
        takes to write must not tell whether the true query has been accepted.
        """
        named: dict[str, Vector | None] = {"pending": self.pending}
        if replicas.mixes:
            numbers = range(1, replicas.size)
            named |= {"noise": self.noise}
            named |= {f"agreed-{number}": self.agreed.get(number) for number in numbers}
        facts = {"number": self.number, "place": self.place, "is_owed": self.is_owed}
        arrays = {
            f"generation-{name}": filler if array is None else array
            for name, array in named.items()
        }
        return {**facts, "absent": [name for name in named if named[name] is None]}, arrays

    @classmethod
    def from_checkpoint(cls, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> Generation:
        """Return the generation of a checkpoint, the first one if it has none."""
        facts = dict(facts)
        absent = {f"generation-{name}" for name in facts.pop("absent", ())}
        there = {name: array for name, array in arrays.items() if name not in absent}
        agreed = {
            int(name.removeprefix(AGREED)): array
            for name, array in there.items()
            if name.startswith(AGREED)
        }
        pending, noise = (there.get(f"generation-{name}") for name in ("pending", "noise"))
        return cls(**facts, pending=pending, noise=noise, agreed=agreed)


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
    sent = learner.trajectories
    if replicas.offsets:
        numbers = range(replicas.size)
        sent = tuple(replicas.send(true, number, learner.updates) for number in numbers)
    return replace(learner, shown=true, sent=sent)


def recall(learner: LearnerState, replicas: Replicas, shown: Vector | None) -> LearnerState:
    """Return the state of a checkpoint, which holds the true weights alone, and those shown."""
    if shown is None:
        return show(learner, replicas)
    before = show(replace(learner, true=shown, updates=learner.updates - 1), replicas)
    return show(replace(learner, shown=shown, sent=before.sent), replicas, is_final=True)


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
    generation = replace(generation, place=generation.place + 1)
    if generation.is_owed:
        generation = _take(generation, responder, learner, query.trajectory, average)
    if generation.place < replicas.size:
        return learner, generation, outcome
    if generation.is_owed:
        assert generation.pending is not None
        target = generation.pending
        if generation.noise is not None:
            # The more decoys, the less of each: their noise together has the same size.
            share = np.float32(MIXED / math.sqrt(replicas.size - 1))
            target = (target + share * generation.noise).astype(np.float32)
        settled = responder.settle(learner, target)
        is_final = is_last and settled.updates > learner.updates
        learner = show(settled, replicas, is_final=is_final)
    return learner, generation.leave(), outcome


def _take(
    generation: Generation,
    responder: ClientResponder,
    learner: LearnerState,
    trajectory: int,
    average: Vector,
) -> Generation:
    """Return the generation with the average of the replies to a trajectory.

    The noise of replies to a decoy is what they ask for less what clients agree on there; that part
    must stay out, or decoys would learn.  It is computed for the true query as well, so that all
    queries take the same time, and is not used there.
    """
    replicas = responder.replicas
    assert replicas is not None
    taken = replace(generation, pending=average)
    if not replicas.mixes:
        return generation if trajectory else taken
    asked = average - learner.true if responder.replies_are_weights else average
    before = generation.agreed.get(trajectory, asked)
    noise = asked - before
    agreed = {**generation.agreed, trajectory: before + np.float32(REMEMBERED) * noise}
    total = noise if generation.noise is None else generation.noise + noise
    mixed = replace(generation, noise=total, agreed=agreed)
    return mixed if trajectory else taken
