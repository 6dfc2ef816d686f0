"""A user's own code on the server: what it prints, its metrics, its privacy, its paths."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.errors import InvalidInput
from tests.support.flower_runs import (
    NODES,
    ROUNDS,
    RUN,
    Witness,
    make_app,
    make_task,
    nudge,
    read_round,
    run_covert,
)


@pytest.fixture(autouse=True)
def collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks for it with every conversion."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


class Talker(FedAvg):
    """Says in every way what it does."""

    def _say(self, words: str) -> None:
        print(words)
        print(words, file=sys.stderr)
        logging.getLogger("mine").critical(words)

    def configure_train(self, server_round: int, *given: Any) -> Any:
        self._say(f"configure {server_round}")
        return super().configure_train(server_round, *given)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self._say(f"aggregate {server_round}")
        return super().aggregate_train(server_round, replies)


def test_what_a_strategy_prints_is_discarded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The output of a run that learns and of one that does not is the same, and has no action."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        print("accuracy", number)
        return MetricRecord({"accuracy": 0.5})

    shown = []
    for learns in ([1, 2, 3], [4, 7]):
        name = "-".join(map(str, learns))
        result = run_covert(tmp_path / name, Talker, learns, start={"evaluate_fn": evaluate})
        assert sorted(result.evaluate_metrics_serverapp) == list(range(ROUNDS + 1))
        captured = capfd.readouterr()
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        text = "\n".join([captured.out, captured.err, *lines])
        assert "aggregate" not in text and "configure" not in text and "accuracy" not in text
        shown.append(text.replace(name, ""))
    assert shown[0] == shown[1]
    logging.getLogger("mine").critical("afterwards")
    print("afterwards")
    assert caplog.messages == ["afterwards"] and capfd.readouterr().out == "afterwards\n"


def double(records: Any, key: str) -> MetricRecord:
    return MetricRecord({"doubled": 2.0 * next(iter(records[0].metric_records.values()))["loss"]})


@pytest.mark.parametrize(
    ("make_strategy", "expected"),
    [
        (None, {"loss": 2.5}),
        (FedAvg, {"loss": 2.5}),
        (lambda: FedAvg(train_metrics_aggr_fn=double), {"doubled": 2.0}),
    ],
)
def test_metrics_of_clients_come_back(
    make_strategy: Callable[[], Strategy] | None, expected: dict[str, float], tmp_path: Path
) -> None:
    """All rounds have them, in the result and in the private folder, and no client gets them."""
    witness, app = Witness(), ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        witness.watch(message, context)
        arrays = ArrayRecord({name: Array(part) for name, part in nudge(message, context).items()})
        client = int(context.node_config["partition-id"])
        metrics = MetricRecord({"num-examples": 40, "loss": 1.0 + client})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    result = run_covert(tmp_path, make_strategy, [1, 4], app=app)
    assert sorted(result.train_metrics_clientapp) == list(range(1, ROUNDS + 1))
    assert all(dict(metrics) == expected for metrics in result.train_metrics_clientapp.values())
    lines = (tmp_path / "private" / "client_metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"round": number, "metrics": expected} for number in range(1, ROUNDS + 1)
    ]
    assert "loss" not in repr(witness.seen) and "doubled" not in repr(witness.seen)


def test_differential_privacy_adds_its_noise_to_every_move(tmp_path: Path) -> None:
    """Clients that stay where they are: true moves are noise of deviation z C / n."""
    sent: dict[int, Any] = {}

    def make() -> Strategy:
        return DifferentialPrivacyServerSideFixedClipping(FedAvg(), 2.0, 0.5, NODES)

    def stay(message: Message, context: Context) -> dict[str, Any]:
        arrays = next(iter(message.content.array_records.values()))
        parts = {name: array.numpy() for name, array in arrays.items()}
        sent[read_round(message)] = np.concatenate([np.ravel(part) for part in parts.values()])
        # Flower divides by the length of what it clips.
        return {name: part + np.float32(1e-6) for name, part in parts.items()}

    learns, changes = range(1, ROUNDS), {"decoy": {"kind": "public"}}
    run_covert(tmp_path, make, list(learns), app=make_app(train=stay), changes=changes)
    noise = np.diff([sent[number] for number in learns], axis=0)
    assert noise.shape == (ROUNDS - 2, 21)
    assert 0.7 < noise.std() / (2.0 * 0.5 / NODES) < 1.4  # more than four standard errors


def test_client_side_clipping_tells_clients_the_same_norm(tmp_path: Path) -> None:
    def make() -> Strategy:
        return DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1.0, 0.5, NODES)

    witness = Witness()
    run_covert(tmp_path, make, [2, 5], app=make_app(witness), changes={"decoy": {"kind": "public"}})
    norms = {dict(shown["config"]["config"])["clipping_norm"] for shown in witness.seen}
    assert norms == {"0.5"}


def test_relative_paths_start_in_the_folder_of_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Flower runs an app: its folder is on Python's path, the current folder is anywhere."""
    app, elsewhere = tmp_path / "app", tmp_path / "elsewhere"
    for folder in (app, elsewhere):
        folder.mkdir()
    (app / "run.toml").write_text('task = "own"\n[federation]\nparticipation = [1, 2, 4]\n')
    monkeypatch.chdir(elsewhere)
    with pytest.raises(InvalidInput, match=r"run must be a run file that exists"):
        CovertStrategy(run="run.toml", out="runs/first", task=make_task())
    (app / "pyproject.toml").write_text("[tool.flwr.app]\n")
    monkeypatch.syspath_prepend(str(app))
    strategy = CovertStrategy(run="run.toml", out="runs/first", task=make_task())
    assert strategy.folder == app / "runs" / "first" and strategy.run == app / "run.toml"
    whole = CovertStrategy(run=RUN, out=tmp_path / "second", task=make_task())
    assert whole.folder == tmp_path / "second" and whole.run is RUN
