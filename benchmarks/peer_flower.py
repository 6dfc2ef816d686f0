"""The rounds by Flower's simulation: Message API, FedAvg, one Ray actor per core."""

from __future__ import annotations

import os
from typing import Any

import torch
from federated_work import CLIENT_EXAMPLES, MODELS, read_vector, train_client
from measurement import load_peer
from process_tree import measure_tree_memory
from simulator_process import CLIENTS, Asked, RoundClock, read_arguments
from torch import nn

from covertfl.kernels.weights import Vector

SWITCHES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


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
        reply = flwr.RecordDict(
            {
                "arrays": flwr.ArrayRecord(module.state_dict()),
                "metrics": flwr.MetricRecord({"num-examples": CLIENT_EXAMPLES}),
            }
        )
        return flwr.Message(content=reply, reply_to=message)

    app.train()(train)
    return app


def make_server(asked: Asked, clock: RoundClock) -> Any:
    """Return a ServerApp that runs FedAvg and reports the times."""
    app = load_peer("flwr.serverapp", "flwr").ServerApp()
    flwr = load_peer("flwr.app", "flwr")
    strategies = load_peer("flwr.serverapp.strategy", "flwr")

    def main(grid: Any, _: Any) -> None:
        module = MODELS[asked.model].first_module()

        def end_round(number: int, arrays: Any) -> None:
            if number > 0:
                clock.end_round(lambda: read_arrays(module, arrays))

        strategy = strategies.FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        arrays = flwr.ArrayRecord(module.state_dict())
        strategy.start(grid, arrays, num_rounds=asked.rounds + 1, evaluate_fn=end_round)
        clock.report(measure_tree_memory(os.getpid()))

    app.main()(main)
    return app


def read_arrays(module: nn.Module, arrays: Any) -> Vector:
    """Return the weights of a round as a vector."""
    module.load_state_dict(arrays.to_torch_state_dict())
    return read_vector(module)


def main() -> None:
    """Run and time the rounds."""
    asked = read_arguments()
    os.environ.update(SWITCHES, FLWR_HOME=str(asked.folder / "flwr"))
    load_peer("flwr.simulation", "flwr").run_simulation(
        make_server(asked, RoundClock(asked.folder)),
        make_client(asked.model),
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"_temp_dir": str(asked.folder)},
        },
    )


if __name__ == "__main__":
    main()
