"""The settings of a run: the sections of a run file, read, checked, completed and written back.

Every key except `task` is optional.  The defaults are the paper's main experiment, except for
participation and decoys, which are chosen so that its scheme works (D19, D25 of
docs/deviations.md).  A scheme has sections of its own (`Scheme.sections`).  The decision problem
comes from the run file's own sections, a problem file or a preset.  Every mistake is reported with
its file and key.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import tomli_w
from pydantic import Field, ValidationError, create_model

import covertfl
from covertfl.arrays import FloatArray
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.problem_file import (
    LoadedProblem,
    ProblemFile,
    build_problem,
    find_unknown_keys,
    list_presets,
    read_preset_text,
)
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.files.text import (
    FORMATS,
    Location,
    Section,
    describe_mistake,
    describe_unknown_keys,
    list_keys,
    list_unknown,
    parse_toml,
    read_text,
    require_format,
    shorten,
    split_location,
)
from covertfl.kernels.job import LocalOptimizer
from covertfl.schemes.registry import DEFAULT, SCHEME_PLUG_INS, SCHEMES, find_scheme, refuse_others
from covertfl.schemes.scheme import Parts, Scheme
from covertfl.tasks.registry import TASK_PLUG_INS
from covertfl.tasks.task import Count, DataSection, Seed, Share

if TYPE_CHECKING:
    from covertfl.tasks.task import TrainingTask

PROBLEM_SECTIONS = ("oracle", "cost", "queue", "horizon", "states")
# Latest rounds of a service that are compared with its problem.
DRIFT_ROUNDS = 2_000
# Rounds of a queue's run if the run file does not set them.
QUEUE_ROUNDS = 200
# Success probabilities closer to 0 or 1 than this count as this close.
CERTAIN = 1e-9
DEFAULT_PROBLEM = "sound/main"
# Batch sizes by task where the paper's 40 is too large: a client of digits holds 65 examples.
BATCH_SIZES = {"digits": 5}

Present = Annotated[int, Field(ge=0, le=1_000_000_000)]


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
    `secret` keeps what all runs of the federation must have in common, if the scheme has such.
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

    The sections of a scheme are added to it (`find_model`).  `problem` is a preset or a path.
    `keep` names the rounds whose weights stay in public/weights: all, the last n, or none, of which
    only the hashes are recorded.
    """

    task: str
    scheme: str = DEFAULT
    problem: str | None = None
    seed: Seed = 0
    rounds: Count | None = None
    updates: Count | None = None
    arrivals: str | None = None
    keep: Literal["all", "hashes"] | Count = "all"
    format: int = FORMATS["run"]
    data: DataSection = Field(default_factory=DataSection)
    federation: FederationSection = Field(default_factory=FederationSection)
    engine: EngineSection = Field(default_factory=EngineSection)
    service: ServiceSection | None = None
    oracle: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    queue: dict[str, Any] | None = None
    horizon: dict[str, Any] | None = None
    states: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # The class of a scheme's run files is made when it is needed, and cannot be found by name.
        return _make_blank, (self.scheme,), self.__getstate__()


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
    def scheme(self) -> type[Scheme]:
        """The class of the scheme."""
        return find_scheme(self.sections.scheme, f"{self.name}: scheme")

    @property
    def parts(self) -> Parts:
        """The sections of the scheme, by name."""
        return _list_parts(self.sections, self.scheme)

    @property
    def remembered_rounds(self) -> int:
        """Number of latest rounds that the state of a run holds."""
        service = self.sections.service
        if service is None:
            return self.scheme.remembers(self.parts, refits=False)
        return max(DRIFT_ROUNDS, self.scheme.remembers(self.parts, refits=service.refit))

    @property
    def num_trajectories(self) -> int:
        """Number of trajectories: the owner's model, and what is shown beside it."""
        return self.scheme.count_trajectories(self.parts)

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

    def with_scheme(self, scheme: str, content: Mapping[str, Any]) -> RunSettings:
        """Return the same run under another scheme, whose sections are `content`."""
        own = {key for part in SCHEMES.values() for key in part.sections} | set(self.parts)
        kept = self.sections.model_dump(exclude_none=True, exclude=own | {"scheme"})
        kept["data"].pop("map", None)
        name, folder = self.name, Path()
        sections = _validate({**kept, "scheme": scheme, **content}, name)
        sections = complete_sections(_make_paths_absolute(sections, folder, name))
        check_sections(sections, name)
        changed = replace(self, sections=sections)
        changed.scheme.check(changed.parts, self.problem, name)
        return changed

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
    """Return the sections with the keys that the scheme implies."""
    if not find_scheme(sections.scheme).maps_inputs:
        return sections
    data = sections.data.model_copy(update={"map": "public"})
    return sections.model_copy(update={"data": data})


