"""The server app: FedAvg, made covert by the three marked lines."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from toxicity.model import make_model

from covertfl.flower import CovertStrategy, read_server_settings  # 1

app = ServerApp()


def make_strategy() -> FedAvg:
    """Return the strategy, as without covertfl."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; the true model is in the run's folder afterwards."""
    settings = read_server_settings()  # 2: run file and folder, from the server's environment
    # The model below is freshly drawn, so that decoys may be as well: two models, not one.
    strategy = CovertStrategy(make_strategy, decoy_start="fresh", **settings.as_keywords())  # 3
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(make_model().state_dict()), timeout=settings.timeout
    )
