"""Track training in MLflow: a callback logs every round of every run to a file store.

Setup: pip install mlflow-skinny
Usage: python examples/mlflow_tracking.py [FOLDER]

Exposure and backlog by round reveal which queries were true.  Keep the store as private as the
runs: never on a tracking server that clients or other outsiders can read.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import mlflow

import covertfl as cf

# Recent versions of MLflow open a file store only if asked; a database needs the whole of MLflow.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
METRICS = ("score", "exposure", "backlog")


def make_callback(client: mlflow.MlflowClient, experiment: str) -> Callable[[cf.RunProgress], None]:
    """Return a callback for `on_round` that logs rounds; seeds are trained side by side."""
    runs: dict[Path, str] = {}

    def log_round(progress: cf.RunProgress) -> None:
        if progress.run not in runs:
            created = client.create_run(experiment, run_name=progress.run.name)
            runs[progress.run] = created.info.run_id
            client.log_param(created.info.run_id, "seed", progress.seed)
        number = runs[progress.run]
        for name in METRICS:
            client.log_metric(number, name, getattr(progress, name), step=progress.round)
        if progress.round == progress.rounds:
            client.set_terminated(number)

    return log_round


def train_tracked(run: cf.Run, folder: Path, seeds: int) -> cf.TrainingResult:
    """Train a run into folder/runs and track it in folder/store, readable by its owner only."""
    store = folder / "store"
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = mlflow.MlflowClient(tracking_uri=store.resolve().as_uri())
    found = client.get_experiment_by_name("covertfl")
    experiment = client.create_experiment("covertfl") if found is None else found.experiment_id
    callback = make_callback(client, experiment)
    return run.train(folder / "runs", seeds=seeds, force=True, on_round=callback)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "out/mlflow")
    result = train_tracked(cf.Run(task="toxicity", policy="minority"), place, seeds=2)
    print(f"learner accuracy {result.learner_accuracy:.3f}, exposure {result.exposure:.0%}")
    print("To compare the runs, pip install mlflow, then:")
    print(f"MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {place / 'store'}")
