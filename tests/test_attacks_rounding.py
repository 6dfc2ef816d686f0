"""Attacks on rounding: which trajectory moves coordinates that nobody trains by a few last bits?

An average of 32-bit replies differs from equal replies in the last bits, so that pixels which are
dark in all images drift on a trajectory that is averaged, and stay on one that is not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    Strategy,
)
from hypothesis import given
from hypothesis import strategies as st

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decoys.update_rule import average_results
from covertfl.engines.flower.array_form import make_float_form
from covertfl.engines.flower.client_app import make_client_app
from covertfl.flower import CovertStrategy, InProcessGrid
from covertfl.kernels.weights import Layout
from covertfl.runs.learner import Reply, average_replies, sift_replies
from covertfl.runs.public import PublicTranscript
from covertfl.runs.settings import RunSettings
from covertfl.runs.task import find_task
from covertfl.training import train
from tests.support.attacks import attack_seeds, require_guess
from tests.support.flower_runs import NODES, ROUNDS, make_app, make_first, nudge, run_covert
from tests.support.seen_queries import SeenQuery, listen
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import make_run, merge, read_column, read_rounds

CLIENTS, CLASSES = 6, 10
# Moves of a run of at most so many units in the last place are a drift.
MOST_DRIFT = 64.0
DECOYS = ("public", "mirrored", "random", "adversarial")


@pytest.fixture(autouse=True)
def collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks for it with every conversion."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


class Own(FedAvg):
    """A user's own strategy, of which nothing is known."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, list(replies))


def clip(inner: Strategy) -> Strategy:
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1e6, CLIENTS)


STRATEGIES: dict[str, Callable[[], Strategy] | None] = {
    "built-in": None,
    "FedAvg": FedAvg,
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.5),
    "FedAdam": lambda: FedAdam(eta=0.01),
    "FedYogi": lambda: FedYogi(eta=0.01),
    "FedAdagrad": lambda: FedAdagrad(eta=0.01),
    "Krum": lambda: Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": Bulyan,
    "FedMedian": FedMedian,
    "FedTrimmedAvg": FedTrimmedAvg,
    "own": Own,
    "own metrics": lambda: FedAvg(train_metrics_aggr_fn=lambda *_: MetricRecord()),
    "clipped": lambda: clip(FedAvg()),
}


def make_digits(kind: str, seed: int, **changes: Any) -> RunSettings:
    """A run on the digits in which every round with replies is accepted."""
    settings: dict[str, Any] = {
        "seed": seed,
        "rounds": 10,
        "updates": 5,
        "policy": {"kind": "random"},
        "decoy": {"kind": kind},
        "federation": {"acceptance": "model", "participation": [2, 4, CLIENTS]},
        "oracle": {"success": [1.0, 1.0, 1.0]},
    }
    return make_run(**merge(settings, changes))


def run_digits(settings: RunSettings, name: str, out: Path) -> list[SeenQuery]:
    """Run the digits over Flower and return the queries; trajectory 0 is the true one."""
    grid = InProcessGrid(make_client_app(settings), CLIENTS)
    CovertStrategy(STRATEGIES[name], run=settings, out=out, seed=settings.seed + 1).start(grid=grid)
    return read_queries(out)


def read_queries(out: Path) -> list[SeenQuery]:
    """All queries of a run with the trajectories that its owner knows: a strong attacker's view."""
    transcript = PublicTranscript(out / "public")
    queries = []
    for record in read_rounds(out):
        parts = sorted(transcript.read_weights(record["weights"]).items())
        weights = np.concatenate([values.ravel() for _, values in parts])
        queries.append(SeenQuery(record["round"], record["trajectory"], weights, None))
    return queries


def find_dead() -> BoolArray:
    """Coordinates of a logistic model whose pixel is dark in all images of clients and server."""
    data = find_task(make_digits("public", 0))
    is_dark = ~np.concatenate([data.train.features, data.public.features]).any(axis=0)
    return np.concatenate([np.zeros(CLASSES, dtype=bool), np.tile(is_dark, CLASSES)])


