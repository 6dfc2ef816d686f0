"""K trajectories, one of them true, that are queried, repeated and moved alike.

Replicas.  For signs s of the axes, T_s multiplies column i of the pivot's weights W by s_i:
W -> W diag(s) (`flips`).  That is one multiplication by 1 or -1, exact in floating point and its
own inverse.  T_s maps training runs to training runs: it is what training would have given, had the
inputs been reflected.  The K = 2, 4 or 8 trajectories are the orbit of the true one under a
subgroup H of order K.  Its members are numbered so that the product of members a and b is member
a ^ b (bitwise), and member 0 is the identity.  A *slot* is a place in the orbit: slot h shows the
weights T_h x of a common trajectory x, and the true trajectory is the one in slot `choice`, which
is all that must stay secret.  Seen from the truth, slot h is trajectory h ^ choice: 0 is the true
one, and trajectory k is its image under T_k.

Generations.  A generation queries all K trajectories one after the other, in an order drawn anew
for each, each until its round is accepted.  When all have been accepted, all move together: the
true one by the replies to its query, each decoy as its image.  Who is asked when, what repeats, who
moves when and when it stops has the same distribution whichever trajectory is the true one.

A round is judged alike for all trajectories: replies to every query are sifted and counted in the
same way and averaged in the frame of the truth, and a round whose average fails is not accepted.
The average of the replies to the true query waits until the generation ends, so clients' data must
not change before: the average of old data, or of new, would show in the biases and row lengths,
which no reflection touches, when the truth was asked (`Exchangeable.change`).

Levels.  A round with fewer clients makes a longer, noisier move, and a listener sees from the
repeats in which rounds clients were few.  If moves were averages of all replies, their lengths
would say in which round, and so in which slot, the truth was asked.  So a move averages a fixed
number of replies, drawn from the valid ones.  Where a round is accepted by its data, clients of an
accepted round have done the more work the fewer they are.  Then the draw is repeated, and the one
whose work is nearest to a fixed amount is used.  Otherwise what is averaged has exactly the same
distribution in all rounds.

If nothing is owed, generations go on over the present states and the replies are ignored.  After
the last update of a horizon the states before it go on being sent.  docs/exchangeable.md has the
theorem and its proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.policy import Observation, Policy
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.errors import InvalidInput
from covertfl.files.text import Section
from covertfl.kernels.job import Float32Array, Layout, Vector
from covertfl.planning.trajectories import find_rounds_for_accepted
from covertfl.schemes.flips import draw_flips, find_pivot, read_secret, span, write_secret
from covertfl.schemes.policies import ConstantPolicy
from covertfl.schemes.replies import Aggregator, Scaling, ServerMemory, SiftedReplies
from covertfl.schemes.scheme import (
    Cancellation,
    DataChange,
    Event,
    History,
    Learning,
    Outcome,
    Packed,
    Parts,
    PolicyInForce,
    PublicFacts,
    Query,
    Reading,
    Restart,
    Rollback,
    Scheme,
    Setup,
    Step,
    Variant,
    only_part,
    pack_memory,
    read_count,
    unpack_memory,
)
from covertfl.seeding import Stream, draw_seed, make_generator
from covertfl.tasks.task import TrainingTask

SIZES = (2, 4, 8)  # numbers of trajectories
PENDING = "generation-pending"  # name of the average that waits, in a checkpoint
COMPARED = (2, 4)  # numbers of trajectories that a comparison of all schemes shows
COMPLETION = 0.95  # probability with which its runs finish all updates

# --- levels --------------------------------------------------------------------------------------

# Share of the clients of the smallest round that a move averages.
USED_SHARE = 0.6
# Success probability below which a state's rounds do not count as smallest.
LEAST_SUCCESS = 0.02
CANDIDATES = 200
# Mean of the examples behind a reply, and mean weighted by examples, as shares of a client's data.
# Clients that train on a uniformly random part of their data are near them in every state.
MEAN_SHARE, WEIGHTED_SHARE = 0.58, 0.70


class Level(NamedTuple):
    """What every move averages.

    Parameters
    ----------
    replies : their number
    work : wanted mean of the examples behind them, and mean weighted by examples; None for any
    """

    replies: int
    work: tuple[float, float] | None


def find_level(
    participation: list[int], success: FloatArray, size: float, *, by_data: bool, is_drawn: bool
) -> Level | None:
    """Return what every move of a federation averages, None for all replies.

    All are used if rounds have the same number of clients, whatever the state, and are not accepted
    by their data.

    Parameters
    ----------
    participation, success : (W,) clients and probability of acceptance by oracle state
    size : mean number of a client's examples
    by_data : whether rounds are accepted by their data
    is_drawn : whether clients train on a uniformly random part of their data, or on all of it
    """
    useful = [
        count
        for count, prob in zip(participation, success, strict=True)
        if prob > LEAST_SUCCESS and count > 0
    ]
    if not by_data and len(set(useful)) == 1:
        return None
    replies = max(1, round(USED_SHARE * min(useful, default=1)))
    if not by_data:
        return Level(replies, None)
    shares = (MEAN_SHARE, WEIGHTED_SHARE) if is_drawn else (1.0, 1.0)
    return Level(replies, (shares[0] * size, shares[1] * size))


def choose_level(
    examples: IntArray, level: Level, *, generator: np.random.Generator
) -> IntArray | None:
    """Return which of (k,) replies a move averages, in their order; None if they are too few."""
    if len(examples) < level.replies:
        return None
    if level.work is None:
        return np.sort(generator.permutation(len(examples))[: level.replies])
    keys = generator.random((CANDIDATES, len(examples)))
    drawn = np.argsort(keys, axis=1)[:, : level.replies]
    work = examples[drawn].astype(np.float64)
    mean, wanted = work.mean(axis=1), level.work
    weighted = np.square(work).sum(axis=1) / work.sum(axis=1)
    far = np.abs(mean / wanted[0] - 1.0) + np.abs(weighted / wanted[1] - 1.0)
    return np.sort(drawn[int(np.argmin(far))])


# --- replicas and generations --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Replicas:
    """The K trajectories as images of the true one.

    Parameters
    ----------
    layout : names and shapes of the model's parameters
    pivot : name of the pivot's weights
    signs : (K, d) of the subgroup
    choice : slot of the true trajectory
    """

    layout: Layout
    pivot: str
    signs: Float32Array
    choice: int

    @property
    def size(self) -> int:
        """Number of trajectories, K."""
        return len(self.signs)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the signs, by which a resumed run knows that they are the same."""
        return hashlib.sha256(self.signs.tobytes()).hexdigest()

    def find_trajectory(self, slot: int) -> int:
        """Return the trajectory in a slot: 0 for the true one."""
        return slot ^ self.choice

    def scale(self, trajectory: int) -> Scaling:
        """Return T of a trajectory, which turns replies to it into replies to the true weights.

        Trajectory 0 is reflected as well, by ones: the work must not tell the truth from others.
        """
        return Scaling(self.layout, self.pivot, self.signs[trajectory])

    def reflect(self, values: Float32Array, trajectory: int) -> Float32Array:
        """Return the images of (..., P) weights, gradients or steps under T of a trajectory."""
        return self.scale(trajectory).apply(values.copy())

    def start(self, drawn: Vector) -> Vector:
        """Return the first true weights: those that were drawn, in the slot of the truth.

        So the first weights of slot 0 are those that were drawn, whichever slot is the truth's.
        """
        return self.reflect(drawn, self.choice)

    def show(self, true: Vector) -> tuple[Vector, ...]:
        """Return the weights of all trajectories, that of the truth first."""
        # The true weights are reflected by ones: their zeros then have the same sign as a decoy's.
        return tuple(self.reflect(true, number) for number in range(self.size))


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

    def pack(self, filler: Vector) -> Packed:
        """Return what a checkpoint keeps.

        The (P,) filler takes the place of an average that is not there yet: how long a checkpoint
        takes to write must not tell whether the true query has been accepted.
        """
        facts = {"number": self.number, "place": self.place, "is_owed": self.is_owed}
        absent = ["pending"] if self.pending is None else []
        arrays = {PENDING: filler if self.pending is None else self.pending}
        return Packed(arrays, {**facts, "absent": absent})

    @classmethod
    def unpack(cls, packed: Packed) -> Generation:
        """Return the generation of a checkpoint."""
        facts = packed.facts
        pending = None if "pending" in facts["absent"] else packed.arrays[PENDING]
        number, place = read_count(facts, "number"), read_count(facts, "place")
        return cls(number, place, bool(facts["is_owed"]), pending)


