"""The scheme: what clients are sent, and what their replies do.

A round of a run (`runs.round`) is the same for every scheme:

    query    = scheme.ask(state, round, observation)      what all clients are sent
    outcome  = engine.ask(query)                          their replies; accepted or not
    step     = scheme.learn(state, query, outcome, ...)   a new state; the old one is not changed

A scheme is a frozen object that its class makes from a `Setup`.  A run keeps its state, packs it
into checkpoints and hands it back.  Whatever is secret is drawn from the triple
(hidden seed, stream, round), so that an interrupted round is repeated as it was.  What clients see
may depend on the secret only through `ask`.

To add a scheme, derive a class from `Scheme`, enter it in `registry` and describe its section of
the run file in `sections`.  A run file may also name a class elsewhere: scheme = "module:Class".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy.typing as npt

from covertfl.arrays import FloatArray, IntArray
from covertfl.decision.policy import Observation, Policy
from covertfl.decision.problem import Problem
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.files.text import Section
from covertfl.kernels.job import Layout, LocalJob, LocalKernel, LocalOptimizer, Vector
from covertfl.schemes.replies import (
    Aggregator,
    Algorithm,
    Reply,
    ServerMemory,
    SiftedReplies,
    find_fault,
)
from covertfl.tasks.task import TrainingTask

State = Any  # of a scheme
Part = TypeVar("Part", bound=Section)
Parts = Mapping[str, Section]  # the sections of a run file that belong to a scheme, by name
SeenRound = tuple[int, int, bool]
# Rounds after which a policy that a service made from rounds is made again.
REFIT_ROUNDS = 2_000
# What a scheme needs of replies: their mean, some of them, or the values of each.
Reading = Literal["mean", "some", "values"]


@dataclass(frozen=True, eq=False)
class Setup:
    """What a scheme is made from.

    Parameters
    ----------
    name : of the run file in messages
    parts : the scheme's own sections of the run file
    problem : with the success probabilities in force
    states : what the problem's oracle states stand for, None if it does not say
    task, kernel : what is trained, and how
    algorithm, optimizer, batch_size : of the federation
    participation : clients that take part, by oracle state
    by_data : whether rounds are accepted by their data
    sizes : (n,) examples of each client
    hidden_seed : of all that clients must not be able to reproduce
    secret : file with the secret of the federation, None if it has none
    """

    name: str
    parts: Parts
    problem: Problem
    states: OracleStates | None
    task: TrainingTask
    kernel: LocalKernel
    algorithm: Algorithm
    optimizer: LocalOptimizer
    batch_size: int
    participation: Sequence[int]
    by_data: bool
    sizes: IntArray
    hidden_seed: int
    secret: str | None = None

    @property
    def success(self) -> FloatArray:
        """Probability of acceptance by oracle state, (W,)."""
        return self.problem.oracle.success

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return self.kernel.layout


@dataclass(frozen=True, eq=False)
class Query:
    """What a round sends, the same to every client, and what the owner knows about it.

    Parameters
    ----------
    round : 1, 2, ...
    seen : what was observed before
    payload : (P,) weights that are sent
    trajectory : that they belong to; 0 for the owner's own model
    learn_prob : probability with which the owner's model is sent in such a round
    needs_replies : whether replies are used; simulated clients need not make others
    """

    round: int
    seen: Observation
    payload: Vector
    trajectory: int
    learn_prob: float
    needs_replies: bool = True

    @property
    def learns(self) -> bool:
        """Whether the owner's own model is sent."""
        return self.trajectory == 0

    @property
    def oracle_state(self) -> int:
        """The oracle state of the round."""
        return int(self.seen.oracle_state)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a query.

    Parameters
    ----------
    clients : (k,) numbers of the clients that were asked
    batches : (k,) batches behind the reply of each; 0 where none came
    examples : number behind the valid replies, or behind all clients if replies were not needed
    replies : the valid replies; empty if they were not needed
    accepted : whether the round is a success, or would have been one
    has_quorum : whether it has as many valid replies as a round needs to be used at all
    """

    clients: IntArray
    batches: IntArray
    examples: int
    replies: SiftedReplies
    accepted: bool
    has_quorum: bool = True


@dataclass(frozen=True, eq=False)
class Jobs:
    """Training that the server does itself; an engine carries it out with that of other runs.

    Parameters
    ----------
    plan : returns the jobs
    weights : that determine the jobs; empty if no other run can share them
    origin : what determines the jobs and their results beside the weights
    """

    plan: Callable[[], Sequence[LocalJob]]
    weights: tuple[Vector, ...] = ()
    origin: Hashable = None


@dataclass(frozen=True, eq=False)
class Step:
    """What a round has done: the new state, whether it is accepted, and updates that it made."""

    state: State
    accepted: bool
    updates: int = 0


Learning = Generator[Jobs, list[Vector], Step]


@dataclass(frozen=True, eq=False)
class Packed:
    """What a checkpoint keeps: arrays by name, and facts as JSON values."""

    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class History:
    """What a run has seen and spent so far.

    Parameters
    ----------
    rounds : number of rounds done
    seen : oracle state, arriving updates and acceptance of the latest rounds
    spent : sums of the costs so far, by name
    is_outdated : whether the latest rounds contradict the problem
    """

    rounds: int
    seen: tuple[SeenRound, ...]
    spent: Mapping[str, float]
    is_outdated: bool = False


@dataclass(frozen=True)
class DataChange:
    """Event: the data of clients change before the next round."""


@dataclass(frozen=True)
class Cancellation:
    """Event: updates that were owed no longer are."""


@dataclass(frozen=True)
class Restart:
    """Event: the server's optimizer begins anew."""


