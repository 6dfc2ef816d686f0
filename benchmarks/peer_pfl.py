"""The rounds by pfl: federated averaging on its simulated backend, in one process."""

from __future__ import annotations

from typing import Any

import torch
from federated_work import MODELS, OPTIMIZER, make_adam, make_client_tensors, read_vector
from measurement import load_peer, measure_peak_memory
from simulator_process import BATCH_SIZE, CLIENTS, Asked, RoundClock, read_arguments
from torch import nn


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


def make_dataset(name: str) -> Any:
    """Return the data of all clients; each cohort consists of all of them."""
    users = load_peer("pfl.data.pytorch", "pfl")
    datasets = [
        users.PyTorchTensorDataset(make_client_tensors(name, client)) for client in range(CLIENTS)
    ]
    sampling = load_peer("pfl.data.sampling", "pfl")
    sampler = sampling.get_user_sampler("minimize_reuse", list(range(CLIENTS)))
    federated = load_peer("pfl.data.federated_dataset", "pfl")
    return federated.FederatedDataset(datasets.__getitem__, sampler)


def run_rounds(asked: Asked, clock: RoundClock) -> None:
    """Run all rounds."""
    module = PflModule(asked.model)
    averaging = load_peer("pfl.algorithm.federated_averaging", "pfl")
    parameters = load_peer("pfl.algorithm.base", "pfl").NNAlgorithmParams(
        central_num_iterations=asked.rounds + 1,
        # Only the first round, which is not timed, evaluates.
        evaluation_frequency=asked.rounds + 2,
        train_cohort_size=CLIENTS,
        val_cohort_size=None,
    )
    training = load_peer("pfl.hyperparam.base", "pfl").NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=OPTIMIZER.lr, local_batch_size=BATCH_SIZE
    )
    model = load_peer("pfl.model.pytorch", "pfl").PyTorchModel(
        module, make_adam, torch.optim.SGD(module.parameters(), lr=1.0)
    )
    data = make_dataset(asked.model)
    averaging.FederatedAveraging().run(
        algorithm_params=parameters,
        backend=load_peer("pfl.aggregate.simulate", "pfl").SimulatedBackend(data, data),
        model=model,
        model_train_params=training,
        callbacks=[make_callback(module, clock)],
        send_metrics_to_platform=False,
    )


def make_callback(module: PflModule, clock: RoundClock) -> Any:
    """Return a callback that ends a round on the clock."""
    base = load_peer("pfl.callback.base", "pfl").TrainingProcessCallback
    metrics = load_peer("pfl.metrics", "pfl").Metrics

    class RoundCallback(base):  # type: ignore[misc,valid-type]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            clock.end_round(lambda: read_vector(module.module))
            return False, metrics()

    return RoundCallback()


def main() -> None:
    """Run and time the rounds."""
    asked = read_arguments()
    clock = RoundClock(asked.folder)
    run_rounds(asked, clock)
    clock.report(measure_peak_memory())


if __name__ == "__main__":
    main()
