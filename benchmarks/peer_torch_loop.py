"""The rounds by a plain PyTorch loop over clients, without a framework."""

from __future__ import annotations

import torch
from federated_work import MODELS, read_vector, train_client
from measurement import measure_peak_memory
from simulator_process import CLIENTS, RoundClock, read_arguments
from torch import nn


def run_round(module: nn.Module, name: str) -> None:
    """Make one round of FedAvg over all clients, which hold equally many examples."""
    start = [parameter.detach().clone() for parameter in module.parameters()]
    total = [torch.zeros_like(parameter) for parameter in start]
    for client in range(CLIENTS):
        _load(module, start)
        train_client(module, name, client)
        with torch.no_grad():
            for part, parameter in zip(total, module.parameters(), strict=True):
                part.add_(parameter)
    _load(module, [part / CLIENTS for part in total])


def _load(module: nn.Module, parts: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for parameter, part in zip(module.parameters(), parts, strict=True):
            parameter.copy_(part)


def main() -> None:
    """Run and time the rounds."""
    asked = read_arguments()
    module, clock = MODELS[asked.model].first_module(), RoundClock(asked.folder)
    for _ in range(asked.rounds + 1):
        run_round(module, asked.model)
        clock.end_round(lambda: read_vector(module))
    clock.report(measure_peak_memory())


if __name__ == "__main__":
    main()
