"""A client that attacks with its replies: FedSGD, mnist, exchangeable runs, processes of Ray."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from covertfl.engines.flower.client_app import ClientTrainer
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.messages import find_round
from covertfl.engines.flower.server_app import run_simulated
from tests.support.commands import run_python
from tests.support.small_runs import make_run, read_column, read_folder


def misbehave(settings: Any) -> Any:
    """Return the client app of a run whose client 0 raises, poisons or overstates in turn."""
    trainer, app = ClientTrainer(settings, "drawn", settings.seed), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reply, number = trainer.reply(message, context), find_round(message) or 0
        if context.node_config["partition-id"] != 0:
            return reply
        if number % 3 == 0:
            raise RuntimeError("as an attacker likes")
        if number % 3 == 1:
            reply.content["metrics"] = MetricRecord({"num-examples": 10**6})
        else:
            arrays = next(iter(reply.content.array_records.values()))
            name = next(iter(arrays))
            arrays[name] = Array(arrays[name].numpy() * float("nan"))
        return reply

    return app


def run_attacked(settings: Any, out: Path, simulate: Any) -> None:
    """Run a run file with such a client in one of the runtimes."""

    def attacked(app: Any, *given: Any, **options: Any) -> None:
        simulate(misbehave(settings), *given, **options)

    run_simulated(settings, out, attacked, resume=False, force=False, on_round=None)


def simulate_here(app: Any, num_nodes: int, serve: Any, **rounds: Any) -> None:
    grid = InProcessGrid(app, num_nodes, **rounds)
    serve(grid, grid.clients)


HAS_MNIST = (Path(os.environ.get("COVERTFL_DATA", ".")) / "mnist").is_dir()
ATTACKED: dict[str, dict[str, Any]] = {
    "fedsgd": {"federation": {"algorithm": "fedsgd"}},
    "exchangeable": {
        "data": {"model": "mlp"},
        "policy": {"kind": "exchangeable", "trajectories": 2},
    },
    "mnist": {"task": "mnist", "data": {"model": "logistic"}, "federation": {"batch_size": 400}},
}


@pytest.mark.parametrize(
    "name",
    [
        "fedsgd",
        "exchangeable",
        pytest.param(
            "mnist",
            marks=[pytest.mark.slow, pytest.mark.skipif(not HAS_MNIST, reason="needs mnist")],
        ),
    ],
)
def test_the_same_attacks_elsewhere(name: str, tmp_path: Path) -> None:
    settings = make_run(**ATTACKED[name])
    run_attacked(settings, tmp_path, simulate_here)
    reasons = {entry[1] for entries in read_column(tmp_path, "rejected") for entry in entries}
    assert reasons <= {"client error", "too many examples", "not finite"} and reasons
    assert {entry[0] for entries in read_column(tmp_path, "rejected") for entry in entries} == {0}
    assert any(read_column(tmp_path, "updated"))


RAY = """
import sys
from pathlib import Path
from covertfl.engines.flower.simulation import simulate
from tests.support.small_runs import make_run
from tests.test_attacks_elsewhere import ATTACKED, run_attacked

run_attacked(make_run(**ATTACKED["exchangeable"]), Path(sys.argv[1]), simulate)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_exchangeable_runs_under_attack_in_other_processes(tmp_path: Path) -> None:
    """The same bytes as in this process."""
    done = run_python(RAY, tmp_path / "ray")
    assert done.returncode == 0, done.stderr
    run_attacked(make_run(**ATTACKED["exchangeable"]), tmp_path / "here", simulate_here)
    assert read_folder(tmp_path / "ray") == read_folder(tmp_path / "here")
