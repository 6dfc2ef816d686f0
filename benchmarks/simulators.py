"""The same rounds of FedAvg by covertfl, a PyTorch loop, pfl and Flower's simulation.

    python benchmarks/simulators.py SIMULATOR MODEL ROUNDS THREADS SEEDS FOLDER

trains a federation with one of them.  Seconds of each round after the first, memory, and the
weights after the first round are written into the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measurement import load_peer, measure_peak_memory, measure_tree_memory
from torch import nn
from torch.nn import functional

from covertfl import Examples, Run, TrainingTask
from covertfl.kernels.autograd.module import describe_layout
from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.job import LocalJob, LocalOptimizer, Loss, Vector
from covertfl.runs.settings import RunSettings
from covertfl.runs.simulated import make_client_job, run_jobs
from covertfl.schemes.replies import ExactAverage, Reply, find_fault, sift_replies
from covertfl.tasks.models import make_digit_cnn, make_head, make_logistic, make_mlp, make_small_cnn

CLIENTS, BATCHES, BATCH_SIZE = 20, 10, 40
CLIENT_EXAMPLES = BATCHES * BATCH_SIZE
OPTIMIZER = LocalOptimizer(name="adam", lr=1e-3)
# With this seed no input of a ReLU is so close to 0 that rounding decides its sign.
SEED = 2
ANSWER, WEIGHTS = "answer.json", "weights.npy"
FLOWER_SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


# --- models, data, and a client's training pass ---------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A model, the shape of its examples, and its training loss.

    Parameters
    ----------
    image : shape of an example of `inputs` numbers; None for (inputs,)
    """

    title: str
    make: Callable[[int, int], nn.Module]
    inputs: int
    outputs: int
    loss: Loss
    image: tuple[int, ...] | None = None

    def make_module(self) -> nn.Module:
        """Return a freshly initialised module."""
        return self.make(self.inputs, self.outputs)

    def first_module(self) -> nn.Module:
        """Return the module with the initial weights that all simulators share."""
        module = self.make_module()
        parts = describe_layout(module).split(draw_weights(self.make_module, seed=SEED))
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(torch.from_numpy(parts[name]))
        return module

    def compute_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        if self.loss == "binary":
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)
        return functional.cross_entropy(outputs, labels)


def make_still_head(inputs: int, outputs: int) -> nn.Module:
    """Return the head without its dropout, for comparing weights."""
    module = make_head(inputs, outputs)
    assert isinstance(module, nn.Sequential)
    return nn.Sequential(*(layer for layer in module if not isinstance(layer, nn.Dropout)))


MODELS = {
    "head": Model("toxicity head 128-128-1", make_head, 128, 1, "binary"),
    "logistic": Model("logistic regression 784-10", make_logistic, 784, 10, "multiclass"),
    "mlp": Model("MLP 784-200-10", make_mlp, 784, 10, "multiclass"),
    "still-head": Model("the head without dropout", make_still_head, 128, 1, "binary"),
    "digit-cnn": Model(
        "digit-cnn, 8 x 8 images", lambda *_: make_digit_cnn(), 64, 10, "multiclass", (1, 8, 8)
    ),
    "small-cnn": Model(
        "small-cnn, 28 x 28 images", lambda *_: make_small_cnn(), 784, 10, "multiclass", (1, 28, 28)
    ),
}


@cache
def make_examples(name: str) -> Examples:
    """Return standard normal features with labels that a linear model can learn."""
    model, generator = MODELS[name], np.random.default_rng(SEED)
    shape = (CLIENTS * CLIENT_EXAMPLES, model.inputs)
    features = generator.standard_normal(shape, dtype=np.float32)
    scores = features @ generator.standard_normal((model.inputs, model.outputs), dtype=np.float32)
    features = features.reshape(len(features), *(model.image or (model.inputs,)))
    if model.loss == "binary":
        return Examples(features, (scores[:, 0] > 0.0).astype(np.float32))
    return Examples(features, scores.argmax(axis=1).astype(np.int64))


def list_rows(client: int) -> Any:
    """Return the rows that a client holds."""
    return np.arange(client * CLIENT_EXAMPLES, (client + 1) * CLIENT_EXAMPLES)


