"""How much the server works between two queries, counted: it does not depend on what was sent.

A client measures the time from its reply to the next query.  The server trains a decoy in every
round, also in those whose training it discards; if that took more rows or batches in rounds of one
kind, or with other weights, times would name the action.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg

from covertfl.decoys.registry import DECOYS
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.flower import CovertStrategy, Examples, make_server_task
from covertfl.kernels.job import LocalJob
from covertfl.kernels.mlp import MlpKernel
from tests.support.flower_runs import NODES, ROUNDS, RUN, Scheduled, Train, make_app, nudge
from tests.support.slow_cases import mark_slow

pytestmark = pytest.mark.slow

# Jobs, rows and batches of the server's training, and rows that it predicts.
Work = tuple[int, int, int, int]
PUBLIC = 75
LEARNS = (2, 3, 5, 8)
OTHERS = (1, 4, 6, 7)


class Count:
    """The work of each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[Work] = []
        self._now = np.zeros(4, dtype=np.int64)
        run, predict = MlpKernel.run, MlpKernel.predict

        def counted_run(kernel: MlpKernel, jobs: Sequence[LocalJob]) -> Any:
            for job in jobs:
                batches = -(-len(job.rows) // job.batch_size)
                self._now += (1, len(job.rows), batches, 0)
            return run(kernel, jobs)

        def counted_predict(kernel: MlpKernel, weights: Any, features: Any) -> Any:
            self._now += (0, 0, 0, len(features))
            return predict(kernel, weights, features)

        monkeypatch.setattr(MlpKernel, "run", counted_run)
        monkeypatch.setattr(MlpKernel, "predict", counted_predict)

    def begin(self, number: int, _arrays: ArrayRecord) -> None:
        """Forget what was done before the first round."""
        if number == 0:
            self._now[:] = 0

    def end_round(self, _progress: Any) -> None:
        """Note the work of the round that has ended."""
        jobs, rows, batches, predicted = (int(number) for number in self._now)
        self.rounds.append((jobs, rows, batches, predicted))
        self._now[:] = 0


def make_task(classes: int) -> Any:
    """A task whose public set has 30% positives, or three classes."""
    generator = np.random.default_rng(1)
    kinds = (generator.random(PUBLIC) < 0.3) if classes == 1 else np.arange(PUBLIC) % classes
    features = generator.normal(size=(PUBLIC, 3)).astype(np.float32)
    features[:, 0] += kinds
    is_binary = classes == 1
    data = Examples(features, kinds.astype(np.float32) if is_binary else kinds.astype(np.int64))
    return make_server_task(
        lambda: make_model(classes),
        "binary" if is_binary else "multiclass",
        data,
        data,
        clients=NODES,
        examples=40,
    )


def make_model(classes: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, classes))


def pull_far(message: Message, context: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Train towards weights at which the model's loss is large."""
    return {name: 20.0 * values for name, values in nudge(message, context).items()}


def count_work(
    out: Path,
    decoy: str,
    learns: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    classes: int = 1,
    train: Train = nudge,
    **changes: Any,
) -> list[Work]:
    """Return the work of each round of a run that learns in some of them."""
    with monkeypatch.context() as patch:
        count = Count(patch)
        strategy = CovertStrategy(
            changes.pop("make_strategy", FedAvg),
            run={**RUN, "decoy": {"kind": decoy, "gated": False}, **changes},
            out=out,
            task=make_task(classes),
            policy=Scheduled(frozenset(learns)),
            decoy_start="fresh",
            seed=7,
            on_round=count.end_round,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            first = ArrayRecord(make_model(classes).state_dict())
        grid = InProcessGrid(make_app(train=train), NODES)
        strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS, evaluate_fn=count.begin)
    return count.rounds


@pytest.mark.parametrize("classes", mark_slow([1, 3], [1]))
@pytest.mark.parametrize("decoy", DECOYS)
def test_the_work_of_a_round_does_not_depend_on_the_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoy: str, classes: int
) -> None:
    one = count_work(tmp_path / "one", decoy, LEARNS, monkeypatch, classes=classes)
    other = count_work(tmp_path / "other", decoy, OTHERS, monkeypatch, classes=classes)
    assert one == other
    assert len(one) == ROUNDS


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("batch_size", mark_slow([1, 10, 400], [10]))
def test_nor_on_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classes: int, batch_size: int
) -> None:
    options: dict[str, Any] = {
        "classes": classes,
        "federation": {**RUN["federation"], "batch_size": batch_size},
    }
    near = count_work(tmp_path / "near", "adversarial", LEARNS, monkeypatch, **options)
    far = count_work(
        tmp_path / "far", "adversarial", LEARNS, monkeypatch, train=pull_far, **options
    )
    assert len({*near, *far}) == 1  # the first move of a decoy included


def test_nor_with_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "make_strategy": None,
        "federation": {**RUN["federation"], "algorithm": "fedsgd"},
    }
    one = count_work(tmp_path / "one", "adversarial", LEARNS, monkeypatch, **options)
    other = count_work(tmp_path / "other", "adversarial", OTHERS, monkeypatch, **options)
    assert len({*one, *other}) == 1
