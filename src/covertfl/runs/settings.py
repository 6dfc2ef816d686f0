"""The settings of a training run: the sections of a run file, and `RunSettings`.

Every key except `task` is optional.  The defaults are the paper's main experiment, except for
participation and decoys, which are chosen so that its scheme works (D19, D25 of
docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from covertfl.arrays import FloatArray
from covertfl.decision.decoy_rule import MAX_DECOYS, DecoyRule
from covertfl.decision.misreading import build_confusion
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.states import OracleStates
from covertfl.decoys.registry import DECOYS
from covertfl.errors import InvalidInput
from covertfl.files.toml import shorten
from covertfl.kernels.job import LocalOptimizer

if TYPE_CHECKING:
    from covertfl.tasks.task import TrainingTask

PROBLEM_SECTIONS = ("oracle", "cost", "queue", "horizon", "states")
LARGEST_SEED = 2**63 - 1
# Rounds of a queue's run if the run file does not set them.
QUEUE_ROUNDS = 200
# Keys of [data] that only the function task has.
FUNCTION_KEYS = ("dimension", "radius", "noise_limit")
# Batch sizes by task where the paper's 40 is too large: a client of digits holds 65 examples.
BATCH_SIZES = {"digits": 5}

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Present = Annotated[int, Field(ge=0, le=1_000_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
TaskName = Literal["toxicity", "embeddings", "digits", "mnist", "function", "own"]
PolicyKind = Literal[
    "optimal", "spga", "minority", "greedy", "random", "always-learn", "always-obfuscate", "file"
]
LiveMethod = Literal["exact", "search"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DirichletSplit(_Section):
    """`split = { dirichlet = 0.3 }`: unequal shares of the classes, drawn for each client."""

    dirichlet: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class DataSection(_Section):
    """`[data]`: the data, and how it is divided among clients and the public set."""

    split: Literal["iid"] | DirichletSplit = "iid"
    public_size: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    public_positive_share: Share = 0.1
    public_classes: Count | None = None
    public_class_share: Share | None = None
    path: str | None = None
    model: str | None = None
    dimension: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    radius: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    noise_limit: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None


class OptimizerSection(_Section):
    """`[federation] optimizer`: of the clients with fedavg, of the server with fedsgd."""

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1e-3
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0

    def make(self) -> LocalOptimizer:
        """Return the optimizer."""
        return LocalOptimizer(**self.model_dump())


class FederationSection(_Section):
    """`[federation]`: the clients, and when a round is accepted.

    Participation that is not given follows from the problem (`choose_participation`).
    """

    clients: Count = 20
    participation: list[Present] = Field(default_factory=list, min_length=1)
    log: str | None = None
    acceptance: Literal["data", "model", "noise"] = "data"
    min_share: Share = 0.25
    label_noise: list[Share] | None = None
    max_noise: Share | None = None
    misread: Share | list[list[Share]] = 0.0
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    batch_size: Count = 40


class PolicySection(_Section):
    """`[policy]`: when to learn."""

    kind: PolicyKind = "optimal"
    preset: str | None = None
    problem: str | None = None
    path: str | None = None
    refresh: Count | None = None
    live: LiveMethod | None = None

    @property
    def live_method(self) -> LiveMethod:
        """How a policy is refreshed."""
        return self.live or "exact"


class DecoySection(_Section):
    """`[decoy]`: what is sent when the policy obfuscates, and when a decoy moves.

    A decoy that is gated moves if the round would have been accepted, one that is not in every
    round, and one that is matched as often as learning queries have moved the true weights.
    """

    kind: str = "public"
    count: Annotated[int, Field(ge=1, le=MAX_DECOYS)] = 1
    least_queries: Annotated[int, Field(ge=0, le=1_000_000_000)] = 1
    gated: bool | Literal["matched"] = "matched"


class EngineSection(_Section):
    """`[engine]`: who answers the queries."""

    kind: Literal["simulated", "flower"] = "simulated"
    device: str = "cpu"
    mode: Literal["in-process", "simulation", "deployment"] = "in-process"
    round_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None


class RunSections(_Section):
    """A run file as it is written."""

    task: TaskName
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    rounds: Count | None = None
    updates: Count | None = None
    arrivals: str | None = None
    format: int = 1
    data: DataSection = Field(default_factory=DataSection)
    federation: FederationSection = Field(default_factory=FederationSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    decoy: DecoySection = Field(default_factory=DecoySection)
    engine: EngineSection = Field(default_factory=EngineSection)
    oracle: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    queue: dict[str, Any] | None = None
    horizon: dict[str, Any] | None = None
    states: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class RunSettings:
    """The settings of a run, complete: no other file is needed to understand them.

    Parameters
    ----------
    name : name of the run file in messages
    sections : the sections as written, with absolute paths
    problem : decision problem the policy is solved for, before success probabilities are measured
    content : sections of the problem, as in a problem file
    states : what the problem's oracle states stand for, None if the problem does not say
    own_task : task made in Python, for task = "own"
    secret : seed of everything that clients must not be able to reproduce, if they know `seed`;
        None if they do not
    """

    name: str
    sections: RunSections
    problem: Problem
    content: Mapping[str, Any]
    states: OracleStates | None = None
    own_task: TrainingTask | None = None
    secret: int | None = None

    @property
    def seed(self) -> int:
        """Seed of the data and of the clients' participation."""
        return self.sections.seed

    @property
    def hidden_seed(self) -> int:
        """Seed of the learner's own draws: actions, decoys, initial weights, policy search."""
        return self.sections.seed if self.secret is None else self.secret

    @property
    def rounds(self) -> int:
        """Number of rounds of the run."""
        if isinstance(self.problem, FiniteHorizon):
            return self.problem.rounds
        return self.sections.rounds or QUEUE_ROUNDS

    @property
    def confusion(self) -> FloatArray | None:
        """Probabilities of reading a state (column) in a true one (row), None if always right."""
        misread = self.sections.federation.misread
        return build_confusion(misread, self.problem.oracle.num_states) if misread else None

    @property
    def decoy_rule(self) -> DecoyRule:
        """How obfuscating queries are divided among the decoys."""
        return DecoyRule(self.sections.decoy.count, self.sections.decoy.least_queries)

    def with_seed(self, seed: int) -> RunSettings:
        """Return the same run with another seed."""
        sections = self.sections.model_copy(update={"seed": seed})
        return replace(self, sections=sections)

    def with_task(self, task: TrainingTask) -> RunSettings:
        """Return the same run, of task = "own", with a task made in Python."""
        if self.sections.task != "own":
            raise InvalidInput(f'{self.name}: task must be "own", got {self.sections.task!r}')
        if len(task.clients) != self.sections.federation.clients:
            raise InvalidInput(
                f"{self.name}: [federation] clients must be {len(task.clients)}, the number of "
                f"clients of the task, got {self.sections.federation.clients}"
            )
        return replace(self, own_task=task)

    def with_condition(self, policy: PolicyKind, decoy: str) -> RunSettings:
        """Return the same run with another policy and decoy."""
        sections = self.sections
        update = {
            "policy": sections.policy.model_copy(
                update={"kind": policy, "refresh": None, "live": None}
            ),
            "decoy": sections.decoy.model_copy(update={"kind": decoy}),
        }
        return replace(self, sections=sections.model_copy(update=update))

    def with_device(self, device: str) -> RunSettings:
        """Return the same run on another device."""
        engine = self.sections.engine.model_copy(update={"device": device})
        return replace(self, sections=self.sections.model_copy(update={"engine": engine}))