@cache
def make_client_tensors(name: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and labels of a client."""
    examples, rows = make_examples(name), list_rows(client)
    return torch.from_numpy(examples.features[rows]), torch.from_numpy(examples.labels[rows])


def make_adam(parameters: object, **options: object) -> torch.optim.Optimizer:
    """Return fused Adam, the fastest that PyTorch has on a CPU."""
    settings = {"lr": OPTIMIZER.lr, **options}
    return torch.optim.Adam(parameters, fused=True, **settings)  # type: ignore[arg-type]


def train_client(module: nn.Module, name: str, client: int) -> None:
    """Train one pass over a client's batches, with a new optimizer."""
    features, labels = make_client_tensors(name, client)
    optimizer = make_adam(module.parameters())
    module.train()
    for batch, classes in zip(
        torch.split(features, BATCH_SIZE), torch.split(labels, BATCH_SIZE), strict=True
    ):
        optimizer.zero_grad()
        torch.autograd.backward(MODELS[name].compute_loss(module(batch), classes))
        optimizer.step()


def read_vector(module: nn.Module) -> Vector:
    """Return the weights of a module as a vector."""
    parts = {name: value.detach().numpy() for name, value in module.named_parameters()}
    return describe_layout(module).join(parts)


class RoundClock:
    """A clock that times the rounds after the first and saves the weights after the first."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ends = folder, list[float]()

    def end_round(self, read: Callable[[], Vector]) -> None:
        """End a round; `read` returns its weights."""
        if not self._ends:
            np.save(self._folder / WEIGHTS, read())
        self._ends.append(time.perf_counter())

    def report(self, memory: int) -> None:
        """Write the seconds of each round, and the memory."""
        answer = {"seconds": np.diff(self._ends).tolist(), "memory": memory}
        (self._folder / ANSWER).write_text(json.dumps(answer))


# --- covertfl -------------------------------------------------------------------------------------


@cache
def make_task(name: str) -> TrainingTask:
    """Return the task that all runs have in common."""
    model, examples = MODELS[name], make_examples(name)
    return TrainingTask(
        name=name,
        make_model=model.make_module,
        loss=model.loss,
        train=examples,
        clients=tuple(map(list_rows, range(CLIENTS))),
        public=examples,
        validation=examples,
        is_balanced=True,  # by their making; the peers do not balance classes either
    )


def make_runs(seeds: int) -> list[RunSettings]:
    """Return the settings of several runs that differ in their seeds."""
    settings = Run("toxicity", clients=CLIENTS, batch_size=BATCH_SIZE).settings
    return [settings.with_seed(SEED + number) for number in range(seeds)]


def make_jobs(name: str, run: RunSettings, weights: Vector, number: int) -> list[LocalJob]:
    """Return the jobs of a round; in the first, examples keep their order, as with the peers."""
    task = make_task(name)
    jobs = [
        make_client_job(run, task, client, BATCHES, weights, number) for client in range(CLIENTS)
    ]
    if number > 0:
        return jobs
    return [replace(job, rows=list_rows(client)) for client, job in enumerate(jobs)]


def move(weights: Vector, results: Sequence[Vector]) -> Vector:
    """Return the FedAvg step on the clients' results."""
    replies = [Reply(client, values, CLIENT_EXAMPLES) for client, values in enumerate(results)]
    sifted = sift_replies(replies, partial(find_fault, size=len(weights)), CLIENT_EXAMPLES)
    moved = ExactAverage("fedavg", OPTIMIZER).attempt(0, weights, sifted, keeps=True)
    assert moved is not None
    return moved


def run_covertfl(asked: argparse.Namespace, clock: RoundClock) -> None:
    """Run the rounds as covertfl's simulated engine does them: one run, or several at once."""
    model = MODELS[asked.model]
    kernel = choose_kernel(model.make_module, model.loss, OPTIMIZER)
    runs, name = make_runs(asked.seeds), asked.model
    weights = [make_task(name).draw_weights(SEED + number) for number in range(asked.seeds)]
    for number in range(asked.rounds + 1):
        jobs = [
            job
            for run, w in zip(runs, weights, strict=True)
            for job in make_jobs(name, run, w, number)
        ]
        results = run_jobs([(kernel, job) for job in jobs])
        parts = [results[at : at + CLIENTS] for at in range(0, len(results), CLIENTS)]
        weights = [move(w, part) for w, part in zip(weights, parts, strict=True)]
        clock.end_round(lambda: weights[0])  # noqa: B023
    clock.report(measure_peak_memory())


# --- a loop over clients --------------------------------------------------------------------------


def run_loop(asked: argparse.Namespace, clock: RoundClock) -> None:
    """Run the rounds by a plain PyTorch loop over clients, which hold equally many examples."""
    module = MODELS[asked.model].first_module()

    def load(parts: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter, part in zip(module.parameters(), parts, strict=True):
                parameter.copy_(part)

    for _ in range(asked.rounds + 1):
        start = [parameter.detach().clone() for parameter in module.parameters()]
        total = [torch.zeros_like(parameter) for parameter in start]
        for client in range(CLIENTS):
            load(start)
            train_client(module, asked.model, client)
            with torch.no_grad():
                for part, parameter in zip(total, module.parameters(), strict=True):
                    part.add_(parameter)
        load([part / CLIENTS for part in total])
        clock.end_round(lambda: read_vector(module))
    clock.report(measure_peak_memory())


# --- pfl ------------------------------------------------------------------------------------------


class PflModule(nn.Module):
    """A module with the methods that pfl calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.model, self.module = MODELS[name], MODELS[name].first_module()

    def loss(self, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        self.train()
        return self.model.compute_loss(self.module(features), labels)

    def metrics(self, features: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """Return no metrics."""
        return {}


def run_pfl(asked: argparse.Namespace, clock: RoundClock) -> None:
    """Run the rounds by pfl: federated averaging on its simulated backend, in one process."""

    def load(module: str) -> Any:
        return load_peer(f"pfl.{module}", "pfl")

    class RoundCallback(load("callback.base").TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            clock.end_round(lambda: read_vector(module.module))
            return False, load("metrics").Metrics()

    module = PflModule(asked.model)
    datasets = [
        load("data.pytorch").PyTorchTensorDataset(make_client_tensors(asked.model, client))
        for client in range(CLIENTS)
    ]
    # Each cohort consists of all clients.
    sampler = load("data.sampling").get_user_sampler("minimize_reuse", list(range(CLIENTS)))
    data = load("data.federated_dataset").FederatedDataset(datasets.__getitem__, sampler)
    load("algorithm.federated_averaging").FederatedAveraging().run(
        algorithm_params=load("algorithm.base").NNAlgorithmParams(
            central_num_iterations=asked.rounds + 1,
            # Only the first round, which is not timed, evaluates.
            evaluation_frequency=asked.rounds + 2,
            train_cohort_size=CLIENTS,
            val_cohort_size=None,
        ),
        backend=load("aggregate.simulate").SimulatedBackend(data, data),
        model=load("model.pytorch").PyTorchModel(
            module, make_adam, torch.optim.SGD(module.parameters(), lr=1.0)
        ),
        model_train_params=load("hyperparam.base").NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=OPTIMIZER.lr, local_batch_size=BATCH_SIZE
        ),
        callbacks=[RoundCallback()],
        send_metrics_to_platform=False,
    )
    clock.report(measure_peak_memory())


# --- Flower ---------------------------------------------------------------------------------------


def make_client(name: str) -> Any:
    """Return a ClientApp that trains on its partition."""
    app = load_peer("flwr.clientapp", "flwr").ClientApp()
    flwr = load_peer("flwr.app", "flwr")

    def train(message: Any, context: Any) -> Any:
        # Each actor has one core.
        torch.set_num_threads(1)
        module = MODELS[name].make_module()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_client(module, name, context.node_config["partition-id"])
        arrays = flwr.ArrayRecord(module.state_dict())
        metrics = flwr.MetricRecord({"num-examples": CLIENT_EXAMPLES})
        reply = flwr.RecordDict({"arrays": arrays, "metrics": metrics})
        return flwr.Message(content=reply, reply_to=message)

    app.train()(train)
    return app


def make_server(asked: argparse.Namespace, clock: RoundClock) -> Any:
    """Return a ServerApp that runs FedAvg and reports the times."""
    app = load_peer("flwr.serverapp", "flwr").ServerApp()
    strategies = load_peer("flwr.serverapp.strategy", "flwr")

    def main(grid: Any, _: Any) -> None:
        module = MODELS[asked.model].first_module()

        def read(arrays: Any) -> Vector:
            module.load_state_dict(arrays.to_torch_state_dict())
            return read_vector(module)

        def end_round(number: int, arrays: Any) -> None:
            if number > 0:
                clock.end_round(lambda: read(arrays))

        strategy = strategies.FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        arrays = load_peer("flwr.app", "flwr").ArrayRecord(module.state_dict())
        strategy.start(grid, arrays, num_rounds=asked.rounds + 1, evaluate_fn=end_round)
        clock.report(measure_tree_memory(os.getpid()))

    app.main()(main)
    return app


def run_flower(asked: argparse.Namespace, clock: RoundClock) -> None:
    """Run the rounds by Flower's simulation: Message API, FedAvg, one Ray actor per core."""
    os.environ.update(FLOWER_SWITCHES, FLWR_HOME=str(asked.folder / "flwr"))
    load_peer("flwr.simulation", "flwr").run_simulation(
        make_server(asked, clock),
        make_client(asked.model),
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"_temp_dir": str(asked.folder)},
        },
    )


SIMULATORS: dict[str, Callable[[argparse.Namespace, RoundClock], None]] = {
    "covertfl": run_covertfl,
    "loop": run_loop,
    "pfl": run_pfl,
    "flower": run_flower,
}


def main() -> None:
    """Run and time the rounds: one that is not counted, and as many as asked."""
    parser = argparse.ArgumentParser(description="train a federation with one simulator")
    parser.add_argument("simulator", choices=SIMULATORS)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("rounds", type=int)
    parser.add_argument("threads", type=int, help="of PyTorch")
    parser.add_argument("seeds", type=int, help="runs at once, with covertfl")
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    SIMULATORS[asked.simulator](asked, RoundClock(asked.folder))


if __name__ == "__main__":
    # Flower's actors import what they run by its module, which a script's functions do not have.
    import simulators

    simulators.main()
