"""The settings of a training run: the sections of a run file, and `RunSettings`.

Every key except `task` is optional.  The defaults are the paper's main experiment, except for
participation and decoys, which are chosen so that its scheme works (D19, D25 of
docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.states import OracleStates
from covertfl.decoys.registry import REPLICA
from covertfl.errors import InvalidInput
from covertfl.files.text import FORMATS, Section
from covertfl.kernels.job import LocalOptimizer
from covertfl.tasks.task import Count, DataSection, Seed, Share

if TYPE_CHECKING:
    from covertfl.tasks.task import TrainingTask

PROBLEM_SECTIONS = ("oracle", "cost", "queue", "horizon", "states")
# Most rounds that a problem is fitted to.
WINDOW = 20_000
# Latest rounds of a service that are compared with its problem, and rounds after which a policy
# that was made from rounds is made again.
DRIFT_ROUNDS, REFIT_ROUNDS = 2_000, 2_000
# Rounds of a queue's run if the run file does not set them.
QUEUE_ROUNDS = 200
# Batch sizes by task where the paper's 40 is too large: a client of digits holds 65 examples.
BATCH_SIZES = {"digits": 5}

Present = Annotated[int, Field(ge=0, le=1_000_000_000)]
PolicyKind = Literal[
    "optimal",
    "spga",
    "minority",
    "greedy",
    "random",
    "always-learn",
    "always-obfuscate",
    "exchangeable",
    "file",
]
LiveMethod = Literal["exact", "search"]


class OptimizerSection(Section):
    """`[federation] optimizer`: of the clients with fedavg, of the server with fedsgd."""

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1e-3
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0

    def make(self) -> LocalOptimizer:
        """Return the optimizer."""
        return LocalOptimizer(**self.model_dump())


class FederationSection(Section):
    """`[federation]`: the clients, and when a round is accepted.

    Participation that is not given follows from the problem (`choose_participation`).  A round with
    fewer than `min_replies` valid replies is not accepted, whatever else decides it.  Client 0
    adds a pattern that it knows to its replies, `mark` times as long as they are.  The file
    `secret` keeps the sign flips of replicas for all runs of the federation.
    """

    clients: Count = 20
    participation: list[Present] = Field(default_factory=list, min_length=1)
    log: str | None = None
    acceptance: Literal["data", "model"] = "data"
    min_share: Share = 0.25
    min_replies: Count | None = None
    mark: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    secret: str | None = None
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    batch_size: Count = 40


class PolicySection(Section):
    """`[policy]`: when to learn."""

    kind: PolicyKind = "optimal"
    preset: str | None = None
    problem: str | None = None
    path: str | None = None
    trajectories: int | None = None
    refresh: Count | None = None
    live: LiveMethod | None = None

    @property
    def live_method(self) -> LiveMethod:
        """How a policy is refreshed."""
        return self.live or "exact"


class DecoySection(Section):
    """`[decoy]`: what is sent when the policy obfuscates, and when a decoy moves.

    A decoy that is gated moves if the round would have been accepted, one that is not in every
    round, and one that is matched as often as learning queries have moved the true weights.
    `pivot` is for replicas (`decoys.replica`).
    """

    kind: str = "public"
    gated: bool | Literal["matched"] = "matched"
    pivot: str | None = None


class EngineSection(Section):
    """`[engine]`: who answers the queries.

    Rounds on Flower start every `round_seconds`; 0 to start each when the last has ended.  By
    default a deployment finds an interval in its first round, and simulated nodes have none.
    """

    kind: Literal["simulated", "flower"] = "simulated"
    device: str = "cpu"
    mode: Literal["in-process", "simulation", "deployment"] = "in-process"
    round_seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None


class ServiceSection(Section):
    """`[service]`: the run is a lasting service, to which requests come.

    Rounds start every `round_seconds`, 0 for as fast as they go.  Other addresses than those of the
    machine itself need a certificate and its key.  With `refit` the policy is made anew when rounds
    or arrivals contradict its problem.
    """

    listen: str = "127.0.0.1:8800"
    round_seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0
    certificate: str | None = None
    key: str | None = None
    refit: bool = False


class RunSections(Section):
    """A run file as it is written.

    `keep` names the rounds whose weights stay in public/weights: all, the last n, or none, of which
    only the hashes are recorded.
    """

    task: str
    seed: Seed = 0
    rounds: Count | None = None
    updates: Count | None = None
    arrivals: str | None = None
    keep: Literal["all", "hashes"] | Count = "all"
    format: int = FORMATS["run"]
    data: DataSection = Field(default_factory=DataSection)
    federation: FederationSection = Field(default_factory=FederationSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    decoy: DecoySection = Field(default_factory=DecoySection)
    engine: EngineSection = Field(default_factory=EngineSection)
    service: ServiceSection | None = None
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
    def remembered_rounds(self) -> int:
        """Number of latest rounds that the state of a run holds, to fit a problem to them."""
        every, service = self.sections.policy.refresh, self.sections.service
        if every is None and service is not None:
            return WINDOW + REFIT_ROUNDS if service.refit else DRIFT_ROUNDS
        return 0 if every is None else WINDOW + every

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories: the true one and a decoy, or those of an exchangeable run."""
        return self.sections.policy.trajectories or 2

    def with_seed(self, seed: int) -> RunSettings:
        """Return the same run with another seed."""
        sections = self.sections.model_copy(update={"seed": seed})
        return replace(self, sections=sections)

    def with_task(self, task: TrainingTask) -> RunSettings:
        """Return the same run, of task = "own", with a task made in Python."""
        if self.sections.task != "own":
            raise InvalidInput(f'{self.name}: task must be "own", got {self.sections.task!r}')
        self.require_clients(task)
        return replace(self, own_task=task)

    def require_clients(self, task: TrainingTask) -> None:
        """Raise InvalidInput if a task from outside has another number of clients."""
        if len(task.clients) != self.sections.federation.clients:
            raise InvalidInput(
                f"{self.name}: [federation] clients must be {len(task.clients)}, the number of "
                f"clients of the task, got {self.sections.federation.clients}"
            )

    def with_condition(
        self, policy: PolicyKind, decoy: str, *, trajectories: int | None = None
    ) -> RunSettings:
        """Return the same run with another policy and decoy; `trajectories` for exchangeable."""
        sections = self.sections
        chosen = {"kind": policy, "refresh": None, "live": None, "trajectories": trajectories}
        known: dict[str, Any] = {"kind": decoy, "pivot": None}
        if "exchangeable" in (policy, sections.policy.kind):
            known |= {"gated": "matched"}
        update = {
            "policy": sections.policy.model_copy(update=chosen),
            "decoy": sections.decoy.model_copy(update=known),
            "data": sections.data.model_copy(update={"map": None}),
        }
        return replace(self, sections=complete_sections(sections.model_copy(update=update)))

    def with_rounds(self, rounds: int) -> RunSettings:
        """Return the same run with another number of rounds."""
        problem, content = self.problem, self.content
        if isinstance(problem, FiniteHorizon):
            problem = replace(problem, rounds=rounds)
            content = {**content, "horizon": {**content["horizon"], "rounds": rounds}}
        sections = self.sections.model_copy(update={"rounds": rounds})
        return replace(self, sections=sections, problem=problem, content=content)

    def with_sections(self, sections: RunSections) -> RunSettings:
        """Return the same run with other sections that leave its problem as it is."""
        return replace(self, sections=sections)

    def with_device(self, device: str) -> RunSettings:
        """Return the same run on another device."""
        engine = self.sections.engine.model_copy(update={"device": device})
        return replace(self, sections=self.sections.model_copy(update={"engine": engine}))


def complete_sections(sections: RunSections) -> RunSections:
    """Return the sections with the keys that an exchangeable policy implies."""
    policy, decoy, data = sections.policy, sections.decoy, sections.data
    if policy.kind != "exchangeable":
        return sections
    trajectories = policy.trajectories or 2
    known = {} if "kind" in decoy.model_fields_set else {"kind": REPLICA}
    update = {
        "policy": policy.model_copy(update={"trajectories": trajectories}),
        "decoy": decoy.model_copy(update=known),
        "data": data.model_copy(update={"map": "public"}),
    }
    return sections.model_copy(update=update)
