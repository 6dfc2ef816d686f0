"""A user's federation on Flower in this process: small model, plain client apps, covert server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result, Strategy

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Observation
from covertfl.engines.flower.eavesdropper_app import describe_message
from covertfl.flower import CovertStrategy, Examples, InProcessGrid, make_server_task
from tests.support.small_runs import ORACLE

NODES, ROUNDS = 4, 8
RUN: dict[str, Any] = {
    "federation": {
        "participation": [1, 2, 4],
        "batch_size": 10,
        "min_share": 0.25,
        "optimizer": {"name": "sgd", "lr": 0.1},
    },
    "oracle": ORACLE,
    "cost": {"privacy": [1.8, 0.8, 0.3], "learning": {"shape": "quadratic", "scale": 0.6}},
    "horizon": {"rounds": ROUNDS, "updates": ROUNDS},
}


def make_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def make_task() -> Any:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(60, 3)).astype(np.float32)
    data = Examples(features, (features[:, 0] > 0).astype(np.float32))
    return make_server_task(make_model, "binary", data, data, clients=NODES, examples=40)


def make_first() -> ArrayRecord:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return ArrayRecord(make_model().state_dict())


@dataclass(frozen=True)
class Scheduled:
    """Learns in some rounds, by number."""

    rounds: frozenset[int]

    def learn_prob(self, observation: Observation) -> FloatArray:
        number = ROUNDS - np.asarray(observation.rounds_left) + 1
        return np.isin(number, list(self.rounds)).astype(np.float64)


def read_round(message: Message) -> int:
    number = message.content.config_records["config"]["server-round"]
    assert isinstance(number, int)
    return number


@dataclass
class Witness:
    """All that clients are handed, in order."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    weights: list[tuple[str, int, bytes]] = field(default_factory=list)

    def watch(self, message: Message, context: Context) -> None:
        shown = describe_message(message, 0.0)
        del shown["metadata"]["created_at"]  # a time
        shown["node"] = dict(context.node_config)
        shown["run"] = dict(context.run_config)
        self.seen.append(shown)
        arrays = next(iter(message.content.array_records.values()))
        content = b"".join(array.data for array in arrays.values())
        number = read_round(message)
        self.weights.append((message.metadata.message_type, number, content))


Train = Callable[[Message, Context], dict[str, np.ndarray[Any, Any]]]


def nudge(message: Message, context: Context) -> dict[str, np.ndarray[Any, Any]]:
    """Training as a client might do it: every number moves a little, by who and when."""
    arrays = next(iter(message.content.array_records.values()))
    number = read_round(message)
    generator = np.random.default_rng([number, int(context.node_config["partition-id"])])
    moved = {}
    for name, array in arrays.items():
        values = array.numpy()
        step = 0.1 * generator.standard_normal(values.shape) + 0.05
        moved[name] = (values + step).astype(values.dtype)
    return moved


def make_app(witness: Witness | None = None, train: Train = nudge) -> ClientApp:
    """A client app as a user has it."""
    app = ClientApp()

    @app.train()
    def train_app(message: Message, context: Context) -> Message:
        if witness is not None:
            witness.watch(message, context)
        arrays = ArrayRecord({name: Array(part) for name, part in train(message, context).items()})
        metrics = MetricRecord({"num-examples": 40, "train_loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate_app(message: Message, context: Context) -> Message:
        if witness is not None:
            witness.watch(message, context)
        arrays = next(iter(message.content.array_records.values()))
        score = float(sum(array.numpy().sum() for array in arrays.values()))
        metrics = MetricRecord({"num-examples": 40, "accuracy": score})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def run_exchangeable(
    out: Path,
    make_strategy: Callable[[], Strategy] | None,
    *,
    trajectories: int,
    grid: InProcessGrid | None = None,
    rounds: int = 16,
    **options: Any,
) -> Result:
    """Run such a federation with exchangeable replicas, which accepts every round."""
    scheme = {
        "scheme": "exchangeable",
        "exchangeable": {"trajectories": trajectories},
        "horizon": {"rounds": rounds, "updates": 3},
    }
    strategy = CovertStrategy(
        make_strategy, run={**RUN, **scheme}, out=out, task=make_task(), **{"seed": 7, **options}
    )
    return strategy.start(grid=grid or InProcessGrid(make_app(), NODES))


def run_covert(
    out: Path,
    make_strategy: Callable[[], Strategy] | None,
    learns: Sequence[int],
    *,
    app: ClientApp | None = None,
    grid: InProcessGrid | None = None,
    changes: dict[str, Any] | None = None,
    arrays: ArrayRecord | None = None,
    start: dict[str, Any] | None = None,
    **options: Any,
) -> Result:
    """Run such a federation; `learns` are the rounds that send the true arrays."""
    strategy = CovertStrategy(
        make_strategy,
        run={**RUN, **(changes or {})},
        out=out,
        task=make_task(),
        **{"policy": Scheduled(frozenset(learns)), "seed": 7, **options},
    )
    grid = grid or InProcessGrid(app or make_app(), NODES)
    return strategy.start(
        grid=grid, initial_arrays=arrays or make_first(), num_rounds=ROUNDS, **(start or {})
    )


def stop_after(number: int) -> Callable[[Any], None]:
    """Return a callback that ends a run, as Ctrl-C does, after a round."""

    def stop(progress: Any) -> None:
        if progress.round == number:
            raise KeyboardInterrupt

    return stop
