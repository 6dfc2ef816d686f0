"""Run files: TOML read into `RunSettings`, written back, and compared.

The problem that the policy is solved for comes from the run file's own sections, a problem file or
a preset.  Every mistake is reported with its file and key.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

import covertfl
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.decision.problem_file import (
    LoadedProblem,
    ProblemFile,
    build_problem,
    find_unknown_keys,
    read_preset_text,
)
from covertfl.decision.states import OracleStates
from covertfl.decoys.registry import DECOY_PLUG_INS, REPLICA
from covertfl.decoys.replica import SIZES
from covertfl.errors import InvalidInput
from covertfl.files.text import (
    FORMATS,
    Location,
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
from covertfl.runs.participation import choose_participation
from covertfl.runs.settings import (
    BATCH_SIZES,
    PROBLEM_SECTIONS,
    FederationSection,
    RunSections,
    RunSettings,
    complete_sections,
)
from covertfl.tasks.registry import TASK_PLUG_INS

# Sections that a resumed run may have others of.
MAY_CHANGE = ("engine", "keep", "service", "versions", "format")
# What keys allow that take values of different types.
CHOICES: Mapping[tuple[int | str, ...], str] = {
    ("task",): TASK_PLUG_INS.describe_names(),
    ("keep",): '"all", "hashes" or a number of rounds, at least 1',
    ("data", "split"): '"iid" or { dirichlet = a positive number }',
    ("decoy", "gated"): 'true, false or "matched"',
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
    try:
        sections = RunSections.model_validate(content)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {_describe(error, content)}") from error
    sections = complete_sections(_make_paths_absolute(sections, Path(folder).resolve(), name))
    check_sections(sections, name)
    described, source = _find_problem(sections, name)
    if "horizon" in described:
        own = {"rounds": sections.rounds, "updates": sections.updates}
        known = {key: value for key, value in own.items() if value is not None}
        described = {**described, "horizon": {**described["horizon"], **known}}
    loaded = build_problem(dict(described), source)
    sections = _fill_federation(sections, loaded, name)
    check_problem(sections, loaded.problem, name)
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


def _expand(path: str, name: str) -> Path:
    """Return a path of a run file with ~ expanded."""
    with contextlib.suppress(RuntimeError):  # the home of an unknown user
        if path and "\0" not in path:
            return Path(path).expanduser()
    raise InvalidInput(f"{name}: a path must name a file or folder, got {shorten(path)}")


def _make_paths_absolute(sections: RunSections, folder: Path, name: str) -> RunSections:
    def resolve(path: str | None) -> str | None:
        return None if path is None else str(folder / _expand(path, name))

    policy, data, federation = sections.policy, sections.data, sections.federation
    paths = {"problem": resolve(policy.problem), "path": resolve(policy.path)}
    update: dict[str, Any] = {
        "arrivals": resolve(sections.arrivals),
        "data": data.model_copy(update={"path": resolve(data.path)}),
        "federation": federation.model_copy(
            update={"log": resolve(federation.log), "secret": resolve(federation.secret)}
        ),
        "policy": policy.model_copy(update=paths),
    }
    if sections.service is not None:
        keys = {key: resolve(getattr(sections.service, key)) for key in ("certificate", "key")}
        update["service"] = sections.service.model_copy(update=keys)
    return sections.model_copy(update=update)


def _find_problem(sections: RunSections, name: str) -> tuple[Mapping[str, Any], str]:
    """Return the sections of the problem and the name of their source in messages."""
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
        content = parse_toml(read_text(path, "a problem file"), path)
        build_problem(content, path)  # reports mistakes under the problem file's own name
        return {key: content[key] for key in PROBLEM_SECTIONS if key in content}, path
    preset = "sound/main" if sections.policy.preset is None else sections.policy.preset
    try:
        text = read_preset_text(preset)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [policy] {error}") from error
    return parse_toml(text, preset), f"preset {preset}"


def _describe(error: ValidationError, content: Mapping[str, Any]) -> str:
    """Describe all misspelt keys, or else one mistake; a misspelt key may be the missing one."""
    unknown = [location for location in list_unknown(error) if location[:2] not in CHOICES]
    if unknown:
        given = {key: content[key] for key in PROBLEM_SECTIONS if key in content}
        return describe_unknown_keys([*unknown, *find_unknown_keys(given)], _list_keys)
    return describe_mistake(error, RunSections, CHOICES)


def _list_keys(place: Location) -> list[str]:
    is_problem = bool(place) and place[0] in PROBLEM_SECTIONS
    return list_keys(ProblemFile if is_problem else RunSections, place)


def list_versions() -> dict[str, str]:
    """Return the versions that results may depend on, by package."""
    packages = ("numpy", "torch")
    return {"covertfl": covertfl.__version__} | {name: metadata.version(name) for name in packages}


def describe_run(settings: RunSettings, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a run file that describes the same run without other files."""
    resolved = settings.sections.model_copy(update={"rounds": settings.rounds})
    sections = resolved.model_dump(exclude_none=True, exclude=set(PROBLEM_SECTIONS))
    for key in ("preset", "problem"):
        sections["policy"].pop(key, None)
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
    _check_policy(sections, name)
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
    DECOY_PLUG_INS.check(sections.decoy.kind, f"{name}: [decoy] kind")
    if sections.federation.mark and sections.engine.kind != "simulated":
        raise InvalidInput(f"{name}: [federation] mark needs [engine] kind = simulated")
    if sections.engine.round_seconds is not None and sections.engine.kind == "simulated":
        raise InvalidInput(
            f"{name}: [engine] round_seconds needs kind = flower, got kind = simulated, whose "
            "rounds take no time that anybody could measure"
        )
    check_exchangeable(sections, name)


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


