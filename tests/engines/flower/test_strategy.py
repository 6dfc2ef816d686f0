"""Wrapped strategies: one for each trajectory, moved as by Flower; resumed to the byte."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedYogi,
    Strategy,
    strategy_utils,
)

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import read_checkpoint
from tests.support.flower_runs import (
    NODES,
    ROUNDS,
    RUN,
    Witness,
    make_app,
    make_first,
    run_covert,
    stop_after,
)
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import read_column, read_folder, read_rounds

LEARNS = range(1, ROUNDS + 1)
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedYogi": FedYogi,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.5),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedMedian": FedMedian,
}


def as_numbers(arrays: ArrayRecord) -> np.ndarray[Any, Any]:
    return np.concatenate([np.ravel(array.numpy()) for array in arrays.values()])


@pytest.mark.parametrize("name", mark_slow(STRATEGIES, ["FedAvg", "FedAdam", "FedMedian"]))
def test_the_true_trajectory_is_the_wrapped_strategys(name: str, tmp_path: Path) -> None:
    """Learning in every round is the stock strategy, up to the rounding to 32 bits."""
    stock = STRATEGIES[name]().start(
        grid=InProcessGrid(make_app(), NODES), initial_arrays=make_first(), num_rounds=ROUNDS
    )
    result = run_covert(tmp_path, STRATEGIES[name], LEARNS)
    np.testing.assert_allclose(as_numbers(result.arrays), as_numbers(stock.arrays), atol=2e-5)
    assert {array.dtype for array in result.arrays.values()} == {"float32"}


@pytest.mark.parametrize("name", ["FedAdam", "FedAvgM"])
def test_a_decoy_has_a_server_optimizer_of_its_own(name: str, tmp_path: Path) -> None:
    """Rounds of the decoy leave the true trajectory as if they had never been."""
    mixed = run_covert(tmp_path / "mixed", STRATEGIES[name], [1, 2, 3])
    plain = run_covert(tmp_path / "plain", STRATEGIES[name], [1, 2, 3], decoy_start="fresh")
    assert as_numbers(mixed.arrays).tobytes() == as_numbers(plain.arrays).tobytes()
    kept = read_checkpoint(tmp_path / "mixed")
    assert kept is not None
    assert kept.facts["kept"]["steps"] == [3, 5]
    names = [key for key in kept.arrays if key.startswith("strategy-1/")]
    assert names
    for key in names:
        true = kept.arrays[key.replace("strategy-1/", "strategy-0/")]
        assert not np.array_equal(true, kept.arrays[key])


@pytest.mark.parametrize("name", mark_slow(STRATEGIES, ["FedAvg", "FedAdam"]))
def test_wrapped_strategies_go_on_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run_covert(whole, STRATEGIES[name], [1, 3, 4, 7])

    with pytest.raises(KeyboardInterrupt):
        run_covert(cut, STRATEGIES[name], [1, 3, 4, 7], on_round=stop_after(5))
    grid = InProcessGrid(make_app(), NODES, first_round=6)
    run_covert(cut, STRATEGIES[name], [1, 3, 4, 7], grid=grid, resume=True)
    assert read_folder(cut) == read_folder(whole)


def test_what_a_strategy_cannot_keep_is_said_on_resume(tmp_path: Path) -> None:
    class Odd(FedAvg):
        """Remembers a set."""

        seen: Any = None

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.seen = {server_round}
            return super().aggregate_train(server_round, replies)

    with pytest.raises(KeyboardInterrupt):
        run_covert(tmp_path, Odd, LEARNS, on_round=stop_after(1))
    with pytest.raises(InvalidInput, match="strategy-0/seen"):
        run_covert(tmp_path, Odd, LEARNS, resume=True)


def test_all_work_is_done_in_every_round(tmp_path: Path) -> None:
    """Whatever is used of it: aggregations are counted by round, on both arms."""
    calls: list[int] = []

    class Counted(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            calls.append(len(list(replies)))
            return super().aggregate_train(server_round, replies)

    counts = []
    for number, learns in enumerate([LEARNS, []]):
        calls.clear()
        run_covert(tmp_path / str(number), Counted, learns)
        counts.append(list(calls))
    assert counts[0] == counts[1] == [NODES, NODES] * ROUNDS


@pytest.mark.parametrize("make_strategy", [None, FedAvg])
@pytest.mark.parametrize("learns", [[1, 4, 7, 8], [1, 2, 3, 4, 6]])
def test_a_query_is_ready_before_its_round_begins(
    make_strategy: Any, learns: list[int], tmp_path: Path, monkeypatch: Any
) -> None:
    """Whatever was queried before: writing a large model between clock and query would show."""
    asks, written = [False], [0, 0]
    write, ask = ArrayForm.write, Carrier.ask

    def count(self: ArrayForm, weights: Any) -> Any:
        written[asks[-1]] += 1
        return write(self, weights)

    def watch(self: Carrier, *given: Any) -> Any:
        asks.append(True)
        try:
            return ask(self, *given)
        finally:
            asks.append(False)

    monkeypatch.setattr(ArrayForm, "write", count)
    monkeypatch.setattr(Carrier, "ask", watch)
    with pytest.raises(KeyboardInterrupt):
        run_covert(tmp_path, make_strategy, learns, on_round=stop_after(5))
    run_covert(tmp_path, make_strategy, learns, resume=True)
    assert asks.count(True) == ROUNDS
    # For both arms a result, and where a strategy is wrapped the average that it is given.
    each_round = 2 if make_strategy is None else 4
    # Before the first round, when that is sealed, and after the cut, for both arms alike.
    assert written == [3 * 2 + each_round * ROUNDS, 0]


@pytest.mark.parametrize("make_strategy", [None, FedAvg])
def test_encoding_does_not_tell_the_query_while_both_arms_have_the_same_arrays(
    make_strategy: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """Failed rounds move an ungated decoy alone: as much is written whether or not it was sent."""
    written, write = [0], ArrayForm.write

    def count(self: ArrayForm, weights: Any) -> Any:
        written[-1] += 1
        return write(self, weights)

    monkeypatch.setattr(ArrayForm, "write", count)
    changes = {"federation": {**RUN["federation"], "min_share": 0.9}, "decoy": {"gated": False}}
    counts = []
    for number, learns in enumerate([range(1, ROUNDS + 1), []]):
        written[:] = [0]
        run_covert(
            tmp_path / str(number),
            make_strategy,
            list(learns),
            changes=changes,
            grid=InProcessGrid(
                make_app(), NODES, connected=lambda number: range(NODES if number > 3 else 2)
            ),
            on_round=lambda _: written.append(0),
        )
        counts.append(list(written))
    assert counts[0] == counts[1]


class Decays(FedAvg):
    """Sends a learning rate that falls from round to round."""

    rate = 1.0

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.rate /= 2
        config["lr"] = self.rate
        return super().configure_train(server_round, arrays, config, grid)


def test_settings_go_on_as_they_were(tmp_path: Path) -> None:
    witness = Witness()
    with pytest.raises(KeyboardInterrupt):
        run_covert(tmp_path, Decays, [1, 4], app=make_app(witness), on_round=stop_after(4))
    run_covert(tmp_path, Decays, [1, 4], app=make_app(witness), resume=True)
    rates = [dict(shown["config"]["config"])["lr"] for shown in witness.seen]
    assert rates == [repr(0.5**number) for number in LEARNS for _ in range(NODES)]


class Outer(Strategy):
    """Hides another strategy where nobody looks for it."""

    def __init__(self, **settings: Any) -> None:
        self.inner = [FedAvg(**settings)]

    def configure_train(self, *given: Any) -> Any:
        return self.inner[0].configure_train(*given)

    def aggregate_train(self, *given: Any) -> Any:
        return self.inner[0].aggregate_train(*given)

    def configure_evaluate(self, *given: Any) -> Any:
        return []

    def aggregate_evaluate(self, *given: Any) -> Any:
        return None

    def summary(self) -> None:
        """Nothing."""


@pytest.fixture
def never_sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(strategy_utils, "sleep", slept.append)
    return slept


def test_a_wrapper_can_be_wrapped(tmp_path: Path, never_sleeps: list[float]) -> None:
    def make() -> Strategy:
        inner = FedAdam(min_available_nodes=3, min_train_nodes=3)
        return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e6, NODES)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    result = run_covert(whole, make, LEARNS)
    plain = run_covert(tmp_path / "plain", FedAdam, LEARNS)
    np.testing.assert_allclose(as_numbers(result.arrays), as_numbers(plain.arrays), atol=1e-5)
    with pytest.raises(KeyboardInterrupt):
        run_covert(cut, make, LEARNS, on_round=stop_after(5))
    run_covert(cut, make, LEARNS, grid=InProcessGrid(make_app(), NODES, first_round=6), resume=True)
    assert read_folder(cut) == read_folder(whole)
    assert not never_sleeps


def test_a_strategy_that_waits_for_nodes_is_told_of_them(
    tmp_path: Path, never_sleeps: list[float]
) -> None:
    run_covert(tmp_path / "few", lambda: Outer(min_available_nodes=3), LEARNS)
    assert read_column(tmp_path / "few", "updated") == [True] * ROUNDS
    assert len(never_sleeps) < 10
    with pytest.raises(InvalidInput, match="waits for more than 4096 nodes"):
        run_covert(tmp_path / "many", lambda: Outer(min_available_nodes=10**6), LEARNS)


class KeepsLines(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_the_log_does_not_tell_learning_from_obfuscating(tmp_path: Path) -> None:
    """Flower keeps a server app's output, and more people may read it than its owner."""
    lines = []
    for name, learns in (("true", list(LEARNS)), ("decoy", [])):
        keeper = KeepsLines()
        logging.getLogger("flwr").addHandler(keeper)
        try:
            run_covert(tmp_path / name, STRATEGIES["FedAvg"], learns)
        finally:
            logging.getLogger("flwr").removeHandler(keeper)
        lines.append([line.replace(str(tmp_path / name), "folder") for line in keeper.lines])
    assert lines[0] == lines[1]


