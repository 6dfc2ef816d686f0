"""The example that tracks runs in MLflow: it logs what the runs record, round by round."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import covertfl as cf
from covertfl.runs.files import read_lines
from tests import ROOT
from tests.support.small_runs import HORIZON

pytest.importorskip("torch")


class Client:
    """The methods of MLflow's client that the example calls, kept in memory."""

    def __init__(self, tracking_uri: str) -> None:
        self.uri = tracking_uri
        self.experiments: list[str] = []
        self.names: list[str] = []
        self.params: dict[tuple[int, str], int] = {}
        self.metrics: dict[tuple[int, str, int], float] = {}
        self.ended: list[int] = []

    def get_experiment_by_name(self, name: str) -> None:
        assert name not in self.experiments

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return name

    def create_run(self, experiment: str, run_name: str) -> Any:
        assert experiment in self.experiments
        self.names.append(run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.names) - 1))

    def log_param(self, run: int, key: str, value: int) -> None:
        self.params[run, key] = value

    def log_metric(self, run: int, key: str, value: float, step: int) -> None:
        assert run not in self.ended and (run, key, step) not in self.metrics
        self.metrics[run, key, step] = value

    def set_terminated(self, run: int) -> None:
        self.ended.append(run)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Install a small MLflow; the list receives the clients that are made."""
    made: list[Client] = []

    def make(tracking_uri: str) -> Client:
        made.append(Client(tracking_uri))
        return made[-1]

    module = ModuleType("mlflow")
    module.MlflowClient = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    return made


def load_example() -> Any:
    path = ROOT / "examples" / "mlflow_tracking.py"
    spec = importlib.util.spec_from_file_location("mlflow_tracking", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_round_is_logged_as_it_is_recorded(tmp_path: Path, clients: list[Client]) -> None:
    result = load_example().train_tracked(cf.Run(**HORIZON), tmp_path, seeds=2)
    [client] = clients
    assert client.uri == (tmp_path / "store").as_uri()
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    assert client.names == ["seed-0", "seed-1"]
    assert sorted(client.ended) == [0, 1]
    first = int(HORIZON.get("seed", 0))
    assert client.params == {(0, "seed"): first, (1, "seed"): first + 1}
    names = {"score": "learner_score", "exposure": "exposure", "backlog": "backlog"}
    recorded = {
        (run, name, record["round"]): record[key]
        for run in (0, 1)
        for record in read_lines(tmp_path / "runs" / f"seed-{run}" / "metrics.jsonl")
        for name, key in names.items()
    }
    assert client.metrics == recorded
    assert len(recorded) == 2 * 3 * result.rounds


def test_the_record_cannot_be_changed(tmp_path: Path) -> None:
    told: list[cf.RunProgress] = []
    cf.Run(**HORIZON).train(tmp_path / "run", on_round=told.append)
    assert [progress.round for progress in told] == list(range(1, told[0].rounds + 1))
    with pytest.raises(AttributeError):
        told[0].backlog = 0  # type: ignore[misc]
