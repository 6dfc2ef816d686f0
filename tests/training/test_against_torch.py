"""Trained weights agree with a plain PyTorch loop over the clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from covertfl import TrainingTask
from covertfl.arrays import IntArray
from covertfl.kernels.job import Layout, LocalOptimizer, Vector
from covertfl.runs.public import PublicTranscript
from covertfl.runs.simulated import make_client_job
from covertfl.runs.train import KernelCache, build_federation
from tests.support.small_runs import make_run, read_arrays, read_rounds, run_small

pytest.importorskip("torch")
import torch
from torch.nn import Module, Parameter
from torch.optim import Optimizer


def make_torch_optimizer(parameters: Iterator[Parameter], optimizer: LocalOptimizer) -> Optimizer:
    settings: dict[str, Any] = {"lr": optimizer.lr, "weight_decay": optimizer.weight_decay}
    if optimizer.name == "sgd":
        return torch.optim.SGD(parameters, momentum=optimizer.momentum, **settings)
    kind = torch.optim.Adam if optimizer.name == "adam" else torch.optim.AdamW
    return kind(parameters, **settings)


def load_model(task: TrainingTask, layout: Layout, weights: Vector) -> Module:
    model = task.make_model()
    parts = layout.split(np.array(weights))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(parts[name].copy()))
    return model


def flatten(model: Module) -> npt.NDArray[np.float32]:
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def measure_loss(model: Module, task: TrainingTask, rows: IntArray) -> torch.Tensor:
    outputs = model(torch.from_numpy(task.train.features[rows]))
    return torch.nn.functional.cross_entropy(outputs, torch.from_numpy(task.train.labels[rows]))


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "adam"},
        {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        {"name": "adamw", "weight_decay": 0.1},
    ],
)
def test_fedavg_is_the_plain_loop_over_clients(
    tmp_path: Path, model: str, optimizer: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {
        "rounds": 1,
        "policy": {"kind": "always-learn"},
        "data": {"model": model},
        "federation": {"participation": [6, 6, 6], "min_share": 0.0, "optimizer": optimizer},
    }
    summary = run_small(tmp_path / "run", **changes)
    assert summary.updates_done == 1
    federation = build_federation(make_run(**changes), KernelCache())
    settings, task, layout = federation.settings, federation.task, federation.layout
    optimizing = settings.sections.federation.optimizer.make()
    [record] = read_rounds(tmp_path / "run")
    public = PublicTranscript(tmp_path / "run" / "public")
    sent = layout.join(public.read_weights(public.records[0].weights))

    total, examples = np.zeros(layout.size), 0
    for client, batches in zip(record["clients"], record["batches"], strict=True):
        if batches == 0:
            continue
        # Only the order of a client's examples is taken from the run.
        rows = make_client_job(settings, task, client, batches, sent, 1).rows
        module = load_model(task, layout, sent)
        local = make_torch_optimizer(module.parameters(), optimizing)
        for start in range(0, len(rows), 20):
            local.zero_grad()
            torch.autograd.backward(measure_loss(module, task, rows[start : start + 20]))
            local.step()
        total += flatten(module) * len(rows)
        examples += len(rows)
    assert examples == record["examples"] > 500
    trained = read_arrays(tmp_path / "run")["true"]
    np.testing.assert_allclose(trained, total / examples, rtol=0, atol=1e-5)
    assert np.abs(trained - sent).max() > 1e-3


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.1},
        {"name": "adam", "lr": 0.01},
        {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    ],
)
def test_fedsgd_with_one_client_is_the_optimizer(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    changes: dict[str, Any] = {
        "rounds": 6,
        "policy": {"kind": "always-learn"},
        "federation": {
            "clients": 1,
            "participation": [1, 1, 1],
            "min_share": 0.0,
            "algorithm": "fedsgd",
            "optimizer": optimizer,
        },
    }
    summary = run_small(tmp_path / "run", **changes)
    federation = build_federation(make_run(**changes), KernelCache())
    settings, task, layout = federation.settings, federation.task, federation.layout
    optimizing = settings.sections.federation.optimizer.make()
    public = PublicTranscript(tmp_path / "run" / "public")
    first = layout.join(public.read_weights(public.records[0].weights))
    module = load_model(task, layout, first)
    server = make_torch_optimizer(module.parameters(), optimizing)
    steps = 0
    for record in read_rounds(tmp_path / "run"):
        if not record["updated"]:
            continue
        batches, number = record["batches"][0], record["round"]
        rows = make_client_job(settings, task, 0, batches, first, number).rows
        server.zero_grad()
        torch.autograd.backward(measure_loss(module, task, rows))
        server.step()
        steps += 1
    assert steps == summary.updates_done > 3
    trained = read_arrays(tmp_path / "run")["true"]
    np.testing.assert_allclose(trained, flatten(module), rtol=0, atol=1e-5)