def test_settings_and_evaluation_of_the_server(tmp_path: Path) -> None:
    witness, seen = Witness(), []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((number, as_numbers(arrays).tobytes()))
        return MetricRecord({"rounds": number})

    result = run_covert(
        tmp_path,
        lambda: FedProx(proximal_mu=0.25),
        [2, 3],
        app=make_app(witness),
        start={"train_config": ConfigRecord({"lr": 0.5}), "evaluate_fn": evaluate},
    )
    assert [number for number, _ in seen] == list(range(ROUNDS + 1))
    assert seen[-1][1] == as_numbers(result.arrays).tobytes()
    assert len({content for _, content in seen}) == 3  # the true arrays moved twice
    assert result.evaluate_metrics_serverapp[ROUNDS]["rounds"] == ROUNDS
    for shown in witness.seen:
        config = dict(shown["config"]["config"])
        assert (config["lr"], config["proximal-mu"]) == ("0.5", "0.25")


def test_recording_can_be_turned_off(tmp_path: Path) -> None:
    run_covert(tmp_path, FedAvg, [1, 2], changes={"keep": "hashes"})
    assert not list((tmp_path / "public" / "weights").iterdir())
    sent = [line["weights"] for line in read_rounds(tmp_path, "public/rounds.jsonl")]
    assert len(sent) == ROUNDS and all(len(name) == 64 for name in sent)
    assert [line["weights"] for line in read_rounds(tmp_path)] == sent