@dataclass(frozen=True, eq=False)
class Rollback:
    """Event: the run returns to weights that it once had, those of the state `target`."""

    target: State


Event = DataChange | Cancellation | Restart | Rollback


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """What somebody who knows the scheme, its settings and the problem knows of a run.

    Parameters
    ----------
    policy : the policy to be expected
    takes_every_reply : whether replies of rounds that are not accepted are used, too
    is_symmetric : whether the schedule has the same distribution whichever trajectory is true
    has_schedule : whether policy and problem determine the schedule before the run
    trajectories : their number
    pivot : array in which trajectories differ, None if it is not known
    """

    policy: Policy
    takes_every_reply: bool = False
    is_symmetric: bool = False
    has_schedule: bool = True
    trajectories: int = 2
    pivot: str | None = None


@dataclass(frozen=True, eq=False)
class PolicyInForce:
    """The policy that a run follows now.

    Parameters
    ----------
    kind : its name
    policy : None if nothing can be said of it
    problem : that it was made for
    """

    kind: str
    policy: Policy | None
    problem: Problem


@dataclass(frozen=True, eq=False)
class Variant:
    """One way to set a scheme up, as a comparison of all ways shows it.

    Parameters
    ----------
    name : of the folder of its runs
    policy, decoy : what it is called
    content : the scheme's sections of the run file
    rounds : that it needs, None for those of the problem
    """

    name: str
    policy: str
    decoy: str
    content: Mapping[str, Mapping[str, Any]]
    rounds: int | None = None