def check_sections(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if keys that need or exclude each other disagree."""
    _check_policy(sections, name)
    optimizer = sections.federation.optimizer
    if optimizer.momentum > 0.0 and optimizer.name != "sgd":
        raise InvalidInput(
            f"{name}: [federation] optimizer.momentum needs name = sgd, got name = {optimizer.name}"
        )
    if sections.task == "embeddings" and sections.data.path is None:
        raise InvalidInput(f"{name}: [data] path is needed with task = embeddings, an .npz file")
    for key in FUNCTION_KEYS:
        value = getattr(sections.data, key)
        if value is not None and sections.task != "function":
            raise InvalidInput(
                f"{name}: [data] {key} needs task = function, got task = {sections.task}"
            )
    if sections.decoy.kind not in DECOYS:
        known, given = ", ".join(DECOYS), shorten(sections.decoy.kind)
        raise InvalidInput(f"{name}: [decoy] kind must be one of {known}, got {given}")


def check_participation(sections: RunSections, states: OracleStates | None, name: str) -> None:
    """Raise InvalidInput if the federation does not match the states of its problem."""
    clients, participation = sections.federation.clients, sections.federation.participation
    if sections.engine.kind == "flower":
        _check_flower(sections, states, name)
    if max(participation) > clients:
        raise InvalidInput(
            f"{name}: [federation] participation must be at most clients = {clients}, "
            f"got {max(participation)}"
        )
    if states is None:
        if participation != sorted(participation):
            raise InvalidInput(
                f"{name}: [federation] participation must not decrease from one oracle state to "
                f"the next, got {shorten(participation)}"
            )
        return
    if len(participation) != states.num_states:
        raise InvalidInput(
            f"{name}: [federation] participation must have {states.num_states} numbers, one for "
            f"each oracle state, got {len(participation)}"
        )
    default = FederationSection.model_fields["min_share"].default
    if states.min_examples is not None and sections.federation.min_share != default:
        raise InvalidInput(
            f"{name}: [federation] min_share and [states] min_examples exclude each other: give "
            "one of the two"
        )
    try:
        states.check_participation(participation)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [federation] {error}") from error


def _check_flower(sections: RunSections, states: OracleStates | None, name: str) -> None:
    participation, mode = sections.federation.participation, sections.engine.mode
    if sections.task == "function":
        raise InvalidInput(f"{name}: [engine] kind = flower needs clients, got task = function")
    if states is None and not all(after > before for before, after in pairwise(participation)):
        raise InvalidInput(
            f"{name}: [federation] participation must increase from one oracle state to the "
            "next with [engine] kind = flower, because the state is inferred from the number "
            f"of clients present, got {shorten(participation)}"
        )
    if mode != "deployment":
        return
    if sections.federation.misread:
        raise InvalidInput(
            f"{name}: [federation] misread is an error that is simulated and cannot be used with "
            "[engine] mode = deployment"
        )
    if states is not None and not states.by_clients:
        raise InvalidInput(
            f"{name}: [states] column must be clients with [engine] mode = deployment, because the "
            f"state is inferred from the number of clients present, got {shorten(states.column)}"
        )
    if sections.federation.log is not None:
        raise InvalidInput(
            f"{name}: [federation] log is replayed by simulated clients and cannot be used with "
            "[engine] mode = deployment"
        )


def _check_policy(sections: RunSections, name: str) -> None:
    policy = sections.policy
    if policy.kind == "file" and policy.path is None:
        raise InvalidInput(f"{name}: [policy] kind = file needs path, a policy file")
    if policy.kind != "file" and policy.path is not None:
        raise InvalidInput(f"{name}: [policy] path needs kind = file, got kind = {policy.kind}")
    if policy.kind != "spga" and policy.refresh is not None:
        raise InvalidInput(f"{name}: [policy] refresh needs kind = spga, got kind = {policy.kind}")
    if policy.refresh is None and policy.live is not None:
        raise InvalidInput(f"{name}: [policy] live needs refresh, the rounds between two refreshes")


def _check_noise(sections: RunSections, num_states: int, name: str) -> None:
    section = sections.federation
    noise, is_by_noise = section.label_noise, section.acceptance == "noise"
    if is_by_noise != (section.max_noise is not None) or (is_by_noise and noise is None):
        raise InvalidInput(
            f"{name}: [federation] acceptance = noise, label_noise and max_noise go together, got "
            f"acceptance = {section.acceptance}, label_noise = {shorten(noise)} and max_noise = "
            f"{section.max_noise}"
        )
    if noise is None:
        return
    if len(noise) != num_states:
        raise InvalidInput(
            f"{name}: [federation] label_noise must have {num_states} numbers, one for each oracle "
            f"state, got {len(noise)}"
        )
    if noise != sorted(noise, reverse=True):
        raise InvalidInput(
            f"{name}: [federation] label_noise must not increase from one oracle state to the "
            f"next, got {shorten(noise)}"
        )
    engine = sections.engine
    if sections.task == "function" or (engine.kind == "flower" and engine.mode == "deployment"):
        raise InvalidInput(
            f"{name}: [federation] label_noise needs simulated clients, got task = "
            f"{sections.task} with [engine] mode = {engine.mode}"
        )


def check_problem(sections: RunSections, problem: Problem, name: str) -> None:
    """Raise InvalidInput if a key does not fit the problem: its kind, its number of states."""
    _check_noise(sections, problem.oracle.num_states, name)
    try:
        build_confusion(sections.federation.misread, problem.oracle.num_states)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [federation] {error}") from error
    if isinstance(problem, FiniteHorizon):
        if sections.arrivals is not None:
            raise InvalidInput(f"{name}: arrivals needs a [queue], got a [horizon]")
        _check_reserve(sections, problem.rounds, name)
        return
    if sections.updates is not None:
        raise InvalidInput(f"{name}: updates needs a [horizon], got a [queue]")
    if sections.policy.kind in ("random", "minority"):
        raise InvalidInput(
            f"{name}: [policy] kind = {sections.policy.kind} needs a problem with [horizon], "
            "got [queue]"
        )


def _check_reserve(sections: RunSections, rounds: int, name: str) -> None:
    """Raise InvalidInput if a horizon is too short for the decoys of the minority policy."""
    reserve = (sections.decoy.count - 1) * sections.decoy.least_queries
    if sections.policy.kind == "minority" and reserve >= rounds:
        raise InvalidInput(
            f"{name}: [decoy] (count - 1) * least_queries must be less than the {rounds} rounds "
            f"with [policy] kind = minority, got {reserve}"
        )
