"""The arguments of `CovertStrategy` and of its `start`, checked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from covertfl.decision.policy import Policy
from covertfl.engines.flower.inner_strategies import MakeStrategy
from covertfl.engines.flower.node_numbers import NodeNumbers
from covertfl.errors import InvalidInput
from covertfl.files.text import is_number
from covertfl.runs.round import OpenDesk
from covertfl.runs.settings import RunSettings
from covertfl.runs.train import OnRound, require_torch
from covertfl.seeding import LARGEST_SEED
from covertfl.tasks.task import TrainingTask

# Decides whether a round succeeds, from its number of examples and of valid replies.
Accepts = Callable[[int, int], bool]
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class HasSettings(Protocol):
    """An object with the settings of a run, such as `covertfl.Run`."""

    @property
    def settings(self) -> RunSettings:
        """Return them."""
        ...


RunSource = str | os.PathLike[str] | Mapping[str, Any] | RunSettings | HasSettings

# What an argument must be: a test, and the words for a message.
Rule = tuple[Callable[[Any], bool], str]


def _check(settings: Any) -> None:
    """Raise InvalidInput if a field of the settings breaks its rule."""
    for field in fields(settings):
        is_allowed, allowed = RULES[field.name]
        given = getattr(settings, field.name)
        if not is_allowed(given):
            given = os.fspath(given) if isinstance(given, os.PathLike) else given
            is_plain = isinstance(given, bool | int | float | str | None)
            shown = repr(given) if is_plain else f"an object of type {type(given).__name__}"
            raise InvalidInput(f"{field.name} must be {allowed}, got {shown}")


def _or_none(is_allowed: Callable[[Any], bool], allowed: str) -> Rule:
    return (lambda given: given is None or is_allowed(given), f"None or {allowed}")


def _is_whole(value: object, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_config(value: Any) -> bool:
    try:
        ConfigRecord(dict(value or {}))
    except (TypeError, ValueError):
        return False
    return True


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and str(value) != "" and "\0" not in str(value)


def _is_run(value: object) -> bool:
    if isinstance(value, str | os.PathLike):
        return os.path.isfile(value)  # noqa: PTH113 (Path.is_file raises for a name that is too long)
    return isinstance(value, Mapping) or isinstance(getattr(value, "settings", value), RunSettings)


def _has(value: object, method: str) -> bool:
    return callable(getattr(value, method, None))


FUNCTION = _or_none(callable, "a function")
SWITCH: Rule = (lambda given: isinstance(given, bool), "True or False")
COUNT = _or_none(lambda given: _is_whole(given, 1), "a whole number, at least 1")
CONFIG: Rule = (_is_config, "None or a ConfigRecord")
RULES: Mapping[str, Rule] = {
    "make_strategy": _or_none(callable, "a function that makes a strategy"),
    "run": (_is_run, "a run file that exists, its content, a covertfl.Run or its settings"),
    "out": (_is_path, "the path of a folder"),
    "task": _or_none(lambda given: isinstance(given, TrainingTask), "a task of make_server_task"),
    "policy": _or_none(
        lambda given: _has(given, "learn_prob"), "an object with the method learn_prob"
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
    "round_settings": (lambda given: isinstance(given, RoundSettings | None), "RoundSettings"),
    "patience": _or_none(
        lambda given: is_number(given) and given >= 0.0, "a number of seconds, at least 0"
    ),
    "most_examples": COUNT,
    "numbers": _or_none(lambda given: _has(given, "assign"), "an object with the method assign"),
    "requests": FUNCTION,
    "grid": (lambda given: isinstance(given, Grid), "a Grid of Flower"),
    "initial_arrays": _or_none(lambda given: isinstance(given, ArrayRecord), "an ArrayRecord"),
    "num_rounds": COUNT,
    "timeout": (lambda given: is_number(given) and given > 0.0, "a positive number of seconds"),
    "train_config": CONFIG,
    "evaluate_config": CONFIG,
    "evaluate_fn": FUNCTION,
}


def find_app_folder() -> Path:
    """Return the folder of the Flower app that is running, the current folder if there is none.

    Flower puts it on Python's path.  The current folder of an app under `flwr run` is where some
    earlier command started the SuperLink.
    """
    for entry in sys.path:
        file = Path(entry) / "pyproject.toml"
        try:
            if entry and "[tool.flwr.app" in file.read_text(encoding="utf-8"):
                return Path(entry)
        except (OSError, UnicodeDecodeError):
            continue
    return Path()


@dataclass(frozen=True, eq=False)
class RoundSettings:
    """Settings of rounds that few servers need to change.

    Parameters
    ----------
    patience : seconds to wait for enough nodes before a round, None to wait without limit
    most_examples : largest number of examples that is accepted in a client's reply; None for the
        most that a client of the task has, or twice as many where that is only an estimate.  There
        a client is also refused if it claims more than twice the median of its earlier counts
    numbers : client numbers of nodes, None to number them in the order in which they are seen
    requests : opens the desk of a service, whose requests are the arrivals of the run; None for
        arrivals as the run file describes them
    """

    patience: float | None = None
    most_examples: int | None = None
    numbers: NodeNumbers | None = None
    requests: OpenDesk | None = None

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, eq=False, repr=False)  # the seed must not show in a log
class StrategySettings:
    """The arguments of `CovertStrategy`, which documents them."""

    make_strategy: MakeStrategy | None = None
    _: KW_ONLY
    run: RunSource
    out: str | os.PathLike[str]
    task: TrainingTask | None = None
    policy: Policy | None = None
    accepts: Accepts | None = None
    seed: int | Literal["run"] | None = None
    resume: bool = False
    force: bool = False
    decoy_start: Literal["same", "fresh"] = "same"
    evaluate: bool = False
    on_round: OnRound | None = None
    round_settings: RoundSettings | None = None

    def __post_init__(self) -> None:
        require_torch()
        for name in ("run", "out"):
            given = getattr(self, name)
            if _is_path(given):
                object.__setattr__(self, name, find_app_folder() / given)
        _check(self)

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.out)

    @property
    def rounds(self) -> RoundSettings:
        """Settings of rounds, the usual ones if none are given."""
        return self.round_settings or RoundSettings()


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
        _check(self)
