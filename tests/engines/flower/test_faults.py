"""Clients that fail in every way: named, counted, and the training goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAdam, FedAvg, Krum, QFedAvg, Strategy

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Observation
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.strategy_settings import RoundSettings
from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import read_checkpoint
from tests.support.faulty_grid import FaultyGrid
from tests.support.flower_runs import (
    NODES,
    ROUNDS,
    Witness,
    make_app,
    make_first,
    run_covert,
    stop_after,
)
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import read_column, read_rounds

pytestmark = pytest.mark.slow
LEARNS = range(1, ROUNDS + 1)


def arrays_of(reply: Message) -> ArrayRecord:
    return next(iter(reply.content.array_records.values()))


def with_array(change: Callable[[np.ndarray[Any, Any]], Any]) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        arrays = arrays_of(reply)
        arrays["0.weight"] = Array(change(arrays["0.weight"].numpy()))

    return spoil


def with_examples(examples: Any) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord({"num-examples": examples, "train_loss": 0.5})

    return spoil


def poison(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    spoiled = values.copy()
    spoiled[0, 0] = np.nan
    return spoiled


def lie_about_shape(reply: Message) -> None:
    array = arrays_of(reply)["0.weight"]
    huge = np.zeros((4, 4), dtype=np.float32)  # its header says more than its record
    arrays_of(reply)["0.weight"] = Array("float32", array.shape, array.stype, Array(huge).data)


def lie_about_kind(reply: Message) -> None:
    array = arrays_of(reply)["0.weight"]
    doubles = Array(array.numpy().astype(np.float64)).data
    arrays_of(reply)["0.weight"] = Array("float32", array.shape, array.stype, doubles)


def send_garbage(reply: Message) -> None:
    array = arrays_of(reply)["0.weight"]
    garbage = b"\x80\x04" + bytes(len(array.data) - 2)
    arrays_of(reply)["0.weight"] = Array("float32", array.shape, array.stype, garbage)


def send_without(*keys: str) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        for key in keys:
            del reply.content[key]

    return spoil


def drop_array(reply: Message) -> None:
    del arrays_of(reply)["0.bias"]


def add_records(reply: Message) -> None:
    reply.content["more"] = arrays_of(reply)


FAULTS: dict[str, tuple[Callable[[Message], None], str]] = {
    "nan": (with_array(poison), "not finite"),
    "infinity": (with_array(lambda values: values + np.float32(np.inf)), "not finite"),
    "shape": (with_array(lambda values: values[:1]), "wrong shape"),
    "turned": (with_array(lambda values: np.ascontiguousarray(values.T)), "wrong shape"),
    "double": (with_array(lambda values: values.astype(np.float64)), "wrong dtype"),
    "whole": (with_array(lambda values: values.astype(np.int32)), "wrong dtype"),
    "shape in the header": (lie_about_shape, "wrong shape"),
    "kind in the header": (lie_about_kind, "wrong dtype"),
    "garbage": (send_garbage, "wrong type"),
    "missing array": (drop_array, "wrong shape"),
    "many examples": (with_examples(10**12), "too many examples"),
    "negative examples": (with_examples(-4), "bad example count"),
    "examples by half": (with_examples(3.5), "bad example count"),
    "list of examples": (with_examples([3, 4]), "bad example count"),
    "no metrics": (send_without("metrics"), "bad example count"),
    "no arrays": (send_without("arrays"), "wrong type"),
    "nothing": (send_without("metrics", "arrays"), "bad example count"),
    "two records": (add_records, "wrong type"),
}


def make_grid(spoil: Callable[[Message], None], witness: Witness | None = None) -> FaultyGrid:
    """Client 2 spoils its replies of rounds 2 and 5."""

    def change(number: int, client: int, reply: Message) -> Message:
        if client == 2 and number in (2, 5):
            spoil(reply)
        return reply

    return FaultyGrid(make_app(witness), NODES, spoil=change)


@pytest.mark.parametrize("name", mark_slow(FAULTS, list(FAULTS)[::3]))
def test_a_reply_that_cannot_be_used_is_named_and_the_rest_is(name: str, tmp_path: Path) -> None:
    spoil, reason = FAULTS[name]
    make_strategy: Callable[[], Strategy] | None = FedAvg if len(name) % 2 else None
    run_covert(tmp_path, make_strategy, [1, 2, 3, 4], grid=make_grid(spoil))
    rejected = read_column(tmp_path, "rejected")
    assert rejected == [[[2, reason]] if number in (2, 5) else [] for number in LEARNS]
    assert read_column(tmp_path, "examples") == [120 if n in (2, 5) else 160 for n in LEARNS]
    assert read_column(tmp_path, "updated") == [number <= 4 for number in LEARNS]


@pytest.mark.parametrize(
    ("fault", "reason"), [("error", "client error"), ("lost", "no reply"), ("late", "no reply")]
)
def test_clients_that_fail_or_say_nothing(fault: Any, reason: str, tmp_path: Path) -> None:
    grid = FaultyGrid(
        make_app(),
        NODES,
        faults=lambda number, client: fault if (number, client) in {(2, 1), (6, 3)} else None,
    )
    run_covert(tmp_path, FedAdam, [2, 3], grid=grid)
    rejected = read_column(tmp_path, "rejected")
    late = [[1, "stale round"]], [[3, "stale round"]]
    assert rejected[1] == [[1, reason]] and rejected[5] == [[3, reason]]
    assert (rejected[2], rejected[6]) == (late if fault == "late" else ([], []))
    assert len(read_rounds(tmp_path)) == ROUNDS


def test_a_stale_reply_is_not_used_in_place_of_a_fresh_one(tmp_path: Path) -> None:
    clean, late = tmp_path / "clean", tmp_path / "late"
    faults = {"lost": clean, "late": late}
    for fault, out in faults.items():

        def fail(number: int, client: int, fault: Any = fault) -> Any:
            return fault if (number, client) == (3, 0) else None

        run_covert(out, None, LEARNS, grid=FaultyGrid(make_app(), NODES, faults=fail))
    assert read_rounds(clean, "public/rounds.jsonl") == read_rounds(late, "public/rounds.jsonl")


class NeedsLoss(FedAvg):
    """Aggregates only where every reply says its loss."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        for reply in replies:
            if "train_loss" not in reply.content["metrics"]:
                raise AggregationError("no loss")
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize(
    "metrics",
    [
        {"num-examples": 40},
        {"num-examples": 40, "train_loss": [0.5, 0.5]},
        {"num-examples": 40, "train_loss": float("nan")},
    ],
)
def test_odd_metrics_do_not_stop_the_wrapped_strategy(
    metrics: dict[str, Any], tmp_path: Path
) -> None:
    def omit(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord(metrics)

    run_covert(tmp_path, NeedsLoss, LEARNS, grid=make_grid(omit))
    rejected = read_column(tmp_path, "rejected")
    assert rejected == [[[2, "wrong metrics"]] if n in (2, 5) else [] for n in LEARNS]
    moved = [r["weights"] for r in read_rounds(tmp_path, "public/rounds.jsonl")]
    assert len(set(moved)) == ROUNDS


def test_more_than_was_asked_for_is_left_out(tmp_path: Path) -> None:
    def chat(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord(
            {"num-examples": 40, "train_loss": 0.5, "more": 1.0}
        )
        reply.content["note"] = ConfigRecord({"text": "hello"})

    run_covert(tmp_path, NeedsLoss, LEARNS, grid=make_grid(chat))
    assert not any(read_column(tmp_path, "rejected"))
    assert read_column(tmp_path, "updated") == [True] * ROUNDS


def test_a_strategy_that_cannot_aggregate_leaves_the_weights(tmp_path: Path) -> None:
    class Never(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            raise AggregationError("never")

    result = run_covert(tmp_path, Never, LEARNS)
    first = make_first()
    assert all(array.data == first[name].data for name, array in result.arrays.items())
    assert len(read_rounds(tmp_path)) == ROUNDS


def send_strings(reply: Message) -> None:
    arrays_of(reply)["norm.mean"] = Array(np.array(["a"] * 4))


def send_longer(reply: Message) -> None:
    arrays_of(reply)["norm.mean"] = Array(np.zeros(7, dtype=np.float32))


def send_rubbish(reply: Message) -> None:
    arrays_of(reply)["norm.mean"] = Array("float32", (4,), "numpy.ndarray", b"rubbish")


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [send_strings, send_longer, send_rubbish])
@pytest.mark.parametrize("make_strategy", [FedAvg, lambda: Krum(num_malicious_nodes=1)])
def test_what_a_client_makes_of_statistics_is_not_looked_at(
    spoil: Any, make_strategy: Any, tmp_path: Path
) -> None:
    runs = {"fine": make_grid(lambda reply: None), "odd": make_grid(spoil)}
    for name, grid in runs.items():
        first = make_first()
        first["norm.mean"] = Array(np.zeros(4, dtype=np.float32))
        run_covert(tmp_path / name, make_strategy, LEARNS, grid=grid, arrays=first)
        assert read_column(tmp_path / name, "updated") == [True] * ROUNDS
    fine, odd = (read_rounds(tmp_path / name, "public/rounds.jsonl") for name in runs)
    assert fine == odd


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, ZeroDivisionError])
def test_no_error_of_a_strategy_ends_the_training(error: type[Exception], tmp_path: Path) -> None:
    """It is as it was before the round that failed, and so are weights, counts and queue."""

    class Fails(FedAdam):
        seen = 0

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            moved = super().aggregate_train(server_round, replies)
            self.seen += 1
            if any(reply.content["metrics"]["num-examples"] == 39 for reply in replies):
                raise error("never")
            return moved

    run_covert(tmp_path / "odd", Fails, LEARNS, grid=make_grid(with_examples(39)))
    assert read_column(tmp_path / "odd", "updated") == [n not in (2, 5) for n in LEARNS]
    assert read_column(tmp_path / "odd", "backlog_after") == [7, 7, 6, 5, 5, 4, 3, 2]
    kept = read_checkpoint(tmp_path / "odd")
    assert kept is not None and kept.facts["kept"]["steps"][0] == 6
    assert kept.facts["kept"]["strategy-0/seen"] == {"plain": 6}
    # The same as a run in which nobody answered in those rounds.
    lost = FaultyGrid(make_app(), NODES, faults=lambda n, _: "error" if n in (2, 5) else None)
    run_covert(tmp_path / "lost", Fails, LEARNS, grid=lost)
    same = [read_rounds(tmp_path / name, "public/rounds.jsonl") for name in ("odd", "lost")]
    assert same[0] == same[1]