def check_problem(sections: RunSections, problem: Problem, name: str) -> None:
    """Raise InvalidInput if a key does not fit the kind of problem."""
    if isinstance(problem, FiniteHorizon):
        if sections.arrivals is not None:
            raise InvalidInput(f"{name}: arrivals needs a [queue], got a [horizon]")
        return
    if sections.updates is not None:
        raise InvalidInput(f"{name}: updates needs a [horizon], got a [queue]")
    if sections.policy.kind in ("random", "minority"):
        raise InvalidInput(
            f"{name}: [policy] kind = {sections.policy.kind} needs a problem with [horizon], "
            "got [queue]"
        )


def check_exchangeable(sections: RunSections, name: str) -> None:
    """Raise InvalidInput if exchangeable trajectories and replicas are not together, and alone."""
    policy, decoy = sections.policy, sections.decoy
    if policy.kind != "exchangeable":
        _refuse_exchangeable_keys(sections, name)
        return
    if policy.trajectories not in SIZES:
        allowed = ", ".join(map(str, SIZES))
        raise InvalidInput(
            f"{name}: [policy] trajectories must be one of {allowed}, got {policy.trajectories}"
        )
    if decoy.kind != REPLICA:
        raise InvalidInput(
            f"{name}: [decoy] kind must be {REPLICA} with [policy] kind = exchangeable, "
            f"got {decoy.kind}"
        )
    if decoy.gated is False:
        raise InvalidInput(
            f"{name}: [decoy] gated = false cannot be used with [policy] kind = exchangeable: a "
            "decoy that moves when its query fails is told apart"
        )


def _refuse_exchangeable_keys(sections: RunSections, name: str) -> None:
    """Raise InvalidInput for keys that only exchangeable runs have."""
    kind = sections.policy.kind
    given = {
        "[policy] trajectories": sections.policy.trajectories,
        "[decoy] pivot": sections.decoy.pivot,
        "[federation] secret": sections.federation.secret,
        "[decoy] kind = replica": sections.decoy.kind == REPLICA or None,
    }
    for key, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"{name}: {key} needs [policy] kind = exchangeable, got kind = {kind}"
            )
