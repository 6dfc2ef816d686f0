"""Run one federation over Flower's messages and measure where its time goes.

Called as `flower_process.py KIND WORK PARAMETERS CLIENTS ROUNDS FOLDER`: stock FedAvg (`stock`), or
FedAvg in `CovertStrategy` with a decoy (`covert`) or with two exchangeable replicas (`replicas-2`).
`--built-in` averages without a wrapped strategy.  Prints seconds by part and round, and peak
memory.

`pair` runs `stock` and `replicas-2` in turn in one process, ROUNDS rounds of each, `--repeats`
times, and divides each round into the clients' work and the rest.

Clients of large models train on all cores.  With `--processor-time` the seconds are those of the
processor, of all threads together, so that programs beside this one hardly matter.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from measurement import measure_peak_memory

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.engine import GridEngine
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.steady_folder import SteadyFolder
from covertfl.flower import CovertStrategy, Examples, InProcessGrid, make_server_task
from covertfl.runs.folder import RunFolder
from covertfl.schemes.scheduled import Scheduled

INPUTS, EXAMPLES, BATCH, RATE = 100, 400, 40, 1e-3
LARGE = 10**8  # parameters from which clients use all cores
CLIENTS, WRAPPED, DECOY = "clients", "wrapped", "decoy"
RECORDS, CHECKPOINT = "records", "checkpoint"
# CovertStrategy's own code: reading replies, writing queries, passing replies on, the rest.
READING, WRITING, HANDING, OTHER = "reading", "writing", "handing", "other"
OWN = (READING, WRITING, HANDING, OTHER)
PAIR = ("stock", "replicas-2")


class Stopwatch:
    """A clock that divides each round into parts; nested parts are not counted twice."""

    def __init__(self, read_clock: Callable[[], float] = time.perf_counter) -> None:
        self._read_clock = read_clock
        self.rounds: list[dict[str, float]] = []
        self._now: defaultdict[str, float] = defaultdict(float)
        self._inside = [OTHER]
        self._since = read_clock()

    def _charge(self) -> None:
        now = self._read_clock()
        self._now[self._inside[-1]] += now - self._since
        self._since = now

    def end_round(self) -> None:
        """Close the current round and start the next."""
        self._charge()
        self.rounds.append(dict(self._now))
        self._now.clear()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time inside to a part; within a decoy's step all of it is the decoy's."""
        self._charge()
        self._inside.append(self._inside[-1] if DECOY in self._inside else name)
        try:
            yield
        finally:
            self._charge()
            self._inside.pop()

    def watch(self, owner: type | ModuleType, method: str, name: str) -> None:
        """Charge a method of a class, or a function of a module, to a part."""
        before: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(before)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return before(*args, **kwargs)

        setattr(owner, method, timed)

    def watch_generator(self, owner: type, method: str, name: str) -> None:
        """Charge a generator method to a part."""
        before: Callable[..., Any] = getattr(owner, method)

        @functools.wraps(before)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return (yield from before(*args, **kwargs))

        setattr(owner, method, timed)


def watch_clients(watch: Stopwatch) -> None:
    """Charge clients and transport to their part of a round, which ends with the next query."""
    push: Callable[..., Any] = InProcessGrid.push_messages

    def timed(self: Any, messages: Any) -> Any:
        messages = list(messages)
        if messages:  # a stock strategy sends an empty list of evaluations
            watch.end_round()
        with watch.part(CLIENTS):
            return push(self, messages)

    setattr(InProcessGrid, "push_messages", timed)  # noqa: B010
    watch.watch(InProcessGrid, "pull_messages", CLIENTS)  # a lean grid's nodes work when pulled


def watch_all(watch: Stopwatch) -> None:
    """Charge each method of interest to its part of a round."""
    watch_clients(watch)
    watch.watch(FedAvg, "aggregate_train", WRAPPED)
    watch.watch(FedAvg, "configure_train", WRAPPED)
    watch.watch_generator(Scheduled, "_move_decoy", DECOY)
    watch.watch(SteadyFolder, "begin_query", RECORDS)
    watch.watch(SteadyFolder, "write_weights", RECORDS)
    watch.watch(RunFolder, "append", RECORDS)
    watch.watch(SteadyFolder, "seal", CHECKPOINT)
    watch.watch(GridEngine, "remember", CHECKPOINT)
    # The observation of a round is written to disk before its query is sent.
    watch.watch(SteadyFolder, "note", CHECKPOINT)
    watch.watch(Carrier, "_read", READING)
    watch.watch(ArrayForm, "write", WRITING)
    watch.watch(InnerStrategies, "attempt", HANDING)
    watch.watch(InnerStrategies, "clean", HANDING)


# --- the federation ---------------------------------------------------------------------------


def find_width(parameters: int) -> int:
    """Return the width of two hidden layers that gives about so many parameters."""
    return round((-(INPUTS + 3) + math.sqrt((INPUTS + 3) ** 2 + 4 * parameters)) / 2)


