"""The server app: FedAvg, made covert by the marked lines."""

from __future__ import annotations

from digit_images.model import load_images, make_model
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from covertfl.flower import CovertStrategy, Examples, make_server_task, read_server_settings  # 1

app = ServerApp()
NODES, IMAGES = 4, 324  # the images that each node has


def make_strategy() -> FedAvg:
    """Return the strategy, as without covertfl."""
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds; the true model is in the run's folder afterwards."""
    _, public, test = load_images()
    task = make_server_task(  # 2: what decoys are trained on, and what weights are scored on
        make_model, "multiclass", Examples(*public), Examples(*test), clients=NODES, examples=IMAGES
    )
    settings = read_server_settings()  # 3: run file and folder, from the server's environment
    # The model below is freshly drawn, so that decoys may be as well: two models, not one.
    strategy = CovertStrategy(  # 4
        make_strategy, task=task, decoy_start="fresh", **settings.as_keywords()
    )
    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(make_model().state_dict()), timeout=settings.timeout
    )