def test_as_many_nodes_are_asked_as_the_strategy_samples(tmp_path: Path) -> None:
    """The sample is drawn anew in every round; the first arrays are for the owner alone."""
    run_covert(tmp_path, lambda: FedAvg(fraction_train=0.5, min_train_nodes=1), LEARNS)
    asked = read_column(tmp_path, "clients")
    assert {len(clients) for clients in asked} == {NODES // 2}
    assert len({tuple(clients) for clients in asked}) > 2
    first = tmp_path / "private" / "first_arrays.safetensors"
    assert first.stat().st_mode & 0o777 == 0o600


def test_an_own_rule_of_acceptance(tmp_path: Path) -> None:
    grid = InProcessGrid(make_app(), NODES, connected=lambda n: range(1 + n % NODES))
    run_covert(tmp_path, None, LEARNS, grid=grid, accepts=lambda examples, replies: replies >= 3)
    assert read_column(tmp_path, "accepted") == [1 + n % NODES >= 3 for n in LEARNS]
    assert read_column(tmp_path, "oracle_state") == [[0, 1, 1, 2][n % NODES] for n in LEARNS]


def test_the_policy_of_a_run_file_is_followed(tmp_path: Path) -> None:
    run_covert(tmp_path, FedAvg, [], policy=None, changes={"policy": {"kind": "always-learn"}})
    assert read_column(tmp_path, "action") == ["learn"] * ROUNDS


def test_a_round_waits_as_long_as_in_flowers_own_strategies(tmp_path: Path) -> None:
    witness = Witness()
    run_covert(tmp_path / "run", FedAvg, [1], app=make_app(witness))
    longest = inspect.signature(Strategy.start).parameters["timeout"].default
    assert {shown["metadata"]["ttl"] for shown in witness.seen} == {longest} == {3600.0}


def test_a_fraction_of_the_nodes_is_sampled_anew_in_every_round(tmp_path: Path) -> None:
    witness = Witness()

    def make_strategy() -> Strategy:
        return FedAvg(fraction_train=0.5, min_train_nodes=1, fraction_evaluate=0.0)

    run_covert(tmp_path / "run", make_strategy, [1, 3], app=make_app(witness))
    asked: dict[int, set[int]] = {}
    for shown, (_, number, _) in zip(witness.seen, witness.weights, strict=True):
        asked.setdefault(number, set()).add(shown["node"]["partition-id"])
    assert {len(nodes) for nodes in asked.values()} == {NODES // 2}
    assert len({frozenset(nodes) for nodes in asked.values()}) > 1
