"""The arguments of `CovertStrategy` and of its `start`, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from covertfl.decision.policy import Policy
from covertfl.decoys.decoy import Decoy
from covertfl.engines.flower.inner_strategies import MakeStrategy
from covertfl.engines.flower.node_numbers import NodeNumbers
from covertfl.engines.flower.responder import Accepts
from covertfl.errors import InvalidInput
from covertfl.runs.progress import OnRound
from covertfl.runs.settings import LARGEST_SEED, RunSettings
from covertfl.tasks.task import TrainingTask

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
RunSource = str | os.PathLike[str] | Mapping[str, Any] | RunSettings

# What an argument must be: a test, and the words for a message.
Rule = tuple[Callable[[Any], bool], str]


def _check(settings: object, rules: Mapping[str, Rule]) -> None:
    """Raise InvalidInput if an argument is not allowed."""
    for name, (is_allowed, allowed) in rules.items():
        given = getattr(settings, name)
        if not is_allowed(given):
            is_plain = isinstance(given, bool | int | float | str | None)
            shown = repr(given) if is_plain else f"an object of type {type(given).__name__}"
            raise InvalidInput(f"{name} must be {allowed}, got {shown}")


def _is_whole(value: object, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_number(value: object, least: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= least


def _is_config(value: Any) -> bool:
    try:
        ConfigRecord(dict(value or {}))
    except (TypeError, ValueError):
        return False
    return True


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)


FUNCTION: Rule = (lambda given: given is None or callable(given), "None or a function")
SWITCH: Rule = (lambda given: isinstance(given, bool), "True or False")
CONFIG: Rule = (_is_config, "None or a ConfigRecord")


@dataclass(frozen=True, eq=False)
class RoundSettings:
    """Settings of rounds that few servers need to change.

    Parameters
    ----------
    patience : seconds to wait for enough nodes before a round, None to wait without limit
    most_examples : largest number of examples that is accepted in a client's reply; None for the
        most that a client of the task has, or ten times as many where that is only an estimate
    numbers : client numbers of nodes, None to number them in the order in which they are seen
    records : whether queries are recorded; without records the run cannot be audited
    """

    patience: float | None = None
    most_examples: int | None = None
    numbers: NodeNumbers | None = None
    records: bool = True

    def __post_init__(self) -> None:
        _check(self, ROUND_RULES)


ROUND_RULES: Mapping[str, Rule] = {
    "patience": (
        lambda given: given is None or _is_number(given, 0.0),
        "None or a number of seconds, at least 0",
    ),
    "most_examples": (
        lambda given: given is None or _is_whole(given, 1),
        "None or a whole number, at least 1",
    ),
    "numbers": (
        lambda given: given is None or _has(given, "assign"),
        "None or an object with the method assign",
    ),
    "records": SWITCH,
}


@dataclass(frozen=True, eq=False)
class StrategySettings:
    """The arguments of `CovertStrategy`, which documents them."""

    make_strategy: MakeStrategy | None
    run: RunSource
    out: str | os.PathLike[str]
    task: TrainingTask | None
    policy: Policy | None
    decoy: Decoy | None
    accepts: Accepts | None
    seed: int | Literal["run"] | None
    resume: bool
    force: bool
    decoy_start: Literal["same", "fresh"]
    evaluate: bool
    on_round: OnRound | None
    round_settings: RoundSettings

    def __post_init__(self) -> None:
        _check(self, STRATEGY_RULES)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.out)


STRATEGY_RULES: Mapping[str, Rule] = {
    "make_strategy": (FUNCTION[0], "None or a function that makes a strategy"),
    "run": (
        lambda given: isinstance(given, str | os.PathLike | Mapping | RunSettings),
        "a run file, its content or its settings",
    ),
    "out": (lambda given: isinstance(given, str | os.PathLike), "the path of a folder"),
    "task": (
        lambda given: isinstance(given, TrainingTask | None),
        "None or a task of make_server_task",
    ),
    "policy": (
        lambda given: given is None or _has(given, "learn_prob"),
        "None or an object with the method learn_prob",
    ),
    "decoy": (
        lambda given: given is None or _has(given, "plan", "move"),
        "None or an object with the methods plan and move",
    ),
    "accepts": FUNCTION,
    "seed": (
        lambda given: given is None or given == "run" or _is_whole(given, 0, LARGEST_SEED),
        f"in 0..{LARGEST_SEED}, None or 'run'",
    ),
    "resume": SWITCH,
    "force": SWITCH,
    "decoy_start": (lambda given: given in ("same", "fresh"), "'same' or 'fresh'"),
    "evaluate": SWITCH,
    "on_round": FUNCTION,
    "round_settings": (lambda given: isinstance(given, RoundSettings), "RoundSettings"),
}


@dataclass(frozen=True, eq=False)
class StartSettings:
    """The arguments of `CovertStrategy.start`, which documents them."""

    grid: Grid
    initial_arrays: ArrayRecord | None
    num_rounds: int | None
    timeout: float
    train_config: ConfigRecord | None
    evaluate_config: ConfigRecord | None
    evaluate_fn: EvaluateFunction | None

    def __post_init__(self) -> None:
        _check(self, START_RULES)


START_RULES: Mapping[str, Rule] = {
    "grid": (lambda given: isinstance(given, Grid), "a Grid of Flower"),
    "initial_arrays": (
        lambda given: isinstance(given, ArrayRecord | None),
        "None or an ArrayRecord",
    ),
    "num_rounds": (
        lambda given: given is None or _is_whole(given, 1),
        "None or a whole number, at least 1",
    ),
    "timeout": (
        lambda given: _is_number(given, 0.0) and given > 0.0,
        "a positive number of seconds",
    ),
    "train_config": CONFIG,
    "evaluate_config": CONFIG,
    "evaluate_fn": FUNCTION,
}
