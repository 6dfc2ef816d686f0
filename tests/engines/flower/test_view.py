"""What clients see does not depend on what is done, except for the values of the weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import (
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    Krum,
    Strategy,
)

from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.schemes.flips import span
from tests.support.faulty_grid import FaultyGrid
from tests.support.flower_runs import (
    NODES,
    ROUNDS,
    Witness,
    make_app,
    make_first,
    run_covert,
    run_exchangeable,
)
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import read_folder, read_rounds

pytestmark = pytest.mark.slow

STRATEGIES: dict[str, Callable[[], Strategy] | None] = {
    "built-in": None,
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "Krum": lambda: Krum(num_malicious_nodes=1),
    "some nodes": lambda: FedAvg(fraction_train=0.5, min_train_nodes=1),
}
# Rounds that learn: all, none, some.
SCHEDULES = [range(1, ROUNDS + 1), [], [1, 4, 5]]


Spoil = Callable[[int, int, Message], Message]


def watch(
    out: Path,
    make_strategy: Callable[[], Strategy] | None,
    learns: Any,
    *,
    spoil: Spoil | None = None,
    **options: Any,
) -> Witness:
    witness = Witness()
    grid = FaultyGrid(
        make_app(witness),
        NODES,
        spoil=spoil,
        # Nodes come and go, and some rounds fail.
        connected=lambda number: range(NODES) if number % 3 else range(2),
        faults=lambda number, client: "error" if number in (3, 6) else None,
    )
    run_covert(
        out, make_strategy, learns, grid=grid, round_settings=RoundSettings(patience=0.0), **options
    )
    return witness


@pytest.mark.parametrize("name", mark_slow(STRATEGIES, ["FedAvg", "FedAdam", "Krum"]))
def test_nothing_but_values_depends_on_the_action(name: str, tmp_path: Path) -> None:
    start = {"train_config": ConfigRecord({"lr": 0.1, "epochs": 2})}
    witnesses = [
        watch(tmp_path / str(number), STRATEGIES[name], learns, start=start)
        for number, learns in enumerate(SCHEDULES)
    ]
    actions = [[r["action"] for r in read_rounds(tmp_path / str(n))] for n in range(3)]
    assert len({tuple(taken) for taken in actions}) == 3
    for other in witnesses[1:]:
        assert other.seen == witnesses[0].seen
    assert any(other.weights != witnesses[0].weights for other in witnesses[1:])
    for shown in witnesses[0].seen:
        assert {key for key, _ in shown["config"]["config"]} <= {
            "lr", "epochs", "server-round", "proximal-mu"
        }  # fmt: skip
        assert shown["metadata"]["message_type"] == "train"


def mark(number: int, client: int, reply: Message) -> Message:
    """Client 0 answers in a form that it would know again: order in memory, bytes, names."""
    if client == 0 and reply.has_content():
        [key] = reply.content.array_records
        marked = {}
        for name, array in list(reply.content.array_records[key].items())[::-1]:
            turned = Array(np.asfortranarray(array.numpy()))
            assert name != "0.weight" or b"'fortran_order': True" in turned.data
            marked[name] = Array(turned.dtype, tuple(turned.shape), "my own", turned.data)
        reply.content[key] = ArrayRecord(marked)
    return reply


@pytest.mark.parametrize(
    "name", mark_slow(["built-in", "FedAvg", "FedProx", "FedMedian", "Krum"], ["built-in", "Krum"])
)
def test_a_client_does_not_meet_the_form_of_its_replies_again(name: str, tmp_path: Path) -> None:
    witnesses = [
        watch(tmp_path / str(number), STRATEGIES[name], learns, spoil=mark)
        for number, learns in enumerate(SCHEDULES)
    ]
    for other in witnesses:
        assert other.seen == witnesses[0].seen
    assert "fortran_order': False" in repr(witnesses[0].seen[0]["headers"])
    assert not any("fortran_order': True" in repr(shown["headers"]) for shown in witnesses[0].seen)
    used = [read_rounds(tmp_path / "0")[number] for number in (0, 1, 3)]
    assert all(record["updated"] and not record["rejected"] for record in used)


class Plateau(FedAvg):
    """Halves the clients' learning rate where their evaluations do not get better."""

    rate: float = 0.1
    best: Any = -np.inf

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] = self.rate
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
        metrics = super().aggregate_evaluate(server_round, replies)
        accuracy: Any = -np.inf if metrics is None else metrics["accuracy"]
        self.rate, self.best = self.rate / (1 + (accuracy <= self.best)), max(self.best, accuracy)
        return metrics


