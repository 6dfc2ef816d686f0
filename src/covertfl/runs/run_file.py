"""Run files: TOML in, the settings of a training run out; every mistake named by file and key.

Every key but `task` is optional; the defaults are the paper's main experiment.  The problem that
the policy is solved for comes from the run file's own sections, a problem file or a preset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.problem_file import build_problem, read_preset_text, read_problem
from covertfl.errors import InvalidInput
from covertfl.files.toml import parse_toml, read_text, shorten, split_location

if TYPE_CHECKING:
    from covertfl.tasks.task import TrainingTask

PROBLEM_SECTIONS = ("oracle", "cost", "queue", "horizon")
LARGEST_SEED = 2**63 - 1
# Rounds of a queue's run where the file does not say.
QUEUE_ROUNDS = 200
# Each decoy holds a model: a slip of the pen must not fill the memory.
MOST_DECOYS = 1000

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
TaskName = Literal["toxicity", "embeddings", "digits", "mnist", "function", "own"]
PolicyKind = Literal[
    "optimal",
    "spga",
    "minority",
    "greedy",
    "random",
    "always-learn",
    "always-obfuscate",
    "file",
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DirichletSplit(_Section):
    """`split = { dirichlet = 0.3 }`."""

    dirichlet: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class DataSection(_Section):
    """Which data, and who holds it."""

    split: Literal["iid"] | DirichletSplit = "iid"
    public_size: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    public_positive_share: Share = 0.1
    public_classes: Count | None = None
    public_class_share: Share | None = None
    path: str | None = None
    model: str | None = None


class OptimizerSection(_Section):
    """The clients' optimiser; with fedsgd the server's."""

    name: Literal["sgd", "adam", "adamw"] = "adam"
    lr: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1e-3
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    weight_decay: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0


class FederationSection(_Section):
    """Who takes part, and what a round is worth."""

    clients: Count = 20
    participation: list[Count] = Field(default_factory=lambda: [5, 10, 20], min_length=1)
    log: str | None = None
    acceptance: Literal["data", "model"] = "data"
    min_share: Share = 0.25
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    batch_size: Count = 40


class PolicySection(_Section):
    """When to learn."""

    kind: PolicyKind = "optimal"
    preset: str | None = None
    problem: str | None = None
    path: str | None = None
    refresh: Count | None = None


class DecoySection(_Section):
    """What is sent instead."""

    kind: str = "public"
    count: Annotated[int, Field(ge=1, le=MOST_DECOYS)] = 1
    gated: bool = True


class EngineSection(_Section):
    """Who answers."""

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
    data: DataSection = Field(default_factory=DataSection)
    federation: FederationSection = Field(default_factory=FederationSection)
    policy: PolicySection = Field(default_factory=PolicySection)
    decoy: DecoySection = Field(default_factory=DecoySection)
    engine: EngineSection = Field(default_factory=EngineSection)
    oracle: dict[str, Any] | None = None
    cost: dict[str, Any] | None = None
    queue: dict[str, Any] | None = None
    horizon: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class RunSettings:
    """The settings of a run, with nothing left to look up.

    Parameters
    ----------
    name : the file, as messages name it
    sections : as written, paths made absolute
    problem : that the policy is solved for, before success chances are measured
    content : of the problem, as its file has it
    own_task : made in Python, with task = "own"
    secret : seed of all that clients must not be able to work out, where they know `seed`; None
        where nobody else does
    """

    name: str
    sections: RunSections
    problem: Problem
    content: Mapping[str, Any]
    own_task: TrainingTask | None = None
    secret: int | None = None

    @property
    def seed(self) -> int:
        """Seed of the data and of what happens to the clients."""
        return self.sections.seed

    @property
    def hidden_seed(self) -> int:
        """Seed of the learner's own draws: actions, decoys, first weights, the search."""
        return self.sections.seed if self.secret is None else self.secret

    @property
    def rounds(self) -> int:
        """Rounds of the run."""
        if isinstance(self.problem, FiniteHorizon):
            return self.problem.rounds
        return self.sections.rounds or QUEUE_ROUNDS

    def with_seed(self, seed: int) -> RunSettings:
        """The same run with another seed."""
        sections = self.sections.model_copy(update={"seed": seed})
        return replace(self, sections=sections)

    def with_task(self, task: TrainingTask) -> RunSettings:
        """The same run with a task made in Python; the run must say task = "own"."""
        if self.sections.task != "own":
            raise InvalidInput(f'{self.name}: task must be "own", got {self.sections.task!r}')
        if len(task.clients) != self.sections.federation.clients:
            raise InvalidInput(
                f"{self.name}: [federation] clients must be {len(task.clients)}, as the task has, "
                f"got {self.sections.federation.clients}"
            )
        return replace(self, own_task=task)

    def with_condition(self, policy: PolicyKind, decoy: str) -> RunSettings:
        """The same run with another policy and decoy."""
        sections = self.sections
        update = {
            "policy": sections.policy.model_copy(update={"kind": policy, "refresh": None}),
            "decoy": sections.decoy.model_copy(update={"kind": decoy}),
        }
        return replace(self, sections=sections.model_copy(update=update))

    def with_device(self, device: str) -> RunSettings:
        """The same run on another device."""
        engine = self.sections.engine.model_copy(update={"device": device})
        return replace(self, sections=self.sections.model_copy(update={"engine": engine}))


