"""Simulated federations: covertfl's engine against a PyTorch loop, pfl and Flower's simulation.

Every simulator runs in a separate process (`simulators.py`), so that its memory can be measured and
it can be killed.  Run as a script, this file prints the operations per second of large matrix
products as JSON.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import chain
from pathlib import Path

import numpy as np
from measurement import Timing, format_ratio, load_peer, run_apart, run_python, time_repeats
from section import Check, Section
from simulators import ANSWER, BATCH_SIZE, BATCHES, CLIENTS, MODELS, WEIGHTS

from covertfl import Missing, Run
from covertfl.kernels.cnn.blocks import describe_network
from covertfl.kernels.job import Vector

PEER_PACKAGES = ("torch", "pfl", "flwr", "ray")
SCRIPT = Path(__file__).with_name("simulators.py")
SEEDS_AT_ONCE = 10
AGREEMENT = 1e-5
TRIAL_ROUNDS, QUICK_ROUNDS = 3, 5
# Time limit of one process, in seconds.
LIMIT = 240.0
PEAK_SIZE, PEAK_REPEATS, PEAK_LIMIT = 2048, 12, 120.0
EXPERIMENT_SEEDS, QUICK_EXPERIMENT_SEEDS = 10, 2
MOST_SECONDS = 180.0
TIMED, QUICK_TIMED = ("head", "logistic", "mlp"), ("logistic",)
# The same model without dropout, for comparing weights.
COMPARED = {"head": "still-head", "logistic": "logistic", "mlp": "mlp"}
# Two layers forward and their gradients, and the derivatives by the hidden units.
MLP_FLOPS = {"mlp": 4 * (784 * 200 + 200 * 10) + 2 * 200 * 10}
NETWORKS, NETWORK_ROUNDS, LEAST_NETWORK_RATIO = ("digit-cnn", "small-cnn"), 20, 4.0
LEAST_RATIO = {
    "head": {"Flower": 30.0, "pfl": 8.0},
    "logistic": {"Flower": 30.0, "pfl": 8.0},
    "mlp": {"Flower": 8.0, "pfl": 3.0},
}


@dataclass(frozen=True)
class Simulator:
    """One simulator and how it is measured.

    Parameters
    ----------
    name : shown in the table
    kind : in `simulators.py`
    threads : numbers of PyTorch threads to choose from
    seeds : number of runs at once
    rounds : number of timed rounds
    repeats : number of processes, one after another, because the load of the machine varies
    """

    name: str
    kind: str
    threads: tuple[int, ...] = (1,)
    seeds: int = 1
    rounds: int = 20
    repeats: int = 2


OURS = Simulator("covertfl", "covertfl", rounds=100, repeats=3)
OURS_AT_ONCE = Simulator(
    f"covertfl, {SEEDS_AT_ONCE} seeds at once",
    "covertfl",
    seeds=SEEDS_AT_ONCE,
    rounds=10,
    repeats=3,
)
PEERS = (
    Simulator("PyTorch loop", "loop", threads=(1, 2)),
    Simulator("pfl", "pfl", threads=(1, 2)),
    Simulator("Flower", "flower", rounds=30),
)


@dataclass(frozen=True)
class Measured:
    """Timings, memory and weights of one process."""

    timing: Timing
    memory: int
    weights: Vector


def run_once(simulator: Simulator, model: str, rounds: int, threads: int) -> Measured | None:
    """Run one process; return None if it took too long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        arguments = (simulator.kind, model, rounds, threads, simulator.seeds, name)
        if run_python([SCRIPT, *arguments], limit=LIMIT) is None:
            return None
        answer = json.loads((Path(name) / ANSWER).read_text())
        weights = np.load(Path(name) / WEIGHTS)
    seconds = tuple(second / simulator.seeds for second in answer["seconds"])
    return Measured(Timing(seconds), answer["memory"], weights)


def choose_threads(simulator: Simulator, model: str) -> int:
    """Return the number of threads that is fastest in a few rounds."""
    if len(simulator.threads) == 1:
        return simulator.threads[0]
    trials = {
        threads: run_once(simulator, model, TRIAL_ROUNDS, threads) for threads in simulator.threads
    }
    best = {threads: run.timing.best for threads, run in trials.items() if run is not None}
    return min(best, key=best.__getitem__, default=simulator.threads[0])