def make_model(width: int) -> torch.nn.Module:
    """Return a perceptron with two hidden layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(),
        torch.nn.Linear(width, 1),
    )


def make_examples() -> Examples:
    """Return random examples with labels that can be learned."""
    features = np.random.default_rng(0).normal(size=(EXAMPLES, INPUTS)).astype(np.float32)
    return Examples(features, (features[:, 0] > 0).astype(np.float32))


def train_model(model: torch.nn.Module, data: Examples, parts: dict[str, Any]) -> dict[str, Any]:
    """Train one pass over a client's examples with SGD."""
    model.load_state_dict({name: torch.from_numpy(part) for name, part in parts.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for start in range(0, len(data), BATCH):
        inputs = torch.from_numpy(data.features[start : start + BATCH])
        labels = torch.from_numpy(data.labels[start : start + BATCH])
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: part.numpy() for name, part in model.state_dict().items()}


def make_app(width: int, *, trains: bool) -> ClientApp:
    """Return a client app that trains, or one that only echoes the weights it receives."""
    app, data = ClientApp(), make_examples()
    model = make_model(width) if trains else None

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        parts = {name: array.numpy() for name, array in arrays.items()}
        if model is not None:
            parts = train_model(model, data, parts)
        record = ArrayRecord({name: Array(part) for name, part in parts.items()})
        metrics = MetricRecord({"num-examples": EXAMPLES})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    return app


def list_run_keys(kind: str, clients: int, rounds: int) -> dict[str, Any]:
    """Return the settings of a run that learns in half of its rounds."""
    scheme: dict[str, Any] = {"policy": {"kind": "random"}, "decoy": {"kind": "public"}}
    if kind == "replicas-2":
        scheme = {"scheme": "exchangeable", "exchangeable": {"trajectories": 2}}
    return {
        "federation": {
            "participation": [1, 2, max(clients, 3)],
            "acceptance": "model",
            "batch_size": BATCH,
            "optimizer": {"name": "sgd", "lr": RATE},
        },
        "oracle": {
            "transition": [[0.6, 0.4, 0.0], [0.3, 0.4, 0.3], [0.0, 0.4, 0.6]],
            # Only rounds with all clients succeed, so that replicas move on all replies.
            "success": [0.01, 0.02, 0.9],
        },
        "cost": {"privacy": [1.8, 0.8, 0.3], "learning": {"shape": "quadratic", "scale": 0.6}},
        "horizon": {"rounds": rounds, "updates": rounds // 2},
        **scheme,
    }


def run_pair(asked: argparse.Namespace) -> dict[str, list[Any]]:
    """Run both federations of a pair in turn; return their rounds without the last.

    The first of four rounds or more is a warm-up.
    """
    start = 2 if asked.rounds > 3 else 1
    watch, found = Stopwatch(), {kind: list[Any]() for kind in PAIR}
    watch_clients(watch)
    for repeat in range(asked.repeats):
        for kind in PAIR if repeat % 2 == 0 else PAIR[::-1]:
            place = asked.folder / f"{kind}-{repeat}"
            chosen = argparse.Namespace(**{**vars(asked), "kind": kind, "folder": place})
            watch.rounds.clear()
            run_federation(chosen, watch)
            found[kind].append(watch.rounds[start:-1])
            shutil.rmtree(place, ignore_errors=True)
    return found


def run_federation(asked: argparse.Namespace, watch: Stopwatch) -> None:
    """Run all rounds; the first is a warm-up."""
    width = find_width(asked.parameters)
    app = make_app(width, trains=asked.work == "training")
    grid = InProcessGrid(app, asked.clients, is_lean=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = ArrayRecord(make_model(width).state_dict())

    def make_strategy() -> FedAvg:
        return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)

    if asked.kind == "stock":
        make_strategy().start(grid=grid, initial_arrays=first, num_rounds=asked.rounds)
    else:
        task = make_server_task(
            lambda: make_model(width), "binary", make_examples(), None,
            clients=max(asked.clients, 3), examples=EXAMPLES,
        )  # fmt: skip
        CovertStrategy(
            None if asked.built_in else make_strategy,
            run=list_run_keys(asked.kind, asked.clients, asked.rounds),
            task=task,
            out=asked.folder / "run",
            seed=1,
        ).start(
            grid=grid,
            # Exchangeable runs draw their first weights in secret.
            initial_arrays=None if asked.kind == "replicas-2" else first,
            num_rounds=asked.rounds,
        )
    watch.end_round()


def main() -> None:
    """Run the federation and print the measurements."""
    parser = argparse.ArgumentParser(description="measure a federation over Flower's messages")
    parser.add_argument("kind", choices=("stock", "covert", "replicas-2", "pair"))
    parser.add_argument("work", choices=("training", "echo"))
    parser.add_argument("parameters", type=int)
    parser.add_argument("clients", type=int)
    parser.add_argument("rounds", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--built-in", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--processor-time", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads((os.cpu_count() or 1) if asked.parameters >= LARGE else 1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if asked.kind == "pair":
        print(json.dumps({**run_pair(asked), "memory": measure_peak_memory()}))
        return
    watch = Stopwatch(time.process_time if asked.processor_time else time.perf_counter)
    watch_all(watch)
    run_federation(asked, watch)
    # The first part is preparation, the second the warm-up round, the last the end of the run.
    rounds = watch.rounds[2:-1] or watch.rounds[1:-1]
    print(json.dumps({"rounds": rounds, "memory": measure_peak_memory()}))


if __name__ == "__main__":
    main()