@cache
def find_model(scheme: type[Scheme]) -> type[RunSections]:
    """Return the model of run files of a scheme: the common sections and its own."""
    own: Any = {name: (kind, Field(default_factory=kind)) for name, kind in scheme.sections.items()}
    return create_model("RunFile", __base__=RunSections, **own)


def _make_blank(scheme: str) -> RunSections:
    """Return the sections of a run file of a scheme before they are filled."""
    model = find_model(find_scheme(scheme))
    return model.__new__(model)


def _list_parts(sections: RunSections, scheme: type[Scheme]) -> Parts:
    return {name: getattr(sections, name) for name in scheme.sections}


def _validate(content: Mapping[str, Any], name: str) -> RunSections:
    """Return the sections of the run file `name`, for the scheme that it names."""
    scheme = content.get("scheme", DEFAULT)
    if not isinstance(scheme, str):
        raise InvalidInput(
            f"{name}: scheme must be {SCHEME_PLUG_INS.describe_names()}, got {shorten(scheme)}"
        )
    refuse_others(content, name, scheme)
    kind = find_scheme(scheme, f"{name}: scheme")
    try:
        return find_model(kind).model_validate(content)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {_describe(error, content, kind)}") from error


# Sections that a resumed run may have others of.
MAY_CHANGE = ("engine", "keep", "service", "versions", "format")
# What keys allow that take values of different types.
CHOICES: Mapping[tuple[int | str, ...], str] = {
    ("task",): TASK_PLUG_INS.describe_names(),
    ("keep",): '"all", "hashes" or a number of rounds, at least 1',
    ("data", "split"): '"iid" or { dirichlet = a positive number }',
}


def read_run(path: str | os.PathLike[str]) -> RunSettings:
    """Read a run file; a mistake raises InvalidInput that names the file, the key and the value."""
    name = os.fspath(path)
    content = parse_toml(read_text(path, "a run file"), name)
    return build_run(content, name, folder=Path(path).parent)


def build_run(
    content: Mapping[str, Any], name: str, *, folder: str | os.PathLike[str]
) -> RunSettings:
    """Check the content of a run file, called `name` in messages, and return the run's settings.

    Paths in the content are relative to `folder`.
    """
    # Only covertfl writes versions: into the folder of a run, with the format.
    unstated = None if "versions" in content else FORMATS["run"]
    require_format("run", content.get("format", unstated), name)
    content = {key: value for key, value in content.items() if key != "versions"}
    sections = _make_paths_absolute(_validate(content, name), Path(folder).resolve(), name)
    sections = complete_sections(sections)
    check_sections(sections, name)
    described, source = _find_problem(sections, name)
    if "horizon" in described:
        own = {"rounds": sections.rounds, "updates": sections.updates}
        known = {key: value for key, value in own.items() if value is not None}
        described = {**described, "horizon": {**described["horizon"], **known}}
    loaded = build_problem(dict(described), source)
    sections = _fill_federation(sections, loaded, name)
    check_problem(sections, loaded.problem, name)
    scheme = find_scheme(sections.scheme)
    scheme.check(_list_parts(sections, scheme), loaded.problem, name)
    check_participation(sections, loaded.states, name)
    return RunSettings(name, sections, loaded.problem, described, loaded.states)


def _fill_federation(sections: RunSections, loaded: LoadedProblem, name: str) -> RunSections:
    """Return the sections with the keys of the federation that depend on task and problem."""
    federation = sections.federation
    known: dict[str, Any] = {}
    if "participation" not in federation.model_fields_set:
        if federation.log is not None and loaded.states is None:
            raise InvalidInput(
                f"{name}: [federation] log needs a problem that says which state a round is in, "
                "with a section [states] as covertfl fit -o writes it, or participation, the "
                "clients by oracle state"
            )
        known["participation"] = _find_participation(federation, loaded)
    if "batch_size" not in federation.model_fields_set and sections.task in BATCH_SIZES:
        known["batch_size"] = BATCH_SIZES[sections.task]
    return sections.model_copy(update={"federation": federation.model_copy(update=known)})


def _find_participation(section: FederationSection, loaded: LoadedProblem) -> list[int]:
    """Return the clients by oracle state: the problem's, or as many as its success needs.

    If states are formed by something else than clients, all clients take part in every state.
    """
    states, success = loaded.states, loaded.problem.oracle.success
    if states is not None and states.participation is not None:
        return list(states.participation)
    if states is not None and not states.by_clients:
        return [section.clients] * states.num_states
    return choose_participation(success, section.clients, section.min_share)