def require_still(queries: Sequence[SeenQuery]) -> None:
    """All trajectories have moved, and on dead coordinates none of them ever did."""
    is_dead = find_dead()
    assert is_dead.sum() == 3 * CLASSES
    for trajectory in (0, 1):
        own = [query.weights for query in queries if query.trajectory == trajectory]
        assert len({weights.tobytes() for weights in own}) > 2
        for weights in own:
            assert weights[is_dead].tobytes() == own[0][is_dead].tobytes()


CASES = [("FedAvg", kind) for kind in DECOYS]
CASES += [(name, kind) for name, kind in zip(STRATEGIES, itertools.cycle(DECOYS), strict=False)]


@pytest.mark.parametrize(
    ("name", "kind"),
    mark_slow(dict.fromkeys(CASES), [("FedAvg", "public"), ("FedYogi", "mirrored")]),
)
def test_coordinates_that_nobody_trains_stay_on_all_trajectories(
    name: str, kind: str, tmp_path: Path
) -> None:
    require_still(run_digits(make_digits(kind, 3), name, tmp_path))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
@pytest.mark.parametrize("kind", mark_slow(DECOYS, ["public", "mirrored"]))
def test_they_stay_in_the_simulator(kind: str, algorithm: str, tmp_path: Path) -> None:
    train(make_digits(kind, 3, federation={"algorithm": algorithm}), tmp_path)
    require_still(read_queries(tmp_path))


def count_drifts(queries: Sequence[SeenQuery]) -> FloatArray:
    """Coordinates of each trajectory that are a few last bits away from where they started."""
    drifts = np.zeros(2)
    for trajectory in (0, 1):
        own = np.stack([query.weights for query in queries if query.trajectory == trajectory])
        first = own[0].astype(np.float64)
        units = np.abs(own - first).max(axis=0) / np.spacing(np.abs(own[0]))
        drifts[trajectory] = np.sum((units > 0.0) & (units <= MOST_DRIFT))
    return drifts


def measure_rounding(queries: Sequence[SeenQuery]) -> FloatArray:
    """Mean shares of coordinates that moved by rounding: figures of the eavesdropper."""
    order = list(dict.fromkeys(query.trajectory for query in queries))
    seen = [replace(query, trajectory=order.index(query.trajectory)) for query in queries]
    return listen("rounding", seen).figures()["rounding"][np.argsort(order)]


def share_guess(figures: FloatArray) -> float:
    """1 if the largest figure is that of the true trajectory, 1/2 if both are equal."""
    return 0.5 * (1.0 + float(np.sign(figures[0] - figures[1])))


@pytest.mark.slow
def test_rounding_does_not_name_the_true_trajectory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    runs, right = attack_seeds(), np.zeros(2)
    names = list(STRATEGIES)
    for seed in range(runs):
        name, kind = names[seed % len(names)], DECOYS[seed % len(DECOYS)]
        queries = run_digits(make_digits(kind, 100 + seed), name, tmp_path / str(seed))
        right += [share_guess(measure_rounding(queries)), share_guess(count_drifts(queries))]
    require_guess(record_property, "rounding of moves", right[0], runs)
    require_guess(record_property, "drift of coordinates", right[1], runs)


counts = st.lists(st.integers(1, 2**20), min_size=1, max_size=12)


@given(st.floats(-(2.0**60), 2.0**60, width=32), counts)
def test_the_average_of_equal_replies_is_their_value(value: float, examples: list[int]) -> None:
    values = np.full(3, value, dtype=np.float32)
    replies = [Reply(client, values, count) for client, count in enumerate(examples)]
    form = make_float_form(Layout(("weight",), ((3,),)))
    record = ArrayRecord(form.write(values))
    for average in (
        average_replies(sift_replies(replies, 3, 2**20)),
        average_results([values] * len(examples), examples).astype(np.float32),
        form.average([record] * len(examples), examples),
    ):
        assert average.tolist() == values.tolist()


