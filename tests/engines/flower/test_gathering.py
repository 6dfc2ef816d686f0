"""Replies are added up as they come where their mean is all that is used, and kept elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    QFedAvg,
    Strategy,
)
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from covertfl.engines.flower.array_form import make_float_form
from covertfl.engines.flower.gathering import Gathered
from covertfl.engines.flower.grid import InProcessGrid, NodeCountGrid
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.kernels.exact_sum import ExactSum
from covertfl.kernels.job import Layout
from tests.support.commands import run_python
from tests.support.faulty_grid import FaultyGrid
from tests.support.flower_runs import NODES, ROUNDS, make_app, run_covert, run_exchangeable
from tests.support.slow_cases import IS_SOAK
from tests.support.small_runs import read_column, read_folder

pytestmark = pytest.mark.slow

LEARNS = [1, 3, 4, 8]
SUMMED: dict[str, Callable[[], Strategy] | None] = {
    "built-in": None,
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    "FedAdam": lambda: FedAdam(eta=0.1),
    "FedAdagrad": lambda: FedAdagrad(eta=0.1),
    "FedYogi": lambda: FedYogi(eta=0.1),
}


class Own(FedAvg):
    """A user's own class, which may do anything with replies."""


def count_metrics(contents: list[RecordDict], key: str) -> MetricRecord:
    return aggregate_metricrecords(contents, key)


KEPT: dict[str, Callable[[], Strategy]] = {
    "own class": Own,
    "own metrics": lambda: FedAvg(train_metrics_aggr_fn=count_metrics),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "Krum": Krum,
    "QFedAvg": lambda: QFedAvg(client_learning_rate=0.1, q=0.2),
}


def note_keeping(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is kept in each round, and how many messages."""
    noted: list[tuple[str, int]] = []
    end = Gathered.end

    def watch(self: Gathered) -> set[int]:
        noted.append((self.keeping, len(self.messages)))
        return end(self)

    monkeypatch.setattr(Gathered, "end", watch)
    return noted


@pytest.mark.parametrize("name", SUMMED)
def test_weighted_sums_keep_no_reply(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = note_keeping(monkeypatch)
    run_covert(tmp_path, SUMMED[name], LEARNS)
    assert noted == [("mean", 0)] * ROUNDS


@pytest.mark.parametrize("name", KEPT)
def test_all_others_keep_all_replies(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = note_keeping(monkeypatch)
    run_covert(tmp_path, KEPT[name], LEARNS)
    assert noted == [("messages", NODES)] * ROUNDS


@pytest.mark.parametrize("name", ["built-in", "FedAvg"])
def test_decoys_that_use_replies_have_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = note_keeping(monkeypatch)
    run_covert(tmp_path, SUMMED[name], LEARNS, changes={"decoy": {"kind": "mirrored"}})
    assert noted == [("vectors", NODES)] * ROUNDS


def test_a_level_chooses_among_all_replies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = note_keeping(monkeypatch)
    run_exchangeable(tmp_path, None, trajectories=2)
    assert set(noted) == {("vectors", NODES)}


# --- the order of arrival ---------------------------------------------------------------------


class ShuffledGrid(InProcessGrid):
    """A grid whose nodes answer in random order: most attempts to pull find nothing."""

    pull_interval = 0.0

    def __init__(self, seed: int) -> None:
        super().__init__(make_app(), NODES)
        self._generator = np.random.default_rng(seed)

    def pull_messages(self, message_ids: Any) -> list[Message]:
        if self._generator.random() < 0.7:
            return []
        return list(super().pull_messages(message_ids))


@pytest.mark.parametrize("name", SUMMED)
def test_the_order_of_arrival_does_not_matter(name: str, tmp_path: Path) -> None:
    run_covert(tmp_path / "plain", SUMMED[name], LEARNS)
    for seed in range(3):
        run_covert(tmp_path / str(seed), SUMMED[name], LEARNS, grid=ShuffledGrid(seed))
        assert read_folder(tmp_path / str(seed)) == read_folder(tmp_path / "plain")


def test_a_lean_grid_gives_the_same_run(tmp_path: Path) -> None:
    run_covert(tmp_path / "plain", FedAvg, LEARNS)
    run_covert(
        tmp_path / "lean", FedAvg, LEARNS, grid=InProcessGrid(make_app(), NODES, is_lean=True)
    )
    assert read_folder(tmp_path / "lean") == read_folder(tmp_path / "plain")


# --- the same result and the same work --------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, make in SUMMED.items() if make is not None])
def test_a_strategy_moves_on_the_mean_as_on_all_replies(name: str) -> None:
    """Flower's own aggregation of all replies is the same up to its rounding."""
    InProcessGrid(make_app(), 1)  # gives messages their sender
    make = SUMMED[name]
    assert make is not None
    generator = np.random.default_rng(2)
    form = make_float_form(Layout(("weight", "bias"), ((5, 4), (5,))))
    inner, stock = InnerStrategies(make, 2, form, 1000, holds=False), make()
    weights = generator.normal(size=25).astype(np.float32)
    for number in range(1, 5):
        values = weights + generator.normal(size=(9, 25)).astype(np.float32)
        counts = generator.integers(1, 500, size=9).tolist()
        total = ExactSum(25)
        for vector, count in zip(values, counts, strict=True):
            total.add(vector, count)
        form.prepare([weights])
        sent = ArrayRecord(form.write(weights))
        replies = [make_reply(vector, count) for vector, count in zip(values, counts, strict=True)]
        stock.configure_train(number, sent, ConfigRecord(), NodeCountGrid(2))
        expected, _ = stock.aggregate_train(number, replies)
        moved = inner.attempt(0, weights, total.mean(), keeps=True)
        inner.keep(0)
        assert expected is not None and moved is not None
        np.testing.assert_allclose(moved, form.flatten(expected), rtol=2e-5, atol=2e-5)
        weights = moved


def make_reply(vector: Any, count: int) -> Message:
    parts = {"weight": vector[:20].reshape(5, 4), "bias": vector[20:]}
    arrays = ArrayRecord({key: Array(part) for key, part in parts.items()})
    metrics = MetricRecord({"num-examples": count})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), 1000, "train")