def read_run(path: str | os.PathLike[str]) -> RunSettings:
    """Read a run file.

    Raises
    ------
    InvalidInput
        in one sentence that names file, key, what is allowed and what came
    """
    name = os.fspath(path)
    content = parse_toml(read_text(path, "a run file"), name)
    return build_run(content, name, folder=Path(path).parent)


def build_run(content: Mapping[str, Any], name: str, *, folder: Path) -> RunSettings:
    """Check the content of a run file; paths in it are relative to its folder."""
    content = {key: value for key, value in content.items() if key != "versions"}
    try:
        sections = RunSections.model_validate(content)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {_describe(error)}") from error
    sections = _anchor_paths(sections, folder.resolve(), name)
    _check_together(sections, name)
    described, source = _find_problem(sections, name)
    described = _override(described, sections)
    problem = build_problem(dict(described), source).problem
    _check_problem(sections, problem, name)
    return RunSettings(name, sections, problem, described)


def _expand(path: str, name: str) -> Path:
    """A path of a run file; the system takes none with a NUL, and knows only its own users."""
    try:
        if path and "\0" not in path:
            return Path(path).expanduser()
    except RuntimeError:
        pass
    raise InvalidInput(f"{name}: a path must name a file or folder, got {shorten(path)}")


def _anchor_paths(sections: RunSections, folder: Path, name: str) -> RunSections:
    def anchor(path: str | None) -> str | None:
        return None if path is None else str(folder / _expand(path, name))

    policy, data, federation = sections.policy, sections.data, sections.federation
    return sections.model_copy(
        update={
            "arrivals": anchor(sections.arrivals),
            "data": data.model_copy(update={"path": anchor(data.path)}),
            "federation": federation.model_copy(update={"log": anchor(federation.log)}),
            "policy": policy.model_copy(
                update={"problem": anchor(policy.problem), "path": anchor(policy.path)}
            ),
        }
    )


def _check_together(sections: RunSections, name: str) -> None:
    """Keys that need or exclude each other."""
    federation, policy, engine = sections.federation, sections.policy, sections.engine
    if engine.kind == "flower" and sections.task == "function":
        raise InvalidInput(f"{name}: [engine] kind = flower needs clients, got task = function")
    rises = all(b > a for a, b in pairwise(federation.participation))
    if engine.kind == "flower" and not rises:
        raise InvalidInput(
            f"{name}: [federation] participation must rise from one oracle state to the next with "
            "[engine] kind = flower, where a state is known by the clients that are there, "
            f"got {shorten(federation.participation)}"
        )
    if federation.participation != sorted(federation.participation):
        raise InvalidInput(
            f"{name}: [federation] participation must not fall from one oracle state to the next, "
            f"got {shorten(federation.participation)}"
        )
    if federation.participation[-1] > federation.clients:
        raise InvalidInput(
            f"{name}: [federation] participation must be at most clients = {federation.clients}, "
            f"got {federation.participation[-1]}"
        )
    if policy.kind == "file" and policy.path is None:
        raise InvalidInput(f"{name}: [policy] kind = file needs path, a policy file")
    if policy.kind != "file" and policy.path is not None:
        raise InvalidInput(f"{name}: [policy] path goes with kind = file, got kind = {policy.kind}")
    if policy.kind != "spga" and policy.refresh is not None:
        raise InvalidInput(
            f"{name}: [policy] refresh goes with kind = spga, got kind = {policy.kind}"
        )
    if federation.optimizer.momentum > 0.0 and federation.optimizer.name != "sgd":
        raise InvalidInput(
            f"{name}: [federation] optimizer.momentum goes with name = sgd, "
            f"got name = {federation.optimizer.name}"
        )
    if sections.task == "embeddings" and sections.data.path is None:
        raise InvalidInput(f"{name}: [data] path is needed with task = embeddings, an .npz file")


def _check_problem(sections: RunSections, problem: Problem, name: str) -> None:
    """Keys that go with a horizon only, or with a queue only."""
    if isinstance(problem, FiniteHorizon):
        if sections.arrivals is not None:
            raise InvalidInput(f"{name}: arrivals goes with a [queue], got a [horizon]")
        return
    if sections.updates is not None:
        raise InvalidInput(f"{name}: updates goes with a [horizon], got a [queue]")
    if sections.policy.kind in ("random", "minority"):
        raise InvalidInput(
            f"{name}: [policy] kind = {sections.policy.kind} needs a problem with [horizon], "
            "got [queue]"
        )


