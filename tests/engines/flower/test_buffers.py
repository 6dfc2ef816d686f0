"""Models with buffers: what is measured comes from the replies, on every trajectory alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Result, Strategy
from torch import nn

from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.strategy import CovertStrategy
from covertfl.kernels.autograd.module import measure_losses
from covertfl.kernels.job import Examples
from covertfl.tasks.task import TrainingTask, make_server_task
from tests.support.buffered_models import TOKENS, WORDS, ResNet18, TinyTransformer
from tests.support.flower_runs import NODES, ROUNDS, RUN, Scheduled, make_app, nudge, read_round
from tests.support.slow_cases import mark_slow

DECOYS = ("public", "mirrored", "random", "adversarial")
STATISTICS = ("1.running_mean", "1.running_var")


@pytest.fixture(autouse=True)
def collects_no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower asks for it with every conversion."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


def make_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def make_normed_task() -> TrainingTask:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(31, 3)).astype(np.float32)  # a batch of one at the end
    data = Examples(features, (features[:, 0] > 0).astype(np.float32))
    return make_server_task(make_normed, "binary", data, data, clients=NODES, examples=40)


def draw_first(make_model: Callable[[], nn.Module]) -> ArrayRecord:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return ArrayRecord(make_model().state_dict())


class Seen:
    """The queries of all rounds and the replies of all clients, by round."""

    def __init__(self) -> None:
        self.queries: dict[int, dict[str, Any]] = {}
        self.replies: dict[int, list[dict[str, Any]]] = {}

    def train(self, message: Message, context: Context) -> dict[str, Any]:
        """Train as a client might, and count the batches."""
        number, arrays = read_round(message), next(iter(message.content.array_records.values()))
        self.queries[number] = {name: array.numpy() for name, array in arrays.items()}
        moved = nudge(message, context)
        moved["1.num_batches_tracked"] = np.array(4)
        moved["1.running_var"] = np.abs(moved["1.running_var"])
        self.replies.setdefault(number, []).append(moved)
        return moved


def run_normed(
    out: Path, make_strategy: Callable[[], Strategy] | None, learns: list[int], **options: Any
) -> tuple[Seen, Result]:
    seen, kind = Seen(), options.pop("kind", "public")
    strategy = CovertStrategy(
        make_strategy,
        run={**RUN, "decoy": {"kind": kind}},
        out=out,
        task=make_normed_task(),
        policy=Scheduled(frozenset(learns)),
        seed=7,
        **options,
    )
    grid = InProcessGrid(make_app(train=seen.train), NODES)
    return seen, strategy.start(grid, draw_first(make_normed), num_rounds=ROUNDS)


MAKERS: dict[str, Callable[[], Strategy] | None] = {
    "built-in": None,
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedMedian": FedMedian,
}
CASES = {f"{name} {kind}": (name, kind) for name, kind in zip(MAKERS, DECOYS, strict=True)}
QUICK = ["FedAvg mirrored"]


@pytest.mark.parametrize("case", mark_slow(CASES, QUICK))
def test_statistics_come_from_the_replies_on_every_trajectory(case: str, tmp_path: Path) -> None:
    """Whatever was sent, the next query of a trajectory has the statistics of its last replies.

    So what a client sees in them, their bits included, has the same rule on both arms.
    """
    name, kind = CASES[case]
    learns = [1, 2, 5, 8]
    seen, _ = run_normed(tmp_path, MAKERS[name], learns, kind=kind)
    combine = np.median if name == "FedMedian" else np.mean
    compared = 0
    for arm in (learns, [number for number in range(1, ROUNDS + 1) if number not in learns]):
        for before, after in itertools.pairwise(arm):
            for array in STATISTICS:
                replies = [reply[array].astype(np.float64) for reply in seen.replies[before]]
                expected = combine(replies, axis=0).astype(np.float32)
                assert seen.queries[after][array].tobytes() == expected.tobytes()
                assert not np.array_equal(expected, seen.queries[before][array])
                compared += 1
    assert compared == 2 * 2 * 3
    counters = {int(query["1.num_batches_tracked"]) for query in seen.queries.values()}
    assert counters == {0}


def test_the_true_statistics_do_not_depend_on_the_decoy(tmp_path: Path) -> None:
    """Rounds of the decoy leave the truth alone, buffers included."""
    results = [
        run_normed(tmp_path / kind, FedAvg, [1, 2, 3], kind=kind)[1].arrays
        for kind in ("public", "mirrored")
    ]
    one, other = ({name: array.data for name, array in arrays.items()} for arrays in results)
    assert one == other
    assert list(one) == list(make_normed().state_dict())


def test_replicas_share_their_buffers(tmp_path: Path) -> None:
    """Behind the pivot a sign flip changes nothing: all queries of a generation have the same."""
    seen, size = Seen(), 2
    scheme = {
        "scheme": "exchangeable",
        "exchangeable": {"trajectories": size},
        "horizon": {"rounds": 8, "updates": 3},
    }
    strategy = CovertStrategy(
        FedAvg, run={**RUN, **scheme}, out=tmp_path, task=make_normed_task(), seed=7
    )
    strategy.start(InProcessGrid(make_app(train=seen.train), NODES))
    rounds = sorted(seen.queries)
    shown = [seen.queries[number] for number in rounds]
    assert list(shown[0]) == list(make_normed().state_dict())
    for start in range(0, 2 * size, size):
        generation = shown[start : start + size]
        assert len({query["0.weight"].tobytes() for query in generation}) == size
        for name in (*STATISTICS, "3.weight", "1.num_batches_tracked"):
            assert len({query[name].tobytes() for query in generation}) == 1
    assert shown[0]["1.running_mean"].tobytes() != shown[size]["1.running_mean"].tobytes()


def make_images(number: int, seed: int) -> Examples:
    """Images of three classes that differ clearly in their colour."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(3, size=number)
    features = generator.normal(size=(number, 3, 16, 16)).astype(np.float32)
    features[np.arange(number), labels] += 4.0
    return Examples(features, labels)


