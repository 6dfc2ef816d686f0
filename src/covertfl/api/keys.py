"""Keyword arguments of `Run` as the content of a run file: each key in its section."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from covertfl.api.problem import describe_problem, resolve_problem
from covertfl.decision.arguments import read_path
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import LoadedProblem, list_presets
from covertfl.errors import InvalidInput
from covertfl.runs.settings import RunSections

# Sections whose `kind` may be given by the section's name: policy="minority".
KINDS = ("policy", "decoy", "engine")
SECTIONS: dict[str, tuple[str, ...]] = {
    name: tuple(getattr(field.annotation, "model_fields", ()))
    for name, field in RunSections.model_fields.items()
}


def nest_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run file: each key in the section that has it."""
    content: dict[str, Any] = {}
    for key, value in keys.items():
        if key == "problem" and isinstance(value, FiniteHorizon | QueueProblem | LoadedProblem):
            loaded = resolve_problem(value)
            content |= describe_problem(loaded.problem)
            content |= {} if loaded.states is None else {"states": loaded.states.to_dict()}
        elif key in RunSections.model_fields:
            plain = _plain(value)
            section = {"kind": plain} if key in KINDS and isinstance(plain, str) else plain
            content[key] = _merge(content.get(key), section, key)
        else:
            name = "preset" if key == "problem" and value in list_presets() else key
            place = _find_section(name)
            content[place] = _merge(content.get(place), {name: _plain(value)}, place)
    return content


def _merge(before: Any, section: Any, name: str) -> Any:
    if not isinstance(before, dict) or not isinstance(section, dict):
        return dict(section) if isinstance(section, dict) else section
    twice = sorted(set(before) & set(section))
    if twice:
        raise InvalidInput(f"Run: [{name}] {twice[0]} must be given once, got it twice")
    return before | section


def _find_section(key: str) -> str:
    places = [name for name, known in SECTIONS.items() if key in known]
    if len(places) == 1:
        return places[0]
    if places:
        ways = " or ".join(f"{name}={{{key!r}: ...}}" for name in places)
        raise InvalidInput(f"Run: {key} is a key of several sections; give it as {ways}")
    known = [*RunSections.model_fields, *(name for names in SECTIONS.values() for name in names)]
    near = difflib.get_close_matches(key, known, n=1)
    hint = (
        f"; did you mean {near[0]}?" if near else f"; allowed are {', '.join(sorted(set(known)))}"
    )
    raise InvalidInput(f"Run: unknown key {key}{hint}")


def _plain(value: Any) -> Any:
    """Return what a run file could hold: paths as text, tuples and arrays as lists."""
    match value:
        case os.PathLike():
            return str(read_path(value, "a path"))
        case np.ndarray() | np.generic():
            return value.tolist()
        case Mapping():
            return {key: _plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_plain(entry) for entry in value]
    return value
