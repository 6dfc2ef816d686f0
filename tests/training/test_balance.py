"""Files whose classes are not equally frequent: balanced training, warnings, both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl import RunSummary
from covertfl.runs.simulated import make_client_job
from covertfl.runs.train import KernelCache, build_federation
from covertfl.training import train
from tests.support.small_runs import make_run, merge, read_folder, run_small

pytest.importorskip("torch")


@pytest.fixture
def uneven(tmp_path: Path) -> dict[str, Any]:
    """A run on a file with 30% positives, which are learnable but hard."""
    generator = np.random.default_rng(0)
    labels = np.arange(1000) % 10 < 3
    features = generator.standard_normal((1000, 8)) + np.where(labels, 0.25, -0.25)[:, np.newaxis]
    np.savez(tmp_path / "uneven.npz", features=features, labels=labels)
    return {
        "task": "embeddings",
        "data": {"path": str(tmp_path / "uneven.npz"), "model": "logistic"},
        "federation": {"optimizer": {"name": "sgd", "lr": 0.1}, "participation": [4, 5, 6]},
        "policy": {"kind": "always-learn"},
        "decoy": {"kind": "random"},
    }


def train_uneven(out: Path, changes: dict[str, Any], *, balance: bool) -> RunSummary:
    return run_small(out, **merge(changes, {"data": {"balance": balance}}))


def test_a_learner_of_uneven_classes_tells_them_apart(
    uneven: dict[str, Any], tmp_path: Path
) -> None:
    on, off = (train_uneven(tmp_path / str(b), uneven, balance=b) for b in (True, False))
    # The best rule, by the sum of all features, is right with probability 0.76.
    assert on.learner_accuracy is not None and on.learner_accuracy > 0.65
    assert on.learner_balanced_accuracy == pytest.approx(on.learner_accuracy)
    assert on.learner_auc is not None and on.learner_auc > 0.7
    assert on.warnings == ()
    assert off.learner_accuracy is not None and on.learner_accuracy > off.learner_accuracy + 0.05


def test_clients_train_on_their_own_classes_equally_often(uneven: dict[str, Any]) -> None:
    settings = make_run(**uneven)
    task = build_federation(settings, KernelCache()).task
    weights, labels = task.draw_weights(0), task.train.labels
    for client in range(6):
        job = make_client_job(settings, task, client, 2, weights, 1)
        assert np.sum(labels[job.rows]) == 20 and set(job.rows) <= set(task.clients[client])
        again = make_client_job(settings, task, client, 2, weights + 1, 1)
        assert again.rows.tolist() == job.rows.tolist()  # whatever is sent


def test_both_engines_balance_alike(uneven: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    for kind in ("simulated", "flower"):
        train(make_run(**merge(uneven, {"engine": {"kind": kind}})), tmp_path / kind)
    simulated, flower = (read_folder(tmp_path / kind) for kind in ("simulated", "flower"))
    assert set(simulated) == set(flower)
    for file in simulated:
        assert file == "run.toml" or flower[file] == simulated[file], file
