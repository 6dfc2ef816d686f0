"""Problem files in TOML, and the problems that ship with covertfl.

A file has the sections [oracle] and [cost] and either [queue] or [horizon].  `covertfl fit` adds
[evidence], the counts behind the oracle, from which the planner derives intervals, and [states],
which says what the oracle states stand for.  Messages name the file, the key, what is allowed and
what came.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from covertfl.arrays import IntArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import (
    Charged,
    FiniteHorizon,
    LearningCost,
    Objective,
    Problem,
    QueueProblem,
    Shape,
)
from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.files.text import (
    Location,
    Section,
    describe_mistake,
    describe_unknown_keys,
    list_keys,
    list_unknown,
    parse_toml,
    read_text,
    shorten,
)

MAX_WHOLE = 1_000_000_000  # a larger number of rounds or updates is a mistake
MAX_HORIZON_STATES = 300_000_000  # fits into the memory of an ordinary machine

READINGS = ("sound", "paper-text", "paper-code")
PRESET_NAMES = ("queue", "main", "tracking-before", "tracking-after", "states7")

# What a key allows that takes values of different types.
CHOICES: Mapping[Location, str] = {("queue", "capacity"): 'a whole number or "auto"'}
Whole = Annotated[int, Field(le=MAX_WHOLE)]
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]


class _OracleSection(Section):
    transition: list[list[float]]
    success: list[float]


class _LearningSection(Section):
    shape: Shape
    scale: float = 1.0
    charged: Charged | None = None
    values: list[float] = Field(default_factory=list)
    by_state: list[float] = Field(default_factory=list)


class _CostSection(Section):
    privacy: list[float]
    learning: _LearningSection


class _QueueSection(Section):
    arrival_prob: float | None = None
    arrival_size: Whole | None = None
    arrival_sizes: dict[str, float] | None = None
    learning_limit: float | None = None
    privacy_limit: float | None = None
    capacity: int | Literal["auto"] = "auto"
    overflow_cost: float | None = None
    full_cost: float = 0.0
    minimise: Objective = "privacy"


class _HorizonSection(Section):
    rounds: Whole
    updates: Whole


class _StatesSection(Section):
    column: str = "clients"
    cuts: list[float]
    participation: list[Count] | None = None
    examples: list[float] | None = None
    min_examples: float | None = None
    gaps: str | None = None


class _EvidenceSection(Section):
    transition_counts: list[list[Count]]
    success_counts: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]


class ProblemFile(Section):
    """A problem file as it is written."""

    oracle: _OracleSection
    cost: _CostSection
    queue: _QueueSection | None = None
    horizon: _HorizonSection | None = None
    evidence: _EvidenceSection | None = None
    states: _StatesSection | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """The counts that an oracle was estimated from (formula F11 of docs/paper_map.md).

    Parameters
    ----------
    transition_counts : (W, W) number of moves from row to column
    success_counts : (W, 2) successes and trials in each state
    """

    transition_counts: IntArray
    success_counts: IntArray


@dataclass(frozen=True, eq=False)
class LoadedProblem:
    """A problem, the name of its file, and the file's sections beside it, None if missing."""

    name: str
    problem: Problem
    evidence: Evidence | None
    states: OracleStates | None = None


def read_problem(path: str | os.PathLike[str]) -> LoadedProblem:
    """Read a problem file.

    Raises
    ------
    InvalidInput
        if the file cannot be read or a key is wrong, naming file, key, what is allowed, what came
    """
    return parse_problem(read_text(path, "a problem file"), os.fspath(path))


def parse_problem(text: str, name: str) -> LoadedProblem:
    """Parse the text of a problem file; messages name the file as `name`."""
    return build_problem(parse_toml(text, name), name)


def build_problem(content: dict[str, Any], name: str) -> LoadedProblem:
    """Check the sections of a problem file and build the problem they describe."""
    try:
        sections = ProblemFile.model_validate(content)
    except ValidationError as error:
        raise InvalidInput(f"{name}: {_describe(error)}") from error
    if (sections.queue is None) == (sections.horizon is None):
        came = "neither" if sections.queue is None else "both"
        raise InvalidInput(f"{name}: exactly one of [queue] and [horizon] is needed, got {came}")
    try:
        oracle = Oracle(
            np.array(_rectangular(sections.oracle.transition, "transition")),
            np.array(sections.oracle.success),
        )
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [oracle] {error}") from error
    try:
        problem = _build(sections, oracle)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {_place(str(error), sections)} {error}") from error
    return LoadedProblem(
        name, problem, _read_evidence(sections, oracle, name), _read_states(sections, oracle, name)
    )


def _rectangular(rows: list[list[float]], key: str) -> list[list[float]]:
    for index, row in enumerate(rows):
        if len(row) != len(rows):
            raise InvalidInput(
                f"{key} row {index} must have {len(rows)} values, as many as there are rows, "
                f"got {len(row)}"
            )
    return rows