class Scheme(ABC):
    """A scheme; subclasses are frozen.

    Parameters
    ----------
    setup : what it was made from

    Attributes
    ----------
    sections : its sections of the run file, by name
    choices : what keys of them allow that take values of different types, by section and key
    maps_inputs : whether the public map stands in front of the model
    is_tied : whether its secrets belong to the clients' data: a federation then keeps them in a
        file, and runs over other data have others
    slots : trajectories that move by themselves, each with a memory of the engine's
    holds_attempts : whether an attempt may be kept in a later round than its own
    moves_in_sight : whether all that is shown moves in the same rounds, which clients see
    reading : what it needs of replies
    """

    sections: ClassVar[Mapping[str, type[Section]]] = {}
    choices: ClassVar[Mapping[tuple[int | str, ...], str]] = {}
    maps_inputs: ClassVar[bool] = False
    is_tied: ClassVar[bool] = False
    slots: ClassVar[int] = 1
    holds_attempts: ClassVar[bool] = False
    moves_in_sight: ClassVar[bool] = False
    setup: Setup

    # --- from the run file --------------------------------------------------------------------

    @classmethod
    def check(cls, parts: Parts, problem: Problem | None, name: str) -> None:
        """Raise InvalidInput if the scheme's sections of the run file `name` cannot be used.

        Called with None before the problem is read, and with the problem afterwards.
        """
        return None

    @classmethod
    def find_paths(cls, parts: Parts) -> Mapping[str, tuple[str, ...]]:
        """Return the keys of the scheme's sections that hold paths, by section."""
        return {}

    @classmethod
    def count_trajectories(cls, parts: Parts) -> int:
        """Return the number of trajectories: the owner's model, and what is shown beside it."""
        return 2

    @classmethod
    def remembers(cls, parts: Parts, *, refits: bool) -> int:
        """Return how many of the latest rounds `follow` needs.

        Parameters
        ----------
        refits : whether a service makes the policy anew when rounds contradict its problem
        """
        return 0

    @classmethod
    def name_parts(cls, parts: Parts) -> dict[str, str]:
        """Return how a run of the scheme is described, by words."""
        return {}

    @classmethod
    def list_plug_ins(cls, parts: Parts) -> dict[str, str]:
        """Return the names of plug-ins that the scheme uses, by their keys in the run file."""
        return {}

    @classmethod
    def is_built_in(cls, parts: Parts) -> bool:
        """Return whether no code from outside the package takes part in the scheme."""
        return cls.__module__.startswith("covertfl.") and not cls.list_plug_ins(parts)

    @classmethod
    def list_variants(cls, problem: Problem) -> list[Variant]:
        """Return the ways to set the scheme up that a comparison of all schemes shows."""
        return []

    @classmethod
    def write_secret(cls, path: str, task: TrainingTask) -> int:
        """Make the secret of a federation; return the most trajectories that it is good for."""
        raise InvalidInput("the scheme has no secret of the federation")

    @classmethod
    @abstractmethod
    def make(cls, setup: Setup) -> Self:
        """Make the scheme of a run."""

    def accept_arguments(
        self, *, has_first: bool, policy: Policy | None, has_own_start: bool
    ) -> Scheme:
        """Return the scheme as the arguments of a server app want it; raise if it cannot be.

        Parameters
        ----------
        has_first : whether the first weights are given
        policy : to follow instead of the run file's, None for that
        has_own_start : whether decoys start at weights of their own
        """
        if policy is not None:
            raise InvalidInput(f"{self.setup.name}: the scheme follows no policy, got one")
        return self

    # --- a run --------------------------------------------------------------------------------

    @abstractmethod
    def start(
        self, aggregator: Aggregator, first: Vector | None = None, *, is_fresh: bool = False
    ) -> State:
        """Return the state before the first round.

        Parameters
        ----------
        first : (P,) weights that the owner's model starts from, None to draw them
        is_fresh : whether what is shown beside it starts from weights of its own nevertheless
        """

    def follow(self, state: State, history: History) -> State:
        """Return the state with what the scheme learns from the rounds so far, before a round."""
        return state

    @abstractmethod
    def ask(self, state: State, round_number: int, seen: Observation) -> Query:
        """Return what the next round sends."""

    @abstractmethod
    def shown(self, state: State) -> tuple[Vector, ...]:
        """Return all that `ask` may send next, by trajectory: the very arrays that it sends.

        They are encoded beforehand, so that time tells nothing.
        """

    @abstractmethod
    def models(self, state: State) -> tuple[Vector, ...]:
        """Return the owner's model and, in the order of their numbers, the other trajectories."""

    def uses_replies(self, trajectory: int) -> bool:
        """Return whether replies to a trajectory are used at all."""
        return True

    @property
    def reading(self) -> Reading:
        """What the scheme needs of replies."""
        return "mean"

    def fault(self, query: Query, reply: Reply) -> str | None:
        """Return why what a reply holds is refused, None if it is not."""
        return find_fault(reply, len(query.payload))

    @abstractmethod
    def learn(
        self, state: State, query: Query, outcome: Outcome, aggregator: Aggregator
    ) -> Learning:
        """Return what the round has done; yield work, and receive its results."""

    def change(self, state: State, event: Event) -> State | None:
        """Return the state after an event from outside, None if it must wait for a later round."""
        return state

    @abstractmethod
    def pack(self, state: State) -> Packed:
        """Return what a checkpoint keeps of a state, as much in every round.

        The owner's model is the array "true".
        """

    @abstractmethod
    def unpack(self, packed: Packed) -> State:
        """Return the state that `pack` was given."""

    # --- what it says of itself ---------------------------------------------------------------

    @abstractmethod
    def describe(self) -> PublicFacts:
        """Return what somebody who knows the scheme knows of a run."""

    def find_policy(self, state: State, history: History) -> PolicyInForce:
        """Return the policy that a run follows now."""
        return PolicyInForce("", None, self.setup.problem)

    def find_refresh(self, state: State) -> int:
        """Return the rounds done when the policy in force was made, 0 for the first one."""
        return 0


def only_part(parts: Parts, kind: type[Part]) -> Part:
    """Return the part that is a section of a kind."""
    [found] = [part for part in parts.values() if isinstance(part, kind)]
    return found


def read_count(facts: Mapping[str, Any], name: str) -> int:
    """Return a number of a checkpoint; raise ValueError unless it is a whole number from 0."""
    value = facts[name]
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} must be a whole number from 0, got {value}")
    return value


def pack_memory(memory: ServerMemory | None) -> Packed:
    """Return what a checkpoint keeps of the memory of the server's optimizer."""
    if memory is None:
        return Packed({}, {"memory_steps": None})
    arrays = {"memory-mean": memory.mean, "memory-square": memory.square}
    return Packed(arrays, {"memory_steps": memory.steps})


def unpack_memory(packed: Packed) -> ServerMemory | None:
    """Return the memory that `pack_memory` was given."""
    steps, arrays = packed.facts["memory_steps"], packed.arrays
    if steps is None:
        return None
    return ServerMemory(steps, arrays["memory-mean"], arrays["memory-square"])
