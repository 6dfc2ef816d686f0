"""The rounds by covertfl, as its simulated engine does them: one run, or several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from federated_work import CLIENT_EXAMPLES, MODELS, OPTIMIZER, SEED, list_rows, make_examples
from measurement import measure_peak_memory
from simulator_process import BATCH_SIZE, BATCHES, CLIENTS, RoundClock, read_arguments

from covertfl.engines.simulated import run_jobs
from covertfl.kernels.choose import choose_kernel
from covertfl.kernels.job import LocalJob, LocalKernel
from covertfl.kernels.weights import Vector
from covertfl.runs.clients import ClientResponder
from covertfl.runs.learner import Reply, move_true, sift_replies, start_learner
from covertfl.runs.run_file import build_run
from covertfl.tasks.task import TrainingTask


def make_runs(name: str, seeds: int, kernel: LocalKernel) -> list[ClientResponder]:
    """Return the clients of several runs that differ in their seeds."""
    model, examples = MODELS[name], make_examples(name)
    task = TrainingTask(
        name=name,
        make_model=model.make_module,
        loss=model.loss,
        train=examples,
        clients=tuple(map(list_rows, range(CLIENTS))),
        public=examples,
        validation=examples,
        is_balanced=True,  # by their making; the peers do not balance classes either
    )
    content = {"task": "toxicity", "federation": {"clients": CLIENTS, "batch_size": BATCH_SIZE}}
    settings = build_run(content, "benchmark", folder=Path())
    runs = [settings.with_seed(SEED + number) for number in range(seeds)]
    return [ClientResponder(run, task, kernel, None, np.ones(3)) for run in runs]


def make_jobs(run: ClientResponder, weights: Vector, number: int) -> list[LocalJob]:
    """Return the jobs of a round; in the first, examples keep their order, as with the peers."""
    jobs = [run.make_client_job(client, BATCHES, weights, number) for client in range(CLIENTS)]
    if number > 0:
        return jobs
    return [replace(job, rows=list_rows(client)) for client, job in enumerate(jobs)]


def move(weights: Vector, results: Sequence[Vector]) -> Vector:
    """Return the FedAvg step on the clients' results."""
    replies = [Reply(client, values, CLIENT_EXAMPLES) for client, values in enumerate(results)]
    sifted = sift_replies(replies, len(weights), CLIENT_EXAMPLES)
    return move_true(start_learner(weights, (weights,), "fedavg"), sifted, OPTIMIZER).true


def main() -> None:
    """Run and time the rounds."""
    asked = read_arguments()
    model, clock = MODELS[asked.model], RoundClock(asked.folder)
    kernel = choose_kernel(model.make_module, model.loss, OPTIMIZER)
    runs = make_runs(asked.model, asked.seeds, kernel)
    weights = [run.first_weights(SEED + number) for number, run in enumerate(runs)]
    for number in range(asked.rounds + 1):
        jobs = [
            job for run, w in zip(runs, weights, strict=True) for job in make_jobs(run, w, number)
        ]
        results = run_jobs([(kernel, job) for job in jobs])
        parts = [results[at : at + CLIENTS] for at in range(0, len(results), CLIENTS)]
        weights = [move(w, part) for w, part in zip(weights, parts, strict=True)]
        clock.end_round(lambda: weights[0])  # noqa: B023
    clock.report(measure_peak_memory())


if __name__ == "__main__":
    main()