def choose_participation(success: FloatArray, clients: int, min_share: float) -> list[int]:
    """Return the numbers of clients, by oracle state, whose data suffices about as often as asked.

    The shares of k equal clients with many batches are uniform, so their sum is about normal with
    mean k/2 and variance k/12; it is to reach t = min_share * clients with the (W,) probabilities
    of `success`.  With z the normal quantile of one of them, sqrt(k) = z / sqrt(12) +
    sqrt(z^2 / 12 + 2 t), and of the two whole numbers beside it the one with the nearer probability
    is taken.  The numbers never fall from one state to the next, also where the probabilities do.
    """
    numbers: list[int] = []
    for prob in np.clip(success, CERTAIN, 1.0 - CERTAIN).tolist():
        z = NormalDist().inv_cdf(prob) / math.sqrt(12.0)
        fewer = math.floor((z + math.sqrt(z * z + 2.0 * min_share * clients)) ** 2)
        counts = [min(max(count, *numbers[-1:], 1), clients) for count in (fewer, fewer + 1)]
        reached = [
            NormalDist(count / 2.0, math.sqrt(count / 12.0)).cdf(min_share * clients)
            for count in counts
        ]
        is_more = abs(1.0 - reached[1] - prob) < abs(1.0 - reached[0] - prob)
        numbers.append(counts[is_more])
    return numbers


def _expand(path: str, name: str) -> Path:
    """Return a path of a run file with ~ expanded."""
    with contextlib.suppress(RuntimeError):  # the home of an unknown user
        if path and "\0" not in path:
            return Path(path).expanduser()
    raise InvalidInput(f"{name}: a path must name a file or folder, got {shorten(path)}")


def _make_paths_absolute(sections: RunSections, folder: Path, name: str) -> RunSections:
    def resolve(path: str | None) -> str | None:
        return None if path is None else str(folder / _expand(path, name))

    data, federation = sections.data, sections.federation
    is_preset = sections.problem is None or is_preset_name(sections.problem)
    update: dict[str, Any] = {
        "problem": sections.problem if is_preset else resolve(sections.problem),
        "arrivals": resolve(sections.arrivals),
        "data": data.model_copy(update={"path": resolve(data.path)}),
        "federation": federation.model_copy(
            update={"log": resolve(federation.log), "secret": resolve(federation.secret)}
        ),
    }
    scheme = find_scheme(sections.scheme)
    parts = _list_parts(sections, scheme)
    for part, keys in scheme.find_paths(parts).items():
        absolute = {key: resolve(getattr(parts[part], key)) for key in keys}
        update[part] = parts[part].model_copy(update=absolute)
    if sections.service is not None:
        files = {key: resolve(getattr(sections.service, key)) for key in ("certificate", "key")}
        update["service"] = sections.service.model_copy(update=files)
    return sections.model_copy(update=update)


def _find_problem(sections: RunSections, name: str) -> tuple[Mapping[str, Any], str]:
    """Return the sections of the problem and the name of their source in messages."""
    own = {key: getattr(sections, key) for key in PROBLEM_SECTIONS}
    given = {key: value for key, value in own.items() if value is not None}
    source = sections.problem
    if given and source is not None:
        raise InvalidInput(
            f"{name}: the problem must come from one place: `problem`, which names a preset or a "
            "file, or sections of this file, got both"
        )
    if given:
        return given, name
    if source is None or is_preset_name(source):
        preset = source or DEFAULT_PROBLEM
        return parse_toml(read_preset_text(preset), preset), f"preset {preset}"
    if not Path(source).exists():
        raise InvalidInput(
            f"{name}: problem must be a preset, one of {', '.join(list_presets())}, or the path of "
            f"a problem file, got {source}, which does not exist"
        )
    content = parse_toml(read_text(source, "a problem file"), source)
    build_problem(content, source)  # reports mistakes under the problem file's own name
    return {key: content[key] for key in PROBLEM_SECTIONS if key in content}, source


def is_preset_name(source: str) -> bool:
    """Return whether a problem is that of a preset; a path may not have its name."""
    return source in list_presets()


def _describe(error: ValidationError, content: Mapping[str, Any], scheme: type[Scheme]) -> str:
    """Describe all misspelt keys, or else one mistake; a misspelt key may be the missing one."""
    model, choices = find_model(scheme), {**CHOICES, **scheme.choices}
    unknown = [location for location in list_unknown(error) if location[:2] not in choices]
    if unknown:
        given = {key: content[key] for key in PROBLEM_SECTIONS if key in content}
        return describe_unknown_keys(
            [*unknown, *find_unknown_keys(given)], partial(_list_keys, model)
        )
    return describe_mistake(error, model, choices)