@pytest.mark.parametrize("name", ["built-in", "FedAvg", "FedAdam"])
def test_both_arms_do_the_same_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors are added, divided and written in the same order, whatever was sent."""
    calls: list[str] = []

    def watch(owner: type, method: str) -> None:
        before = getattr(owner, method)

        def noted(*args: Any, **options: Any) -> Any:
            calls.append(method)
            return before(*args, **options)

        monkeypatch.setattr(owner, method, noted)

    for owner, method in ((ExactSum, "clear"), (ExactSum, "add_parts"), (ExactSum, "mean"),
                          (InnerStrategies, "_prepare"), (Gathered, "take")):  # fmt: skip
        watch(owner, method)
    seen: list[list[str]] = []

    def end_round(_progress: Any) -> None:
        seen.append(list(calls))
        calls.clear()

    changes = {"decoy": {"gated": False}}
    run_covert(tmp_path, SUMMED[name], LEARNS, on_round=end_round, changes=changes)
    assert len(seen) == ROUNDS
    assert all(round_calls == seen[0] for round_calls in seen)
    assert seen[0].count("add_parts") == NODES and seen[0].count("mean") == 1


# --- what clients send beside their weights ---------------------------------------------------


def send_metrics(metrics: dict[str, Any]) -> FaultyGrid:
    def spoil(number: int, client: int, reply: Message) -> Message:
        if client == 2:
            reply.content["metrics"] = MetricRecord(metrics)
        return reply

    return FaultyGrid(make_app(), NODES, spoil=spoil)


@pytest.mark.parametrize("name", ["built-in", "FedAvg"])
@pytest.mark.parametrize("metrics", [{}, {"train_loss": [0.5, 0.5]}])
def test_a_reply_that_lacks_a_metric_counts(
    name: str, metrics: dict[str, Any], tmp_path: Path
) -> None:
    """Its weights are added, and with a strategy its metrics are left out."""
    grid = send_metrics({"num-examples": 40, **metrics})
    result = run_covert(tmp_path, SUMMED[name], LEARNS, grid=grid)
    assert read_column(tmp_path, "rejected") == [[]] * ROUNDS
    assert read_column(tmp_path, "examples") == [40 * NODES] * ROUNDS
    kept = result.train_metrics_clientapp
    assert len(kept) == (0 if name == "built-in" else ROUNDS)
    assert all(record["train_loss"] == 0.5 for record in kept.values())


def test_metrics_that_are_not_finite_are_refused_with_a_strategy(tmp_path: Path) -> None:
    grid = send_metrics({"num-examples": 40, "train_loss": float("nan")})
    run_covert(tmp_path, FedAvg, LEARNS, grid=grid)
    assert read_column(tmp_path, "rejected") == [[[2, "wrong metrics"]]] * ROUNDS
    assert read_column(tmp_path, "examples") == [40 * (NODES - 1)] * ROUNDS


# --- memory -----------------------------------------------------------------------------------

MANY_CLIENTS = """
import resource, sys
import numpy as np, torch
from flwr.app import Array, ArrayRecord, MetricRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam
from covertfl.flower import CovertStrategy, Examples, InProcessGrid, make_server_task
from tests.support.flower_runs import RUN

CLIENTS, INPUTS = 1000, 1_000_000
app = ClientApp()

@app.train()
def train(message, context):
    array = message.content.array_records["arrays"]["weight"]
    moved = array.numpy() + np.float32(context.node_config["partition-id"] / CLIENTS)
    arrays = ArrayRecord({"weight": Array(moved)})
    metrics = MetricRecord({"num-examples": 40})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

def measure():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6

def make_model():
    return torch.nn.Linear(INPUTS, 1, bias=False)

features = np.ones((10, INPUTS), dtype=np.float32)
data = Examples(features, np.zeros(10, dtype=np.float32))
task = make_server_task(make_model, "binary", data, data, clients=CLIENTS, examples=40)
federation = {**RUN["federation"], "participation": [10, 100, CLIENTS]}
run = {**RUN, "federation": federation, "decoy": {"kind": "random"}}
first = ArrayRecord({"weight": Array(np.zeros((1, INPUTS), dtype=np.float32))})
for clients in (3, CLIENTS):
    make = None if sys.argv[1] == "built-in" else lambda: FedAdam(eta=0.1)
    strategy = CovertStrategy(make, run=run, out=f"{sys.argv[2]}/{clients}", task=task, seed=1)
    grid = InProcessGrid(app, clients, is_lean=True)
    strategy.start(grid=grid, initial_arrays=first, num_rounds=2)
    print(clients, measure())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["built-in", "FedAdam"] if IS_SOAK else ["built-in"])
def test_a_thousand_replies_of_a_million_numbers_are_never_in_memory(
    name: str, tmp_path: Path
) -> None:
    """All of them would take 4 GB; a thousand take no more than 1 GB beyond what three take."""
    done = run_python(MANY_CLIENTS, Path(name), tmp_path)
    assert done.returncode == 0, done.stderr
    [(_, few), (_, many)] = [line.split() for line in done.stdout.splitlines()]
    assert float(many) - float(few) < 1.0
