"""Wrong arguments of `CovertStrategy` are refused in a sentence, before anything is sent."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Strategy,
)
from flwr.supercore.privacy_accounting import SamplingMethod
from torch import nn

from covertfl.api.run import Run
from covertfl.decision.policy import GreedyPolicy
from covertfl.errors import InvalidInput
from covertfl.flower import CovertStrategy, Examples, InProcessGrid, RoundSettings, make_server_task
from covertfl.runs.settings import format_run
from tests.support.flower_runs import NODES, RUN, make_app, make_first, make_task, stop_after


def account(inner: Strategy) -> Strategy:
    config = SimpleNamespace(sampling_method=SamplingMethod.NO_AMPLIFICATION)
    accountant: Any = SimpleNamespace(config=config)
    return DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 0.5, NODES, accountant=accountant)


def clip(inner: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner, 1.0, 0.5, NODES)


SHARED_OPTIMIZER, SHARED = FedAdam(), FedAvg()


class Mute(FedAvg):
    """Cannot say what clients are sent."""

    def configure_train(self, *given: Any) -> Any:
        raise RuntimeError("mute")


def make_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def normalised_first() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.Linear(3, 1))


def make_tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 1))
    module[1].weight = module[0].weight
    return module


def own(make_model: Any) -> Any:
    """Return a task with another model."""
    data = Examples(np.ones((31, 3), np.float32), np.zeros(31, np.float32))
    return make_server_task(make_model, "binary", data, data, clients=NODES, examples=40)


def change(**changes: Any) -> dict[str, Any]:
    """Return the run's content with other sections."""
    return {**RUN, **changes}


SGD = change(federation={**RUN["federation"], "algorithm": "fedsgd"})
REPLICAS = change(scheme="exchangeable")


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
    ({"make_strategy": lambda: SHARED_OPTIMIZER}, "make a new strategy each time"),
    ({"make_strategy": lambda: clip(SHARED)}, "make a new strategy each time"),
    ({"make_strategy": Mute}, "cannot configure round 1: RuntimeError: mute"),
    ({"make_strategy": lambda: SecAggPlusWorkflow(3, 2)}, "secure aggregation cannot be made"),
    (
        {
            "make_strategy": lambda: DifferentialPrivacyServerSideAdaptiveClipping(
                FedAvg(), 0.0, NODES
            )
        },
        "ServerSideAdaptiveClipping cannot be made covert, because it counts",
    ),
    (
        {
            "make_strategy": lambda: DifferentialPrivacyClientSideAdaptiveClipping(
                FedAvg(), 0.0, NODES
            )
        },
        "ClientSideAdaptiveClipping cannot be made covert, because it counts",
    ),
    ({"make_strategy": lambda: account(FedAvg())}, "must have no accountant"),
    (
        {"make_strategy": lambda: clip(FedAvg()), "run": change(decoy={"kind": "mirrored"})},
        "needs a scheme that does not use single replies",
    ),
    (
        {"make_strategy": lambda: clip(FedAvg()), "task": own(make_normed), "first": None},
        "needs a model without running statistics",
    ),
    ({"run": SGD}, "algorithm must be fedavg where a strategy is wrapped"),
    (
        {"make_strategy": None, "run": SGD, "task": own(make_normed), "first": None},
        "algorithm must be fedavg for a model with buffers",
    ),
    ({"task": own(make_tied), "first": None}, r"1\.weight is another one's second name"),
    ({"first": ArrayRecord([np.zeros(3)])}, "must hold the parameters"),
    ({"run": REPLICAS}, "draws the first weights in secret"),
    ({"run": REPLICAS, "first": None, "policy": GreedyPolicy()}, "policy must be None"),
    (
        {"run": REPLICAS, "first": None, "decoy_start": "fresh"},
        "decoy_start must be 'same', got 'fresh'",
    ),
    (
        {"run": REPLICAS, "first": None, "task": own(normalised_first)},
        r"nothing but 1\.weight may act on the inputs' signs",
    ),
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
    make_strategy, first = given.pop("make_strategy", FedAvg), given.pop("first", make_first())
    strategy = CovertStrategy(
        make_strategy, **{"run": RUN, "out": out / "run", "task": make_task(), **given}
    )
    grid = InProcessGrid(make_app(), NODES)
    strategy.start(**{"grid": grid, "initial_arrays": first, "num_rounds": 8, **started})


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
    for name, given in (("run", run), ("settings", run.settings)):
        strategy = CovertStrategy(
            run=given, out=tmp_path / name, seed="run", on_round=stop_after(1)
        )
        with pytest.raises(KeyboardInterrupt):
            strategy.start(grid=InProcessGrid(make_app(), 6))
        written = (tmp_path / name / "run.toml").read_text()
        assert all(line in written for line in format_run(run.settings, {}).splitlines())


def test_single_rounds_are_refused_and_nothing_is_evaluated(tmp_path: Path) -> None:
    """Flower's own loop would hand over the true arrays to be evaluated."""
    strategy = CovertStrategy(FedAvg, run=RUN, out=tmp_path, task=make_task())
    grid = InProcessGrid(make_app(), NODES)
    with pytest.raises(InvalidInput, match="call start"):
        strategy.configure_train(1, make_first(), ConfigRecord(), grid)
    with pytest.raises(InvalidInput, match="call start"):
        strategy.aggregate_train(1, [])
    assert not list(strategy.configure_evaluate(1, make_first(), ConfigRecord(), grid))
    assert strategy.aggregate_evaluate(1, []) is None