def _list_keys(model: type[RunSections], place: Location) -> list[str]:
    is_problem = bool(place) and place[0] in PROBLEM_SECTIONS
    return list_keys(ProblemFile if is_problem else model, place)


def list_versions() -> dict[str, str]:
    """Return the versions that results may depend on, by package."""
    packages = ("numpy", "torch")
    return {"covertfl": covertfl.__version__} | {name: metadata.version(name) for name in packages}


def describe_run(settings: RunSettings, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a run file that describes the same run without other files."""
    resolved = settings.sections.model_copy(update={"rounds": settings.rounds})
    sections = resolved.model_dump(exclude_none=True, exclude={*PROBLEM_SECTIONS, "problem"})
    del sections["format"]  # the one that is read, not the one that is written
    return {"format": FORMATS["run"], **sections, **settings.content, "versions": dict(versions)}


def format_run(settings: RunSettings, versions: Mapping[str, str]) -> str:
    """Return what `describe_run` does, as the text of a run file."""
    return tomli_w.dumps(describe_run(settings, versions))


def find_change(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> str | None:
    """Return the first key in which two runs differ, None if the second continues the first.

    Both are as `describe_run` returns them; the first is called `name` in messages.  A resumed run
    may have other rounds, another engine and other versions than before.
    """
    require_format("run", before.get("format"), name)
    old, new = _flatten(before), _flatten(after)
    for location in [*new, *old]:
        may_change = location[-1] == "rounds" or location[0] in MAY_CHANGE
        if old.get(location) != new.get(location) and not may_change:
            section, key = split_location(location)
            came, there = shorten(new.get(location)), shorten(old.get(location))
            return f"{section}{key} = {there}, got {came}"
    return None


def _flatten(content: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            flat |= {(key, *rest): entry for rest, entry in _flatten(value).items()}
        else:
            flat[(key,)] = value
    return flat


def check_sections(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if a name is unknown, or keys that need or exclude each other disagree."""
    TASK_PLUG_INS.check(sections.task, f"{name}: task")
    scheme = find_scheme(sections.scheme)
    scheme.check(_list_parts(sections, scheme), None, name)
    optimizer = sections.federation.optimizer
    if optimizer.momentum > 0.0 and optimizer.name != "sgd":
        raise InvalidInput(
            f"{name}: [federation] optimizer.momentum needs name = sgd, got name = {optimizer.name}"
        )
    if sections.task == "embeddings" and sections.data.path is None:
        raise InvalidInput(f"{name}: [data] path is needed with task = embeddings, an .npz file")
    if sections.data.public_class_share is not None and sections.data.public_classes is None:
        raise InvalidInput(
            f"{name}: [data] public_class_share needs public_classes, which is not set"
        )
    if sections.federation.mark and sections.engine.kind != "simulated":
        raise InvalidInput(f"{name}: [federation] mark needs [engine] kind = simulated")
    if sections.engine.round_seconds is not None and sections.engine.kind == "simulated":
        raise InvalidInput(
            f"{name}: [engine] round_seconds needs kind = flower, got kind = simulated, whose "
            "rounds take no time that anybody could measure"
        )
    if sections.federation.secret is not None and not scheme.is_tied:
        raise InvalidInput(
            f"{name}: [federation] secret is for schemes that have one, got scheme = "
            f"{sections.scheme}"
        )


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
    _check_quorum(sections, name)
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


def _check_quorum(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if no round can have as many replies as it needs."""
    section = sections.federation
    if section.min_replies is None:
        return
    most = max(section.participation) if section.log is None else section.clients
    if section.min_replies > most:
        raise InvalidInput(
            f"{name}: [federation] min_replies must be at most {most}, the clients of the best "
            f"oracle state, got {section.min_replies}"
        )


def _check_flower(sections: RunSections, states: OracleStates | None, name: str) -> None:
    participation, mode = sections.federation.participation, sections.engine.mode
    if states is None and not all(after > before for before, after in pairwise(participation)):
        raise InvalidInput(
            f"{name}: [federation] participation must increase from one oracle state to the "
            "next with [engine] kind = flower, because the state is inferred from the number "
            f"of clients present, got {shorten(participation)}"
        )
    if mode != "deployment":
        return
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


def check_problem(sections: RunSections, problem: Problem, name: str) -> None:
    """Raise InvalidInput if a key does not fit the kind of problem."""
    if isinstance(problem, FiniteHorizon):
        if sections.arrivals is not None:
            raise InvalidInput(f"{name}: arrivals needs a [queue], got a [horizon]")
        return
    if sections.updates is not None:
        raise InvalidInput(f"{name}: updates needs a [horizon], got a [queue]")