@pytest.mark.slow
def test_settings_do_not_follow_evaluations(tmp_path: Path) -> None:
    witnesses = [
        watch(tmp_path / str(number), Plateau, learns, evaluate=True)
        for number, learns in enumerate(SCHEDULES)
    ]
    assert all(other.seen == witnesses[0].seen for other in witnesses)


def test_evaluation_is_of_the_query_and_alike_on_both_arms(tmp_path: Path) -> None:
    witnesses = [
        watch(tmp_path / str(number), FedAvg, learns, evaluate=True)
        for number, learns in enumerate(SCHEDULES)
    ]
    assert all(other.seen == witnesses[0].seen for other in witnesses)
    for witness in witnesses:
        queries = {number: sent for kind, number, sent in witness.weights if kind == "train"}
        evaluated = [entry for entry in witness.weights if entry[0] == "evaluate"]
        assert evaluated
        assert all(queries[number] == sent for _, number, sent in evaluated)


def test_stock_strategies_show_more(tmp_path: Path) -> None:
    """The baseline, and that the comparison can fail: kinds change, evaluation runs ahead."""
    witness = Witness()
    grid = InProcessGrid(make_app(witness), NODES)
    FedAdam().start(grid=grid, initial_arrays=make_first(), num_rounds=3)
    kinds = [{entry[1] for entry in shown["arrays"]["arrays"]} for shown in witness.seen]
    assert {"float32"} in kinds and {"float64"} in kinds
    queries = {number: sent for kind, number, sent in witness.weights if kind == "train"}
    later = [sent for kind, number, sent in witness.weights if kind == "evaluate" and number == 1]
    assert queries[1] not in later and queries[2] in later


def test_counters_and_statistics_are_sent_as_they_were_at_first(tmp_path: Path) -> None:
    first = make_first()
    first["norm.num_batches_tracked"] = Array(np.array(0))
    first["norm.running_mean"] = Array(np.zeros(4, dtype=np.float32))
    witness, sent = Witness(), []

    def count(message: Message, context: Any) -> dict[str, Any]:
        arrays = next(iter(message.content.array_records.values()))
        sent.append(arrays)
        parts = {name: array.numpy() for name, array in arrays.items()}
        return {name: np.asarray(part + part.dtype.type(1)) for name, part in parts.items()}

    run_covert(tmp_path, FedAvg, [1, 2, 5], app=make_app(witness, count), arrays=first)
    assert len(sent) == ROUNDS * NODES
    for arrays in sent:
        assert list(arrays) == list(first)
        assert arrays["norm.num_batches_tracked"].data == first["norm.num_batches_tracked"].data
        assert arrays["norm.running_mean"].data == first["norm.running_mean"].data
    assert len({arrays["0.weight"].data for arrays in sent}) > 2


def test_settings_come_from_a_strategy_that_never_sees_replies(tmp_path: Path) -> None:
    class Chatty(FedAvg):
        """Tells its clients how often it has aggregated: a count of a trajectory's visits."""

        count = 0

        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            config["visits"] = self.count
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            self.count += 1
            return super().aggregate_train(server_round, replies)

    seen = [
        watch(tmp_path / str(number), Chatty, learns).seen
        for number, learns in enumerate(SCHEDULES)
    ]
    assert all(other == seen[0] for other in seen)
    assert {dict(shown["config"]["config"])["visits"] for shown in seen[0]} == {"0"}


def test_no_secret_is_in_what_clients_receive(tmp_path: Path) -> None:
    witness = Witness()
    run_covert(tmp_path, None, [1, 2], app=make_app(witness), seed=918273645)
    assert "918273645" in (tmp_path / "private" / "seed.json").read_text()
    assert "918273645" not in repr(witness.seen)
    words = ("policy", "decoy", "learn", "obfuscate", "trajectory", "seed", "backlog")
    assert not [word for word in words if word in repr(witness.seen)]


def test_a_seed_is_drawn_where_none_is_given(tmp_path: Path) -> None:
    for number in range(2):
        run_covert(tmp_path / str(number), None, [1], seed=None)
    seeds = {(tmp_path / str(n) / "private" / "seed.json").read_text() for n in range(2)}
    assert len(seeds) == 2
    assert (tmp_path / "0" / "private" / "seed.json").stat().st_mode & 0o077 == 0


