"""Wrong arguments of `CovertStrategy` are refused in a sentence, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.serverapp.strategy import FedAvg

from covertfl.api.run import Run
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.run_folder import find_run_settings
from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.errors import InvalidInput
from tests.support.flower_runs import NODES, RUN, make_app, make_first, make_task

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"make_strategy": FedAvg()}, "make_strategy must be None or a function that makes a strategy"),
    ({"make_strategy": dict}, "make_strategy must return a strategy of .*, got dict"),
    ({"run": 3}, "run must be a run file that exists, its content, a covertfl.Run .*, got 3"),
    ({"run": "nope.toml"}, "run must be a run file that exists, .*, got 'nope.toml'"),
    ({"run": Path("nope.toml")}, "run must be a run file that exists, .*, got 'nope.toml'"),
    ({"run": {**RUN, "federation": [1]}}, r"run: federation must be a section, got \[1\]"),
    ({"run": {**RUN, "engine": "flower"}}, "run: engine must be a section, got 'flower'"),
    ({"run": {**RUN, "nonsense": 1}}, "unknown key nonsense"),
    ({"out": None}, "out must be the path of a folder, got None"),
    ({"out": ""}, "out must be the path of a folder, got ''"),
    ({"out": "a\0b"}, r"out must be the path of a folder, got 'a\\x00b'"),
    ({"task": "toxicity"}, "task must be None or a task of make_server_task, got 'toxicity'"),
    ({"policy": 0.5}, "policy must be None or an object with the method learn_prob, got 0.5"),
    ({"accepts": 3}, "accepts must be None or a function, got 3"),
    ({"seed": -1}, "seed must be in 0"),
    ({"seed": True}, "seed must be in 0.*got True"),
    ({"seed": "secret"}, "seed must be in 0.*got 'secret'"),
    ({"resume": 1}, "resume must be True or False, got 1"),
    ({"decoy_start": "other"}, "decoy_start must be 'same' or 'fresh', got 'other'"),
    ({"round_settings": 45}, "round_settings must be RoundSettings, got 45"),
]
WRONG_ROUNDS: list[tuple[dict[str, Any], str]] = [
    ({"patience": -1.0}, "patience must be None or a number of seconds, at least 0, got -1.0"),
    ({"patience": float("nan")}, "patience must be .*, at least 0, got nan"),
    ({"most_examples": 0}, "most_examples must be None or a whole number, at least 1, got 0"),
    ({"numbers": {1: 0}}, "numbers must be None or an object with the method assign, got .*dict"),
]
WRONG_START: list[tuple[dict[str, Any], str]] = [
    ({"grid": None}, "grid must be a Grid of Flower, got None"),
    ({"initial_arrays": [1.0]}, "initial_arrays must be None or an ArrayRecord, got .*list"),
    ({"num_rounds": 0}, "num_rounds must be None or a whole number, at least 1, got 0"),
    ({"timeout": 0}, "timeout must be a positive number of seconds, got 0"),
    ({"timeout": float("nan")}, "timeout must be a positive number of seconds, got nan"),
    ({"train_config": {"lr": None}}, "train_config must be None or a ConfigRecord, got .*dict"),
    ({"evaluate_fn": 1}, "evaluate_fn must be None or a function, got 1"),
]


def start(out: Path, given: dict[str, Any], started: dict[str, Any]) -> None:
    make_strategy = given.pop("make_strategy", FedAvg)
    strategy = CovertStrategy(
        make_strategy, **{"run": RUN, "out": out / "run", "task": make_task(), **given}
    )
    grid = InProcessGrid(make_app(), NODES)
    strategy.start(**{"grid": grid, "initial_arrays": make_first(), "num_rounds": 8, **started})


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_arguments_are_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        start(tmp_path, dict(given), {})


@pytest.mark.parametrize(("given", "message"), WRONG_ROUNDS)
def test_wrong_settings_of_rounds_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        RoundSettings(**given)


@pytest.mark.parametrize(("given", "message"), WRONG_START)
def test_wrong_arguments_of_start_are_refused(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=message):
        start(tmp_path, {}, given)
    assert not list(tmp_path.iterdir())


def test_a_run_made_in_python_is_accepted(tmp_path: Path) -> None:
    """A `covertfl.Run` stands for its settings."""
    run = Run("toxicity", rounds=3, updates=2, clients=6, participation=[2, 4, 6])
    for given in (run, run.settings):
        read = find_run_settings(CovertStrategy(run=given, out=tmp_path / "run", seed="run"), None)
        assert read is run.settings