def run_repeats(
    simulators: Sequence[Simulator], model: str, *, quick: bool
) -> list[Measured | None]:
    """Return the rounds of all repeats of each simulator, None if none ended in time.

    The simulators take turns, so that a busy time of the machine falls on all of them.
    """
    threads = [choose_threads(simulator, model) for simulator in simulators]
    runs: list[list[Measured]] = [[] for _ in simulators]
    for repeat in range(1 if quick else max(simulator.repeats for simulator in simulators)):
        for simulator, number, finished in zip(simulators, threads, runs, strict=True):
            rounds = QUICK_ROUNDS if quick else simulator.rounds
            if repeat < simulator.repeats:
                run = run_once(simulator, model, rounds, number)
                finished.extend([] if run is None else [run])
    return [_join(finished) for finished in runs]


def _join(runs: Sequence[Measured]) -> Measured | None:
    if not runs:
        return None
    seconds = chain.from_iterable(run.timing.seconds for run in runs)
    return Measured(Timing(tuple(seconds)), max(run.memory for run in runs), runs[0].weights)


# --- the comparison -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One simulator on one model; `run` is None if it was killed."""

    model: str
    simulator: Simulator
    run: Measured | None
    ours: Measured

    @property
    def title(self) -> str:
        """Return the model in words."""
        return MODELS[self.model].title

    @property
    def ratio(self) -> float:
        """Return covertfl's rounds per second, with one seed, divided by this simulator's."""
        return (self.run.timing.mean if self.run else LIMIT) / self.ours.timing.mean

    @property
    def best_ratio(self) -> float:
        """Return the same ratio for the best round of each."""
        return (self.run.timing.best if self.run else LIMIT) / self.ours.timing.best

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        title, name = self.title, self.simulator.name
        if self.run is None:
            return title, name, f"more than {LIMIT:.0f} s in total", "", "", "", ""
        return (
            title,
            name,
            str(self.run.timing),
            f"{1.0 / self.run.timing.mean:.3g}",
            f"{self.run.memory / 1e6:,.0f} MB",
            "" if self.run is self.ours else format_ratio(self.ratio),
            "" if self.run is self.ours else format_ratio(self.best_ratio),
        )


def measure_model(
    model: str, simulator: Simulator, others: Sequence[Simulator], *, quick: bool
) -> list[Row]:
    """Measure covertfl's simulator and others on one model."""
    ours, *rest = run_repeats((simulator, *others), model, quick=quick)
    if ours is None:
        raise Missing(f"covertfl took more than {LIMIT:.0f} s for {simulator.rounds} rounds")
    runs = zip((simulator, *others), (ours, *rest), strict=True)
    return [Row(model, name, run, ours) for name, run in runs]


def compare_weights(rows: list[Row]) -> dict[str, float]:
    """Return by model the largest difference from covertfl's weights after one round."""
    worst = {}
    for model in dict.fromkeys(row.model for row in rows):
        timed = [row for row in rows if row.model == model and row.simulator is not OURS_AT_ONCE]
        runs = {row.simulator.name: row.run for row in timed}
        if COMPARED.get(model, model) != model:
            runs = {
                row.simulator.name: run_once(row.simulator, COMPARED[model], 1, 1) for row in timed
            }
        ours, theirs = runs.pop(OURS.name), [run for run in runs.values() if run is not None]
        assert ours is not None
        worst[model] = max(float(np.abs(run.weights - ours.weights).max()) for run in theirs)
    return worst