def test_averages_are_the_simulators() -> None:
    """In any order of arrival, and whatever strategy of Flower's averages."""
    generator = np.random.default_rng(5)
    values = generator.normal(size=(7, 40)).astype(np.float32)
    examples = generator.integers(1, 1000, size=7).tolist()
    form = make_float_form(Layout(("weight", "bias"), ((4, 9), (4,))))
    records = [ArrayRecord(form.write(vector)) for vector in values]
    replies = [Reply(*given) for given in zip(range(7), values, examples, strict=True)]
    expected = average_replies(sift_replies(replies[::-1], 40, 1000))
    assert form.average(records, examples).tobytes() == expected.tobytes()


def test_zeros_have_no_sign(tmp_path: Path) -> None:
    """Pruned weights are often -0.0, and a mean of them is 0.0."""
    first = {name: array.numpy() for name, array in make_first().items()}
    first["0.weight"] = -0.0 * np.abs(first["0.weight"])
    arrays = ArrayRecord({name: Array(values) for name, values in first.items()})

    def prune(message: Message, context: Context) -> dict[str, Any]:
        return {**nudge(message, context), "0.weight": first["0.weight"]}

    for name in ("built-in", "FedAvg", "Krum"):
        run_covert(
            tmp_path / name, STRATEGIES[name], [1, 2, 5], app=make_app(train=prune), arrays=arrays
        )
        for query in read_queries(tmp_path / name):
            assert not np.signbit(query.weights[query.weights == 0.0]).any()


def count_replies(make: Callable[[Any], Strategy], out: Path) -> list[int]:
    """Numbers of replies that a strategy's own function for metrics is given."""
    calls: list[int] = []

    def note(contents: Any, key: str) -> MetricRecord:
        calls.append(len(contents))
        assert all(content["metrics"]["train_loss"] == 0.5 for content in contents)
        return MetricRecord()

    run_covert(out, lambda: make(note), [1, 3, 4])
    return calls


def test_own_metrics_are_given_all_replies(tmp_path: Path) -> None:
    calls = count_replies(lambda note: FedAvg(train_metrics_aggr_fn=note), tmp_path)
    # For the truth, for the decoy, and for what comes back to the user.
    assert calls == [NODES] * 3 * ROUNDS


def fail_in(rounds: Sequence[int]) -> type[Strategy]:
    """A strategy whose aggregations fail in some rounds, on all trajectories."""

    class Fails(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            if int(replies[0].metadata.group_id) in rounds:
                raise AggregationError("not now")
            return super().aggregate_train(server_round, replies)

    return Fails


@pytest.mark.parametrize("learns", [range(1, ROUNDS + 1), [], [1, 3, 4]])
def test_a_round_whose_aggregation_fails_is_not_accepted(
    learns: Sequence[int], tmp_path: Path
) -> None:
    run_covert(tmp_path, fail_in((2, 3, 6)), learns)
    expected = [number not in (2, 3, 6) for number in range(1, ROUNDS + 1)]
    assert read_column(tmp_path, "accepted") == expected
    updated = [number in learns for number in range(1, ROUNDS + 1)]
    assert read_column(tmp_path, "updated") == np.logical_and(expected, updated).tolist()


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("engine", ["simulated", "flower"])
@pytest.mark.parametrize("policy", ["always-learn", "always-obfuscate"])
def test_a_step_that_is_not_finite_is_not_accepted(
    engine: str, policy: str, tmp_path: Path
) -> None:
    optimizer = {"name": "sgd", "lr": 1e300}
    changes: dict[str, Any] = {
        "federation": {"algorithm": "fedsgd", "optimizer": optimizer},
        "policy": {"kind": policy},
        "decoy": {"gated": True},
        "engine": {"kind": engine},
        "rounds": 3,
        "updates": 3,
    }
    train(make_digits("mirrored", 3, **changes), tmp_path)
    assert read_column(tmp_path, "accepted") == [False] * 3
    assert len({query.weights.tobytes() for query in read_queries(tmp_path)}) == 1