def test_arrays_of_other_kinds_keep_them(tmp_path: Path) -> None:
    first = make_first()
    doubles = ArrayRecord({k: Array(a.numpy().astype(np.float64)) for k, a in first.items()})
    witness = Witness()
    result = run_covert(tmp_path, FedAdam, [1, 2], app=make_app(witness), arrays=doubles)
    kinds = {entry[1] for shown in witness.seen for entry in shown["arrays"]["arrays"]}
    assert kinds == {"float64"} == {array.dtype for array in result.arrays.values()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trajectories", "name"),
    mark_slow(
        itertools.product((2, 4), ("built-in", "FedAvg", "FedAdam", "Krum")),
        fast=[(2, "FedAvg"), (4, "built-in"), (2, "Krum")],
    ),
)
def test_nothing_but_values_depends_on_the_choice(
    trajectories: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witnesses, slots = [], []
    for choice in range(trajectories):
        monkeypatch.setattr(
            "covertfl.schemes.exchangeable.draw_choice", lambda *_, taken=choice: taken
        )
        witnesses.append(Witness())
        out = tmp_path / str(choice)
        grid = FaultyGrid(
            make_app(witnesses[-1]),
            NODES,
            connected=lambda number: range(NODES) if number % 3 else range(2),
            faults=lambda number, client: "error" if number in (3, 6) else None,
        )
        run_exchangeable(
            out, STRATEGIES[name], trajectories=trajectories, grid=grid,
            round_settings=RoundSettings(patience=0.0), evaluate=True,
        )  # fmt: skip
        assert sum(record["updated"] for record in read_rounds(out)) >= 2
        slots.append([record["trajectory"] ^ choice for record in read_rounds(out)])
    assert all(other == slots[0] for other in slots)
    for other in witnesses[1:]:
        assert other.seen == witnesses[0].seen
        assert repeats(other) == repeats(witnesses[0])
        assert other.weights != witnesses[0].weights


def repeats(witness: Witness) -> list[int]:
    """For each query, the first one with the same weights."""
    sent = [weights for _, _, weights in witness.weights]
    return [sent.index(weights) for weights in sent]


def find_slopes(parts: dict[str, Any], inputs: Any, labels: Any) -> list[Any]:
    """The gradient of a perceptron's cross-entropy, parameter by parameter."""
    first, first_bias, last, last_bias = parts.values()
    hidden = np.maximum(inputs @ first.T + first_bias, 0)
    error = (1 / (1 + np.exp(-(hidden @ last.T + last_bias))) - labels) / len(labels)
    back = (error @ last) * (hidden > 0)
    return [back.T @ inputs, back.sum(axis=0), error.T @ hidden, error.sum(axis=0)]


def make_trainer(flips: Any) -> Any:
    """A client that takes steps of gradient descent on data of its own, with flipped inputs."""

    def train(message: Message, context: Any) -> dict[str, Any]:
        arrays = next(iter(message.content.array_records.values()))
        generator = np.random.default_rng(int(context.node_config["partition-id"]))
        inputs = generator.normal(size=(40, 3)).astype(np.float32)
        labels = (inputs @ np.array([[1.0], [-1.0], [0.5]]) > 0).astype(np.float32)
        moved = {key: array.numpy().copy() for key, array in arrays.items()}
        for _ in range(3):
            slopes = find_slopes(moved, inputs * flips, labels)
            for key, slope in zip(moved, slopes, strict=True):
                moved[key] -= np.float32(0.5) * slope
        return moved

    return train


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trajectories", "name"),
    mark_slow(
        itertools.product((2, 4), ("built-in", "FedAdam", "FedMedian")),
        fast=[(2, "FedAdam"), (4, "built-in")],
    ),
)
def test_flipped_data_and_another_choice_give_the_same_weights(
    trajectories: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an eavesdropper without data sees does not tell which trajectory is the true one."""
    # Which replies a move uses is drawn by round, and another choice asks in other rounds.
    monkeypatch.setattr("covertfl.schemes.exchangeable.find_level", lambda *_, **__: None)
    signs: list[Any] = []

    def note(*args: Any, **keywords: Any) -> Any:
        signs.append(span(*args, **keywords))
        return signs[-1]

    monkeypatch.setattr("covertfl.schemes.exchangeable.span", note)
    public, flips = [], np.ones(3, dtype=np.float32)
    for choice in range(trajectories):
        monkeypatch.setattr(
            "covertfl.schemes.exchangeable.draw_choice", lambda *_, taken=choice: taken
        )
        out = tmp_path / str(choice)
        flips = signs[0][choice] if signs else flips
        grid = InProcessGrid(make_app(train=make_trainer(flips)), NODES)
        run_exchangeable(out, STRATEGIES[name], trajectories=trajectories, grid=grid)
        public.append(read_folder(out / "public"))
        assert sum(record["updated"] for record in read_rounds(out)) == 3
    assert len(public[0]) > 3 * trajectories
    assert all(other == public[0] for other in public)