def test_a_loss_that_spoils_the_average_leaves_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # Flower asks for it with every conversion

    def spoil(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord({"num-examples": 40, "train_loss": -1e300})

    run_covert(tmp_path, lambda: QFedAvg(0.1), LEARNS, grid=make_grid(spoil))
    assert read_column(tmp_path, "updated") == [n not in (2, 5) for n in LEARNS]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["updates_done"], summary["updates_missing"]) == (6, 2)
    sent = [record["weights"] for record in read_rounds(tmp_path, "public/rounds.jsonl")]
    assert [sent[n] == sent[n - 1] for n in range(1, ROUNDS)] == [n in (2, 5) for n in range(1, 8)]


@pytest.mark.parametrize(
    "metrics",
    [
        {"num-examples": 40, "x": 1},
        {"num-examples": 40, "accuracy": [0.1]},
        {"num-examples": 40, "accuracy": float("nan")},
        {"num-examples": 40, "accuracy": 10**400},
        {"num-examples": 0, "accuracy": 5.0},
        {"num-examples": 10**12, "accuracy": 5.0},
        {"num-examples": [1], "accuracy": 5.0},
        {"accuracy": 5.0},
        None,
    ],
)
def test_an_evaluation_that_cannot_be_used_is_left_out(
    metrics: dict[str, Any] | None, tmp_path: Path
) -> None:
    def change(number: int, client: int, reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            good: dict[str, Any] = {"num-examples": 40, "accuracy": 0.25}
            told = metrics if client == 2 else good
            reply.content = RecordDict({} if told is None else {"metrics": MetricRecord(told)})
        return reply

    grid = FaultyGrid(make_app(), NODES, spoil=change)
    result = run_covert(tmp_path, FedAvg, LEARNS, grid=grid, evaluate=True)
    told = [record["accuracy"] for record in result.evaluate_metrics_clientapp.values()]
    assert told == pytest.approx([0.25] * ROUNDS)


def test_an_error_over_evaluations_does_not_end_the_training(tmp_path: Path) -> None:
    class Fails(FedAvg):
        def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
            raise ZeroDivisionError

    result = run_covert(tmp_path, Fails, LEARNS, evaluate=True)
    assert not result.evaluate_metrics_clientapp
    assert read_column(tmp_path, "updated") == [True] * ROUNDS


def test_a_client_without_examples_is_absent_which_is_no_fault(tmp_path: Path) -> None:
    run_covert(tmp_path, None, LEARNS, grid=make_grid(with_examples(0)))
    assert not any(read_column(tmp_path, "rejected"))
    assert read_column(tmp_path, "batches")[1] == [4, 4, 0, 4]


def test_rounds_that_nobody_answers_fail_where_patience_ends(tmp_path: Path) -> None:
    gone = {3, 4, 5}
    looked: list[int] = []

    def look(number: int) -> Any:  # with no message no round of the grid passes: looks are counted
        looked.append(number)
        return [] if len(looked) in gone else range(NODES)

    grid = InProcessGrid(make_app(), NODES, connected=look)
    run_covert(tmp_path, None, LEARNS, grid=grid, round_settings=RoundSettings(patience=0.0))
    assert [bool(clients) for clients in read_column(tmp_path, "clients")] == [
        number not in gone for number in LEARNS
    ]
    assert read_column(tmp_path, "updated") == [number not in gone for number in LEARNS]
    assert read_column(tmp_path, "oracle_state") == [0 if n in gone else 2 for n in LEARNS]


def test_a_federation_that_is_gone_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from covertfl.engines.flower import node_numbers

    monkeypatch.setattr(node_numbers, "LOOK_AGAIN", 0.001)
    looked: list[int] = []

    def look(number: int) -> Any:
        looked.append(number)
        return [] if 3 <= len(looked) < 60 else range(NODES)

    run_covert(tmp_path, None, LEARNS, grid=InProcessGrid(make_app(), NODES, connected=look))
    assert read_column(tmp_path, "updated") == [True] * ROUNDS
    assert looked.count(3) == 58


class LearnsIfMany:
    """Learns unless the oracle is in its worst state."""

    def learn_prob(self, observation: Observation) -> FloatArray:
        return np.array(float(int(observation.oracle_state) > 0))


def test_a_round_that_is_cut_off_sends_the_same_query_again(tmp_path: Path) -> None:
    """Whoever is connected afterwards: another query would show two trajectories in one round."""
    witness = Witness()
    died: list[int] = []

    def connected(number: int) -> Any:
        # Fewer are there after the restart: on its own that would be another oracle state.
        return range(1) if died else range(NODES)

    class Killed(BaseException):
        pass

    def spoil(number: int, client: int, reply: Message) -> Message:
        if number == 4 and not died:
            died.append(number)
            raise Killed
        return reply

    options: dict[str, Any] = {
        "policy": LearnsIfMany(),
        "round_settings": RoundSettings(patience=0.0),
    }
    grid = FaultyGrid(make_app(witness), NODES, connected=connected, spoil=spoil)
    with pytest.raises(Killed):
        run_covert(tmp_path, FedAdam, [], grid=grid, **options)
    grid = FaultyGrid(make_app(witness), NODES, connected=connected, spoil=spoil, first_round=4)
    run_covert(tmp_path, FedAdam, [], grid=grid, resume=True, **options)
    fourth = {sent for _, number, sent in witness.weights if number == 4}
    assert len([number for _, number, _ in witness.weights if number == 4]) == 2
    assert len(fourth) == 1
    assert read_column(tmp_path, "round") == list(LEARNS)
    assert read_column(tmp_path, "action") == ["learn"] * 4 + ["obfuscate"] * 4


def test_a_run_whose_seed_is_lost_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_covert(tmp_path, None, LEARNS, on_round=stop_after(1))
    (tmp_path / "private" / "seed.json").unlink()
    with pytest.raises(InvalidInput, match=r"seed\.json is missing"):
        run_covert(tmp_path, None, LEARNS, resume=True)


def test_replies_are_not_believed_from_strangers(tmp_path: Path) -> None:
    """A message that answers none of this round's queries is not used, whatever it says."""

    def forge(number: int, client: int, reply: Message) -> Message:
        if client == 0:
            reply.metadata.__dict__["_reply_to_message_id"] = "f" * 64
        return reply

    run_covert(tmp_path, None, LEARNS, grid=FaultyGrid(make_app(), NODES, spoil=forge))
    assert read_column(tmp_path, "rejected") == [[[0, "stale round"]]] * ROUNDS


def test_contents_are_copies(tmp_path: Path) -> None:
    """A client that changes what it was handed changes nothing for the others."""

    def vandalise(message: Message, context: Any) -> dict[str, Any]:
        arrays = arrays_of(message)
        parts = {name: array.numpy() for name, array in arrays.items()}
        message.content.config_records["config"]["server-round"] = 99
        arrays.clear()
        message.content = RecordDict()
        return parts

    witness = Witness()
    run_covert(tmp_path, None, LEARNS, app=make_app(witness, vandalise))
    assert {number for _, number, _ in witness.weights} == set(LEARNS)
    assert len(witness.weights) == ROUNDS * NODES
