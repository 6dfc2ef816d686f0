"""Simulated federations: covertfl's engine against a PyTorch loop, pfl and Flower's simulation.

Every simulator runs in a separate process, so that its memory can be measured and it can be killed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path

import numpy as np
from measurement import Timing, format_ratio, load_peer
from process_tree import run_command
from section import Check, Section
from sgemm_peak import measure_peak
from simulator_process import ANSWER, BATCH_SIZE, BATCHES, CLIENTS, TITLES, WEIGHTS

from covertfl.errors import Missing
from covertfl.kernels.weights import Vector

PEER_PACKAGES = ("torch", "pfl", "flwr", "ray")
HERE = Path(__file__).parent
SEEDS_AT_ONCE = 10
AGREEMENT = 1e-5
TRIAL_ROUNDS, QUICK_ROUNDS = 3, 5
# Time limit of one process, in seconds.
LIMIT = 240.0
EXPERIMENT_SEEDS, QUICK_EXPERIMENT_SEEDS = 10, 2
MOST_SECONDS = 180.0
TIMED, QUICK_TIMED = ("head", "logistic", "mlp"), ("logistic",)
# The same model without dropout, for comparing weights.
COMPARED = {"head": "still-head", "logistic": "logistic", "mlp": "mlp"}
# Two layers forward and their gradients, and the derivatives by the hidden units.
MLP_FLOPS = {"mlp": 4 * (784 * 200 + 200 * 10) + 2 * 200 * 10}
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
    script : file that runs it
    threads : numbers of PyTorch threads to choose from
    seeds : number of runs at once
    rounds : number of timed rounds
    repeats : number of processes, one after another, because the load of the machine varies
    """

    name: str
    script: str
    threads: tuple[int, ...] = (1,)
    seeds: int = 1
    rounds: int = 20
    repeats: int = 2


OURS = Simulator("covertfl", "peer_covertfl.py", rounds=100, repeats=3)
OURS_AT_ONCE = Simulator(
    f"covertfl, {SEEDS_AT_ONCE} seeds at once",
    "peer_covertfl.py",
    seeds=SEEDS_AT_ONCE,
    rounds=10,
    repeats=3,
)
PEERS = (
    Simulator("PyTorch loop", "peer_torch_loop.py", threads=(1, 2)),
    Simulator("pfl", "peer_pfl.py", threads=(1, 2)),
    Simulator("Flower", "peer_flower.py", rounds=30),
)


@dataclass(frozen=True)
class Run:
    """Timings, memory and weights of one process."""

    timing: Timing
    memory: int
    weights: Vector


def run_once(simulator: Simulator, model: str, rounds: int, threads: int) -> Run | None:
    """Run one process; return None if it took too long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        arguments = (model, rounds, threads, simulator.seeds, name)
        if not run_command([HERE / simulator.script, *arguments], limit=LIMIT):
            return None
        answer = json.loads((Path(name) / ANSWER).read_text())
        weights = np.load(Path(name) / WEIGHTS)
    seconds = tuple(second / simulator.seeds for second in answer["seconds"])
    return Run(Timing(seconds), answer["memory"], weights)


def choose_threads(simulator: Simulator, model: str) -> int:
    """Return the number of threads that is fastest in a few rounds."""
    if len(simulator.threads) == 1:
        return simulator.threads[0]
    trials = {
        threads: run_once(simulator, model, TRIAL_ROUNDS, threads) for threads in simulator.threads
    }
    best = {threads: run.timing.best for threads, run in trials.items() if run is not None}
    return min(best, key=best.__getitem__, default=simulator.threads[0])


def run_repeats(simulators: Sequence[Simulator], model: str, *, quick: bool) -> list[Run | None]:
    """Return the rounds of all repeats of each simulator, None if none ended in time.

    The simulators take turns, so that a busy time of the machine falls on all of them.
    """
    threads = [choose_threads(simulator, model) for simulator in simulators]
    runs: list[list[Run]] = [[] for _ in simulators]
    for repeat in range(1 if quick else max(simulator.repeats for simulator in simulators)):
        for simulator, number, finished in zip(simulators, threads, runs, strict=True):
            rounds = QUICK_ROUNDS if quick else simulator.rounds
            if repeat < simulator.repeats:
                run = run_once(simulator, model, rounds, number)
                finished.extend([] if run is None else [run])
    return [_join(finished) for finished in runs]


def _join(runs: Sequence[Run]) -> Run | None:
    if not runs:
        return None
    seconds = chain.from_iterable(run.timing.seconds for run in runs)
    return Run(Timing(tuple(seconds)), max(run.memory for run in runs), runs[0].weights)


# --- the comparison -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One simulator on one model; `run` is None if it was killed."""

    model: str
    simulator: Simulator
    run: Run | None
    ours: Run

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
        title, name = TITLES[self.model], self.simulator.name
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
    """Return the seconds of the toxicity experiment, infinite if it took too long."""
    with tempfile.TemporaryDirectory() as name:
        script = HERE / "toxicity_experiment.py"
        if not run_command([script, seeds, name], limit=3 * MOST_SECONDS):
            return float("inf")
        return float(json.loads((Path(name) / ANSWER).read_text())["seconds"][0])