def _find_problem(sections: RunSections, name: str) -> tuple[Mapping[str, Any], str]:
    """The problem's content and the name it has in messages."""
    own = {key: getattr(sections, key) for key in PROBLEM_SECTIONS}
    given = {key: value for key, value in own.items() if value is not None}
    ways = [bool(given), sections.policy.problem is not None, sections.policy.preset is not None]
    if sum(ways) > 1:
        raise InvalidInput(
            f"{name}: the problem must come from one place: [policy] preset, [policy] problem or "
            "sections of this file, got more than one"
        )
    if given:
        return given, name
    if sections.policy.problem is not None:
        path = sections.policy.problem
        read_problem(path)  # its own messages name the file best
        content = parse_toml(read_text(path, "a problem file"), path)
        return {key: content[key] for key in PROBLEM_SECTIONS if key in content}, path
    preset = sections.policy.preset or "sound/main"
    try:
        text = read_preset_text(preset)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [policy] {error}") from error
    return parse_toml(text, preset), f"preset {preset}"


def _override(content: Mapping[str, Any], sections: RunSections) -> Mapping[str, Any]:
    """The problem with the run's own rounds and updates, where it is a horizon."""
    if "horizon" not in content:
        return content
    given = {"rounds": sections.rounds, "updates": sections.updates}
    known = {key: value for key, value in given.items() if value is not None}
    return {**content, "horizon": {**content["horizon"], **known}}


# --- messages ---------------------------------------------------------------------------------


def _describe(error: ValidationError) -> str:
    """The most telling mistake in one sentence: a misspelt key before the one it stands for."""
    mistakes = error.errors()
    mistake = min(mistakes, key=lambda entry: entry["type"] != "extra_forbidden")
    location = mistake["loc"]
    if location[:2] == ("data", "split"):
        value = shorten(mistake["input"])
        return f'[data] split must be "iid" or {{ dirichlet = a positive number }}, got {value}'
    section, key = split_location(location)
    if mistake["type"] == "extra_forbidden":
        allowed = ", ".join(_find_model(location[:-1]).model_fields)
        return f"{section}unknown key {key}; allowed are {allowed}"
    if mistake["type"] == "missing":
        return f"{section}key {key} is missing; {_choices(TaskName)}"
    return f"{section}{key} must be {_allowed(mistake, location)}, got {shorten(mistake['input'])}"


def _find_model(location: tuple[int | str, ...]) -> type[BaseModel]:
    model: type[BaseModel] = RunSections
    for part in location:
        found = model.model_fields[str(part)].annotation
        if isinstance(found, type) and issubclass(found, BaseModel):
            model = found
    return model


def _choices(names: Any) -> str:
    return "one of " + ", ".join(get_args(names))


def _allowed(mistake: Any, location: tuple[int | str, ...]) -> str:
    field = _find_model(location[:-1]).model_fields.get(str(location[-1]))
    if field is not None and get_origin(field.annotation) is Literal:
        return _choices(field.annotation)
    context = mistake.get("ctx", {})
    kinds = {
        "float_type": "a number",
        "int_type": "a whole number",
        "string_type": "text",
        "bool_type": "true or false",
        "list_type": "a list",
        "dict_type": "a table of keys",
        "model_type": "a table of keys",
        "greater_than": f"more than {context.get('gt')}",
        "less_than": f"less than {context.get('lt')}",
        "greater_than_equal": f"at least {context.get('ge')}",
        "less_than_equal": f"at most {context.get('le')}",
        "finite_number": "a finite number",
        "too_short": "a list with at least one value",
    }
    return kinds.get(mistake["type"], str(mistake["msg"]))


# --- writing ----------------------------------------------------------------------------------


def format_run(settings: RunSettings, versions: Mapping[str, str]) -> str:
    """The settings of a run as a run file that gives the same run again."""
    resolved = settings.sections.model_copy(update={"rounds": settings.rounds})
    sections = resolved.model_dump(exclude_none=True, exclude=set(PROBLEM_SECTIONS))
    sections["policy"] = {
        key: value for key, value in sections["policy"].items() if key not in ("preset", "problem")
    }
    return format_toml({**sections, **settings.content, "versions": dict(versions)})


def format_toml(content: Mapping[str, Any]) -> str:
    """Keys and tables of keys as TOML."""
    lines = [f"{key} = {_format(value)}" for key, value in _scalars(content)]
    for name, table in _tables(content).items():
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_format(value)}" for key, value in table.items()]
    return "\n".join(lines) + "\n"


def _scalars(content: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in content.items() if not isinstance(value, dict)]


def _tables(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if isinstance(value, dict)}


def _format(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{key} = {_format(entry)}" for key, entry in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format, value)) + "]"
    # TOML wants every control character escaped; JSON leaves this one as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def find_change(before: str, after: str, name: str) -> str | None:
    """The first key in which two runs that `format_run` wrote differ, None where one goes on.

    A run that is resumed may have other rounds, another engine and other versions than before.
    `name` stands for the first in messages.
    """
    old, new = _flatten(parse_toml(before, name)), _flatten(parse_toml(after, name))
    for location in [*new, *old]:
        if old.get(location) != new.get(location) and not _may_change(location):
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


def _may_change(location: tuple[str, ...]) -> bool:
    return location[-1] == "rounds" or location[0] in ("engine", "versions")