def _build(sections: ProblemFile, oracle: Oracle) -> Problem:
    learning = sections.cost.learning
    charged = learning.charged or "always"
    cost = LearningCost(learning.shape, learning.scale, charged, learning.values, learning.by_state)
    privacy = np.array(sections.cost.privacy)
    if sections.horizon is not None:
        if learning.charged == "when-obfuscating":
            raise InvalidInput(
                "learning.charged = when-obfuscating is for queue problems; "
                "a horizon is charged once, at the end"
            )
        _check_size(sections.horizon, oracle.num_states)
        return FiniteHorizon(
            oracle, privacy, cost, sections.horizon.rounds, sections.horizon.updates
        )
    assert sections.queue is not None
    queue = sections.queue
    return QueueProblem(
        oracle,
        privacy,
        cost,
        arrival_prob=queue.arrival_prob,
        arrival_size=queue.arrival_size,
        arrival_sizes=_read_sizes(queue.arrival_sizes),
        limit=_read_limit(queue),
        objective=queue.minimise,
        capacity=None if queue.capacity == "auto" else queue.capacity,
        overflow_cost=queue.overflow_cost,
        full_cost=queue.full_cost,
    )


def _check_size(horizon: _HorizonSection, num_oracle: int) -> None:
    num_states = horizon.rounds * num_oracle * (horizon.updates + 1)
    if num_states > MAX_HORIZON_STATES:
        raise InvalidInput(
            f"rounds and updates must leave at most {MAX_HORIZON_STATES:,} states, "
            f"got {num_states:,} with rounds = {horizon.rounds} and updates = {horizon.updates}"
        )


def _read_sizes(sizes: dict[str, float] | None) -> dict[int, float] | None:
    """Return the sizes, which are keys of a file and so text, as whole numbers."""
    for size in sizes or ():
        if not re.fullmatch("[1-9][0-9]*", size) or int(size) > MAX_WHOLE:
            raise InvalidInput(
                f"a size in arrival_sizes must be a whole number in 1..{MAX_WHOLE}, "
                f"got {shorten(size)}"
            )
    return None if sizes is None else {int(size): prob for size, prob in sizes.items()}


def _read_limit(queue: _QueueSection) -> float:
    wanted, other = "learning_limit", "privacy_limit"
    if queue.minimise == "learning":
        wanted, other = other, wanted
    if getattr(queue, other) is not None:
        raise InvalidInput(f"{other} does not go with minimise = {queue.minimise}: give {wanted}")
    limit: float | None = getattr(queue, wanted)
    if limit is None:
        raise InvalidInput(f"{wanted} is required with minimise = {queue.minimise}")
    return limit


def _place(message: str, sections: ProblemFile) -> str:
    if message.startswith(("privacy[", "privacy must", "learning.")):
        return "[cost]"
    if message.startswith("transition"):
        return "[oracle]"
    return "[queue]" if sections.queue is not None else "[horizon]"


def _read_evidence(sections: ProblemFile, oracle: Oracle, name: str) -> Evidence | None:
    if sections.evidence is None:
        return None
    counts = sections.evidence.transition_counts
    trials = sections.evidence.success_counts
    num = oracle.num_states
    if [len(row) for row in counts] != [num] * num:
        raise InvalidInput(
            f"{name}: [evidence] transition_counts must be {num} rows of {num} counts, "
            f"got {shorten(counts)}"
        )
    if len(trials) != num:
        raise InvalidInput(
            f"{name}: [evidence] success_counts must be {num} pairs of successes and trials, "
            f"got {len(trials)}"
        )
    for state, (successes, tried) in enumerate(trials):
        if successes > tried:
            raise InvalidInput(
                f"{name}: [evidence] success_counts[{state}] must not have more successes than "
                f"trials, got {successes} of {tried}"
            )
    return Evidence(np.array(counts, dtype=np.int64), np.array(trials, dtype=np.int64))


def _read_states(sections: ProblemFile, oracle: Oracle, name: str) -> OracleStates | None:
    if sections.states is None:
        return None
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in sections.states
    }
    try:
        states = OracleStates(**given)
    except InvalidInput as error:
        raise InvalidInput(f"{name}: [states] {error}") from error
    if states.num_states != oracle.num_states:
        raise InvalidInput(
            f"{name}: [states] cuts must be {oracle.num_states - 1} numbers, one less than there "
            f"are oracle states, got {len(states.cuts)}"
        )
    return states


def find_unknown_keys(content: Mapping[str, Any]) -> list[Location]:
    """Return the locations of all unknown keys in sections of a problem file."""
    try:
        ProblemFile.model_validate(dict(content))
    except ValidationError as error:
        return list_unknown(error)
    return []


def _describe(error: ValidationError) -> str:
    """Describe all misspelt keys, or else one mistake; a misspelt key may be the missing one."""
    if unknown := list_unknown(error):
        return describe_unknown_keys(unknown, partial(list_keys, ProblemFile))
    sentence = describe_mistake(error, ProblemFile, CHOICES)
    needed = "; needed are [oracle], [cost], [queue] or [horizon]"
    return sentence + needed * sentence.startswith("section")


def list_presets() -> list[str]:
    """Return the names READING/NAME of the problems that ship with covertfl."""
    return [f"{reading}/{name}" for reading in READINGS for name in PRESET_NAMES]


def read_preset_text(name: str) -> str:
    """Return the text of the file of a preset; raise `InvalidInput` if there is none."""
    if name not in list_presets():
        raise InvalidInput(
            f"preset must be READING/NAME with READING one of {', '.join(READINGS)} and NAME one "
            f"of {', '.join(PRESET_NAMES)}, got {name!r}"
        )
    return (resources.files("covertfl.decision") / "presets" / f"{name}.toml").read_text("utf-8")


def read_preset(name: str) -> LoadedProblem:
    """Return the preset with the name READING/NAME."""
    return parse_problem(read_preset_text(name), f"preset {name}")