def time_experiment(seeds: int) -> float:
    """Return the seconds of the toxicity experiment, two policies with two public sets."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for share in (0.0, 0.1):
            for policy in ("greedy", "optimal"):
                run = Run("toxicity", public_positive_share=share, policy=policy)
                run.train(Path(folder) / f"{policy}-{share:g}", seeds=seeds)
    return time.perf_counter() - started


def measure_peak() -> float:
    """Return the operations per second of large matrix products, in a separate process."""
    found = run_apart(__file__, (), limit=PEAK_LIMIT)
    return float("nan") if found is None else float(found)


def time_products() -> float:
    """Return the most operations per second that a product of large matrices reaches on all cores.

    It is the larger of one product by all cores and of one by a single core, times the cores: if
    other programs use the machine, the first waits for its slowest part.
    """
    import torch

    def time_product(threads: int) -> float:
        torch.set_num_threads(threads)
        left, right = (torch.randn(PEAK_SIZE, PEAK_SIZE) for _ in range(2))
        _, timing = time_repeats(lambda: left @ right, repeats=PEAK_REPEATS)
        return 2 * PEAK_SIZE**3 / timing.best

    cores = len(os.sched_getaffinity(0))
    return max(time_product(cores), cores * time_product(1))


COLUMNS = (
    "model",
    "simulator",
    "time per round",
    "rounds per second",
    "memory",
    "ratio",
    "ratio of best rounds",
)


def measure(*, quick: bool) -> Section:
    """Measure all simulators on models without convolutions."""
    for package in PEER_PACKAGES:
        load_peer(package, package)
    rows = [
        row
        for model in (QUICK_TIMED if quick else TIMED)
        for row in measure_model(model, OURS, (OURS_AT_ONCE, *PEERS), quick=quick)
    ]
    checks = check_weights(rows, "without dropout all have the same weights")
    for row in () if quick else rows:
        least = LEAST_RATIO[row.model].get(row.simulator.name)
        if least is not None:
            text = f"{row.title}: at least {least:.0f} times as fast as {row.simulator.name}"
            checks.append(Check(f"{text} ({format_ratio(row.ratio)})", row.ratio >= least))
    seeds = QUICK_EXPERIMENT_SEEDS if quick else EXPERIMENT_SEEDS
    seconds = time_experiment(seeds)
    text = f"the toxicity experiment, {seeds} seeds x 2 policies x 2 scenarios, in under"
    text = f"{text} {MOST_SECONDS:.0f} s ({seconds:.0f} s)"
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in PEER_PACKAGES)
    return Section(
        "Simulated training: covertfl's engine against a PyTorch loop, pfl and Flower",
        COLUMNS,
        tuple(row.cells for row in rows),
        (*checks, Check(text, seconds < MOST_SECONDS)),
        ratios={
            f"{row.title}, {row.simulator.name}": row.ratio
            for row in rows
            if row.run and row.simulator is not OURS
        },
        notes=describe_shares(rows, MLP_FLOPS, measure_peak()),
        about=(f"Peers: {versions}.",),
    )


def measure_networks(*, quick: bool) -> Section:
    """Measure convolutional networks beside a PyTorch loop."""
    load_peer("torch", "torch")
    ours, loop = replace(OURS, rounds=NETWORK_ROUNDS), PEERS[0]
    rows = [row for model in NETWORKS for row in measure_model(model, ours, (loop,), quick=quick)]
    checks = check_weights(rows, "the same weights")
    for row in rows:
        if row.run is not row.ours:
            # On a busy machine means depend on the load, the best rounds hardly do.
            text = (
                f"{row.title}: at least {LEAST_NETWORK_RATIO:.0f} times as fast as a PyTorch loop"
            )
            text = f"{text}, in the best rounds ({format_ratio(row.best_ratio)})"
            checks.append(Check(text, row.best_ratio >= LEAST_NETWORK_RATIO))
    return Section(
        "Convolutional networks on a CPU: covertfl's engine against a PyTorch loop",
        COLUMNS,
        tuple(row.cells for row in rows),
        tuple(checks),
        ratios={row.title: row.ratio for row in rows if row.run and row.run is not row.ours},
        notes=describe_shares(rows, {name: count_flops(name) for name in NETWORKS}, measure_peak()),
    )


def count_flops(name: str) -> int:
    """Return the operations of a training pass over one image."""
    model = MODELS[name]
    assert model.image is not None
    network = describe_network(model.make_module(), model.image)
    assert network is not None
    return network.flops


def describe_shares(rows: Sequence[Row], flops: Mapping[str, int], peak: float) -> tuple[str, ...]:
    """Return the share of the peak that each model's best round reaches, by covertfl.

    Parameters
    ----------
    rows : of all models
    flops : operations of a training pass over one example, by model
    peak : operations per second of large matrix products on all cores
    """
    work = CLIENTS * BATCHES * BATCH_SIZE
    return tuple(
        f"{row.title} at {work * flops[row.model] / row.ours.timing.best / peak:.0%} of sgemm peak "
        f"({peak / 1e9:.0f} GFLOP/s)"
        for row in rows
        if row.run is row.ours and row.model in flops
    )


def check_weights(rows: list[Row], what: str) -> list[Check]:
    """Return for each model whether all simulators have the same weights after one round."""
    return [
        Check(
            f"{MODELS[model].title}: {what} after one round to {AGREEMENT:g} "
            f"(largest difference {difference:.1e})",
            difference <= AGREEMENT,
        )
        for model, difference in compare_weights(rows).items()
    ]


if __name__ == "__main__":
    print(json.dumps(time_products()))