def measure(*, quick: bool) -> Section:
    """Measure the whole comparison."""
    for package in PEER_PACKAGES:
        load_peer(package, package)
    rows = [
        row
        for model in (QUICK_TIMED if quick else TIMED)
        for row in measure_model(model, OURS, (OURS_AT_ONCE, *PEERS), quick=quick)
    ]
    seeds = QUICK_EXPERIMENT_SEEDS if quick else EXPERIMENT_SEEDS
    return Section(
        "Simulated training: covertfl's engine against a PyTorch loop, pfl and Flower",
        (*ABOUT, f"Peers: {_describe_versions()}."),
        (
            "model",
            "simulator",
            "time per round",
            "rounds per second",
            "memory",
            "ratio",
            "ratio of best rounds",
        ),
        tuple(row.cells for row in rows),
        _check(rows, compare_weights(rows), time_experiment(seeds), seeds, quick=quick),
        ratios={
            f"{TITLES[row.model]}, {row.simulator.name}": row.ratio
            for row in rows
            if row.run and row.simulator is not OURS
        },
        notes=describe_shares(rows, MLP_FLOPS, measure_peak()),
    )


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
        f"{TITLES[row.model]} at {work * flops[row.model] / row.ours.timing.best / peak:.0%} of "
        f"sgemm peak ({peak / 1e9:.0f} GFLOP/s)"
        for row in rows
        if row.run is row.ours and row.model in flops
    )


def _describe_versions() -> str:
    return ", ".join(f"{package} {metadata.version(package)}" for package in PEER_PACKAGES)


def _check(
    rows: list[Row], differences: dict[str, float], seconds: float, seeds: int, *, quick: bool
) -> tuple[Check, ...]:
    checks = [
        Check(
            f"{TITLES[model]}: without dropout all have the same weights after one round to "
            f"{AGREEMENT:g} (largest difference {difference:.1e})",
            difference <= AGREEMENT,
        )
        for model, difference in differences.items()
    ]
    targets = () if quick else rows
    for row in targets:
        least = LEAST_RATIO[row.model].get(row.simulator.name)
        if least is not None:
            text = (
                f"{TITLES[row.model]}: at least {least:.0f} times as fast as {row.simulator.name}"
            )
            checks.append(Check(f"{text} ({format_ratio(row.ratio)})", row.ratio >= least))
    checks.append(
        Check(
            f"the toxicity experiment, {seeds} seeds x 2 policies x 2 scenarios, in under "
            f"{MOST_SECONDS:.0f} s ({seconds:.0f} s)",
            seconds < MOST_SECONDS,
        )
    )
    return tuple(checks)


ABOUT = (
    f"One round of FedAvg: {CLIENTS} clients, {BATCHES} batches of {BATCH_SIZE} each, Adam with "
    "learning rate 1e-3 and a fresh state in every round, the same synthetic data and initial "
    "weights.  The toxicity head has dropout 0.1.  The first round of each process, which includes "
    "start-up (Ray takes 10 to 20 s), is not counted.  Best and median time per round, and rounds "
    "per second, are over all other rounds of all processes.  With ten seeds at once, the time is "
    "per round of one seed.",
    "covertfl does a round as its engine does: each client's examples are shuffled, all jobs go to "
    "the kernel together, and the replies are checked and averaged.  The others keep the examples "
    "in one order, which is less work.",
    "All peers use PyTorch's fused Adam, the fastest it has here.  The loop and pfl (federated "
    "averaging, simulated backend, one process) use one or two PyTorch threads, whichever is "
    f"faster in {TRIAL_ROUNDS} rounds.  Flower's simulation uses its Message API and FedAvg "
    "without evaluation, with one single-threaded Ray actor per core.  It polls for replies every "
    "0.1 s, so its rounds are multiples of that.",
    "Memory is the peak of the process.  For Flower it is what its server, Ray and the actors hold "
    "together after the last round, with shared pages counted once.  Ratios are of rounds per "
    "second, relative to covertfl with one seed, and of the best round of each.",
    "Weights are compared with seed 2.  If an input of a ReLU of the MLP is within rounding error "
    "of 0, as with seeds 1, 4 and 7 of the first eight (2e-7 from 0 with seed 1), two programs can "
    "disagree on its sign, and weights of that unit then differ by up to 8e-5 after a round; with "
    "the other five seeds the difference is at most 7e-6.",
    "The toxicity experiment is `train_all` from settings to finished folders, 45 rounds in each "
    "run, policies greedy and optimal, public sets with no and with 10% positives.",
    "The sgemm peak is that of products of 2048 x 2048 matrices by PyTorch on all cores, measured "
    "in the same run; the share counts the products of the network only, in the best round.",
)