def make_texts(number: int, seed: int) -> Examples:
    """Rows of tokens; those of positive rows are larger on average."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(2, size=number)
    tokens = generator.integers(WORDS // 2, size=(number, TOKENS)) + labels[:, None] * WORDS // 2
    return Examples(tokens.astype(np.float32), labels.astype(np.float32))


def make_torchvision() -> nn.Module:
    made: nn.Module = pytest.importorskip("torchvision").models.resnet18(num_classes=3)
    return made


MODELS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[int, int], Examples]]] = {
    "residual network": (ResNet18, "multiclass", make_images),
    "transformer": (TinyTransformer, "binary", make_texts),
    "torchvision's resnet18": (make_torchvision, "multiclass", make_images),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_large_models_with_buffers_train_covertly(name: str, tmp_path: Path) -> None:
    """Clients train the module itself from `state_dict` to `state_dict`; the truth learns."""
    make_model, loss, make_data = MODELS[name]
    make_model()
    validation, shown = make_data(150, 9), []

    def train(message: Message, context: Context) -> dict[str, Any]:
        arrays = next(iter(message.content.array_records.values()))
        shown.append({key: array.data for key, array in arrays.items()})
        model = make_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        data = make_data(40, 100 * read_round(message) + int(context.node_config["partition-id"]))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if loss == "multiclass" else 5e-3)
        for start in [0, 10, 20, 30] * 4:  # several passes, so that the processor matters little
            optimizer.zero_grad()
            outputs = model(torch.tensor(data.features[start : start + 10]))
            labels = torch.tensor(data.labels[start : start + 10])
            measure_losses(outputs, labels, loss).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {key: values.numpy() for key, values in model.state_dict().items()}

    task = make_server_task(
        make_model, loss, make_data(60, 8), validation, clients=NODES, examples=40
    )
    strategy = CovertStrategy(
        FedAvg,
        run={**RUN, "decoy": {"kind": "public"}},
        out=tmp_path,
        task=task,
        policy=Scheduled(frozenset([1, 2, 4, 6])),
        seed=7,
    )
    grid, first = InProcessGrid(make_app(train=train), NODES), draw_first(make_model)
    result = strategy.start(grid, first, num_rounds=ROUNDS)
    model = make_model()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    with torch.no_grad():
        outputs = model.eval()(torch.tensor(validation.features)).numpy()
    predicted = outputs[:, 0] > 0.0 if loss == "binary" else outputs.argmax(axis=1)
    assert np.mean(predicted == validation.labels) > 0.7
    whole = [key for key, array in first.items() if array.dtype == "int64"]
    assert whole
    for key in [*whole, *({"mask", "scale"} & set(first))]:
        assert {query[key] for query in shown} == {first[key].data}