@dataclass(frozen=True, eq=False)
class Orbit:
    """The state of the scheme.

    Parameters
    ----------
    weights : (P,) of each trajectory, that of the truth first
    sent : (P,) what queries of each send; one update behind after the last update of a horizon,
        because the final model is never sent
    updates : number of moves
    memory : of the server's optimizer, None with FedAvg
    """

    weights: tuple[Vector, ...]
    sent: tuple[Vector, ...]
    updates: int = 0
    memory: ServerMemory | None = None
    generation: Generation = field(default_factory=Generation)

    @property
    def true(self) -> Vector:
        """The true weights."""
        return self.weights[0]


# --- the scheme ----------------------------------------------------------------------------------


class ExchangeableSection(Section):
    """`[exchangeable]`: the number of trajectories, and the name of the pivot that is expected."""

    trajectories: int = 2
    pivot: str | None = None


@dataclass(frozen=True, eq=False)
class Exchangeable(Scheme):
    """The scheme of one run: its replicas."""

    setup: Setup
    replicas: Replicas

    sections: ClassVar[Mapping[str, type[Section]]] = {"exchangeable": ExchangeableSection}
    maps_inputs: ClassVar[bool] = True
    is_tied: ClassVar[bool] = True
    holds_attempts: ClassVar[bool] = True
    moves_in_sight: ClassVar[bool] = True

    # --- from the run file --------------------------------------------------------------------

    @classmethod
    def check(cls, parts: Parts, problem: Problem | None, name: str) -> None:
        """Raise InvalidInput if there is no subgroup of the order that is asked for."""
        size = only_part(parts, ExchangeableSection).trajectories
        if size not in SIZES:
            allowed = ", ".join(map(str, SIZES))
            raise InvalidInput(
                f"{name}: [exchangeable] trajectories must be one of {allowed}, got {size}"
            )

    @classmethod
    def count_trajectories(cls, parts: Parts) -> int:
        """Return K."""
        return only_part(parts, ExchangeableSection).trajectories

    @classmethod
    def name_parts(cls, parts: Parts) -> dict[str, str]:
        """Return the number of trajectories."""
        return {"trajectories": str(cls.count_trajectories(parts))}

    @classmethod
    def list_variants(cls, problem: Problem) -> list[Variant]:
        """Return numbers of trajectories, with rounds that nearly always finish all updates.

        None for a queue, and where the rounds are too many.
        """
        if not isinstance(problem, FiniteHorizon):
            return []
        found = []
        for size in COMPARED:
            accepted, content = size * problem.updates, {"exchangeable": {"trajectories": size}}
            needed = find_rounds_for_accepted(problem.oracle, accepted, (COMPLETION,))[COMPLETION]
            if needed is not None:
                name, label = f"exchangeable-{size}", f"exchangeable, K = {size}"
                found.append(Variant(name, label, "replica", content, needed))
        return found

    @classmethod
    def write_secret(cls, path: str, task: TrainingTask) -> int:
        """Make the sign flips of a federation, a file that its owner alone may read."""
        return write_secret(path, task)

    @classmethod
    def make(cls, setup: Setup) -> Self:
        """Find the pivot, draw or read the flips, and draw the slot of the truth.

        Raises
        ------
        InvalidInput
            if the model has no pivot, the public set knows too many axes, or the federation's
            secret cannot be used
        """
        section, task, hidden = (
            only_part(setup.parts, ExchangeableSection),
            setup.task,
            setup.hidden_seed,
        )
        pivot = find_pivot(task.make_model, task.public.features.shape[1:], section.pivot)
        count = section.trajectories.bit_length() - 1
        if setup.secret is None:
            flips = draw_flips(task, count, generator=make_generator(hidden, Stream.FLIP))
        else:
            flips = read_secret(setup.secret, task, count)
        choice = draw_choice(hidden, section.trajectories)
        return cls(setup, Replicas(setup.layout, pivot, span(flips), choice))

    def accept_arguments(
        self, *, has_first: bool, policy: Policy | None, has_own_start: bool
    ) -> Scheme:
        """Raise InvalidInput for what would tell the truth from its images."""
        reason = f"{self.setup.name}: scheme = exchangeable"
        if has_first:
            raise InvalidInput(
                f"{reason} draws the first weights in secret on the server: initial_arrays must be "
                "None, because published or pretrained weights would tell the truth from its images"
            )
        if policy is not None:
            raise InvalidInput(
                f"{reason} queries images of the true trajectory in turn: policy must be None"
            )
        if has_own_start:
            raise InvalidInput(
                f"{reason} starts decoys as images of the true weights: decoy_start must be "
                "'same', got 'fresh'"
            )
        return self

    # --- a run --------------------------------------------------------------------------------

    def start(
        self, aggregator: Aggregator, first: Vector | None = None, *, is_fresh: bool = False
    ) -> Orbit:
        """Return all trajectories as images of weights that are drawn in secret."""
        seed = draw_seed(self.setup.hidden_seed, Stream.INITIAL, 0)
        weights = self.replicas.show(self.replicas.start(self.setup.task.draw_weights(seed)))
        return Orbit(weights, weights, memory=aggregator.start(weights[0]))

    def ask(self, state: Orbit, round_number: int, seen: Observation) -> Query:
        """Return the query of the slot that is next in the generation."""
        generation = state.generation.enter(int(seen.backlog))
        slot = generation.find_slot(self.replicas.size, seed=self.setup.hidden_seed)
        trajectory = self.replicas.find_trajectory(slot)
        share = 1.0 / self.replicas.size
        return Query(round_number, seen, state.sent[trajectory], trajectory, share)

    def shown(self, state: Orbit) -> tuple[Vector, ...]:
        """Return what queries of each trajectory send."""
        return state.sent

    def models(self, state: Orbit) -> tuple[Vector, ...]:
        """Return the weights of each trajectory."""
        return state.weights

    @cached_property
    def level(self) -> Level | None:
        """What every move averages, None for all replies."""
        setup = self.setup
        return find_level(
            list(setup.participation),
            setup.success,
            float(setup.sizes.mean()),
            by_data=setup.by_data,
            is_drawn=len(setup.task.train) > 0,
        )

    @property
    def reading(self) -> Reading:
        """Some of the replies, if a level chooses among them."""
        return "mean" if self.level is None else "some"

    def _use_level(self, query: Query, replies: SiftedReplies) -> SiftedReplies | None:
        """Return the replies that a move averages, None if they are too few."""
        if self.level is None:
            return replies
        generator = make_generator(self.setup.hidden_seed, Stream.LEVEL, query.round)
        used = choose_level(replies.examples, self.level, generator=generator)
        return None if used is None else replies.choose(used)

    def learn(
        self, state: Orbit, query: Query, outcome: Outcome, aggregator: Aggregator
    ) -> Learning:
        """Judge the round, and move all trajectories when the generation has ended."""
        generation = state.generation.enter(int(query.seen.backlog))
        state = replace(state, generation=generation)
        # Where somebody can measure the time, all rounds take the same; elsewhere none is wasted.
        average = None
        if outcome.accepted or aggregator.is_steady:
            average = self._average(state, query, outcome, aggregator)
        if not outcome.accepted or average is None:
            return Step(state, accepted=False)
        taken = average if generation.is_owed and query.learns else generation.pending
        generation = replace(generation, place=generation.place + 1, pending=taken)
        if generation.place < self.replicas.size:
            return Step(replace(state, generation=generation), accepted=True)
        moved = replace(state, generation=generation.leave())
        if generation.is_owed:
            moved = self._settle(moved, generation, query, aggregator)
        return Step(moved, accepted=True, updates=moved.updates - state.updates)
        yield  # a generator, like every scheme's

    def _average(
        self, state: Orbit, query: Query, outcome: Outcome, aggregator: Aggregator
    ) -> Vector | None:
        """Return what the replies to any trajectory come to, in the frame of the truth."""
        used = self._use_level(query, outcome.replies)
        if used is None:
            return None
        is_kept = outcome.accepted and query.learns
        scaling = self.replicas.scale(query.trajectory)
        return aggregator.attempt(0, state.true, used, keeps=is_kept, scaling=scaling)

    def _settle(
        self, state: Orbit, generation: Generation, query: Query, aggregator: Aggregator
    ) -> Orbit:
        """Return the state after all trajectories have moved, unless to what is not finite."""
        assert generation.pending is not None
        finished = aggregator.finish(state.true, state.memory, generation.pending)
        if finished is None:
            return state
        aggregator.keep(0)
        true, memory = finished
        is_last = isinstance(self.setup.problem, FiniteHorizon) and int(query.seen.backlog) == 1
        weights = self.replicas.show(true)
        sent = state.sent if is_last else weights
        return replace(state, weights=weights, sent=sent, memory=memory, updates=state.updates + 1)

    def change(self, state: Orbit, event: Event) -> Orbit | None:
        """Return the state after an event; data change only where no average can be waiting.

        Whether one waits is secret, so that all rounds of a generation with an update owed refuse.
        What ends a generation ends it for all trajectories, and drops what waits.
        """
        generation = state.generation
        if isinstance(event, DataChange):
            return None if generation.place and generation.is_owed else state
        if isinstance(event, Cancellation):
            return replace(state, generation=generation.leave()) if generation.place else state
        if isinstance(event, Rollback):
            weights = self.replicas.show(event.target.true)
            return replace(
                state,
                weights=weights,
                sent=weights,
                memory=event.target.memory,
                generation=generation.leave(),
            )
        if isinstance(event, Restart) and state.memory is not None:
            return replace(state, memory=state.memory.empty())
        return state

    def pack(self, state: Orbit) -> Packed:
        """Return the true weights and the place in the generation; images are made from them."""
        arrays = {"true": state.true}
        if state.sent[0] is not state.true:
            arrays["sent"] = state.sent[0]
        generation, memory = state.generation.pack(state.true), pack_memory(state.memory)
        facts = {
            "updates": state.updates,
            "flips": self.replicas.fingerprint,
            "generation": generation.facts,
        }
        return Packed({**arrays, **generation.arrays, **memory.arrays}, {**facts, **memory.facts})

    def unpack(self, packed: Packed) -> Orbit:
        """Return the state.

        Raises
        ------
        InvalidInput
            if the flips are others than before, which would give the truth away
        """
        facts, arrays = packed.facts, packed.arrays
        if facts.get("flips") != self.replicas.fingerprint:
            raise InvalidInput(
                "the run cannot be resumed: its flips are not those of the checkpoint, so the "
                "secret of the federation, or its public set, has changed since the run began"
            )
        weights = self.replicas.show(arrays["true"])
        sent = self.replicas.show(arrays["sent"]) if "sent" in arrays else weights
        generation = Generation.unpack(Packed(arrays, facts["generation"]))
        updates = read_count(facts, "updates")
        return Orbit(weights, sent, updates, unpack_memory(packed), generation)

    # --- what it says of itself ---------------------------------------------------------------

    def describe(self) -> PublicFacts:
        """Return that every trajectory is queried alike."""
        size = self.replicas.size
        return PublicFacts(
            ConstantPolicy(1.0 / size),
            is_symmetric=True,
            trajectories=size,
            pivot=self.replicas.pivot,
        )

    def find_policy(self, state: Orbit, history: History) -> PolicyInForce:
        """Return that no policy decides."""
        return PolicyInForce("exchangeable", None, self.setup.problem)


def draw_choice(hidden_seed: int, trajectories: int) -> int:
    """Draw the slot of the true trajectory, uniformly: all that must stay secret of a run."""
    return int(make_generator(hidden_seed, Stream.CHOICE, 0).integers(trajectories))
