"""Constant steps through a change of the system, 100 runs (the tracking figure of Appendix A).

Half way, the arrivals change from 10 updates with probability 0.03 to 4 with probability 0.1 (D21
of docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.problem import QueueProblem
from covertfl.kernels.job import count_cores
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.rules import extract_rules
from covertfl.solvers.spga.search import SpgaSearch, simulate_source
from covertfl.solvers.spga.settings import Settings, default_settings
from paper.averages import average, band
from paper.cells import CellStore
from paper.experiment import Experiment, Request, ResultDict, load_queue
from paper.figure_spga import (
    SEED,
    describe_optimum,
    describe_paths,
    describe_thresholds,
    effective_thresholds,
    evaluate_run,
    summarise_costs,
)

# The paper's settings (Appendix A).
RUNS = 100
CHANGE_AT = 2000
# Ours: as many iterations after the change as before it.
ITERATIONS = 2 * CHANGE_AT
ROLLOUT = 1000
QUICK_RUNS = 20
PARTS = 8  # experience is sampled in this many parts, to bound the memory
BLOCK = 40  # iterations whose simulated costs are averaged for one point of a curve
LAST = 500  # iterations before the change, and before the end, over which costs are averaged


def track_change(
    before: QueueProblem, after: QueueProblem, settings: Settings, number: int
) -> tuple[SpgaRun, SpgaRun]:
    """Run one search through a change of the system; return it at the change and at the end."""
    seeds = np.random.SeedSequence([SEED, number]).spawn(3)
    ours, first, second = map(np.random.default_rng, seeds)
    search = SpgaSearch(extract_rules(before), settings, generator=ours)
    half = settings.iterations // 2
    ends = []
    for problem, generator in ((before, first), (after, second)):
        source = simulate_source(problem, settings, generator=generator)
        for _ in range(PARTS):
            search.iterate(source, half // PARTS)
        ends.append(search.result())
    return ends[0], ends[1]


def run_searches(
    before: QueueProblem,
    after: QueueProblem,
    settings: Settings,
    runs: int,
    report: Callable[[str, float], None],
) -> Mapping[str, Any]:
    """Run all searches and evaluate them at the change and at the end."""
    found = []
    with ThreadPoolExecutor(count_cores()) as pool:
        search = partial(track_change, before, after, settings)
        for pair in pool.map(search, range(runs)):
            found.append(pair)
            report(f"{len(found)} of {runs} runs", len(found) / runs)
    paths = np.stack([effective_thresholds(run.history.parameters) for _, run in found])
    stages = []
    for stage, problem in enumerate((before, after)):
        optimum = solve_queue(problem)
        judged = [evaluate_run(optimum, pair[stage]) for pair in found]
        window = [pair[stage].history for pair in found]
        stages.append(
            {
                "optimum": describe_optimum(optimum),
                "costs": summarise_costs(judged, problem.limit),
                "late_privacy": average([h.privacy_cost[-LAST:].mean() for h in window]),
                "late_learning": average([h.learning_cost[-LAST:].mean() for h in window]),
                "thresholds": describe_thresholds(
                    paths[:, (stage + 1) * settings.iterations // 2 - 1]
                ),
            }
        )
    costs = {
        "privacy": describe_costs([run.history.privacy_cost for _, run in found]),
        "learning": describe_costs([run.history.learning_cost for _, run in found]),
    }
    return {"paths": describe_paths(paths), "stages": stages, "costs": costs}


def describe_costs(curves: Sequence[FloatArray]) -> dict[str, Any]:
    """Return the mean over runs and its interval, in blocks of iterations."""
    blocks = np.stack([curve.reshape(-1, BLOCK).mean(axis=1) for curve in curves])
    iterations = (np.arange(blocks.shape[1]) + 1) * BLOCK
    return {"iterations": iterations.tolist(), **band(blocks)}


def run_figure(request: Request, store: CellStore) -> ResultDict:
    """Run the searches through the change."""
    names = [f"{request.reading}/tracking-{when}" for when in ("before", "after")]
    before, after = map(load_queue, names)
    runs = request.count_seeds(RUNS, QUICK_RUNS)
    settings = default_settings(before, iterations=ITERATIONS, rollout=ROLLOUT, tracking=True)
    key = {
        "part": "tracking-gaps",
        "block": BLOCK,
        "problems": names,
        "settings": asdict(settings),
        "runs": runs,
    }
    compute = partial(run_searches, before, after, settings, runs, store.report)
    found = store.work_out({"searches": (key, compute)})["searches"]
    return {
        "settings": {
            "problems": names,
            "runs": runs,
            "change_at": CHANGE_AT,
            "iterations": ITERATIONS,
            "rollout": ROLLOUT,
            "last": LAST,
            "seed": SEED,
        },
        **found,
    }


FIGURE = Experiment(
    "figure-tracking", "Constant steps through a change", "Figure 6, Appendix A", run_figure
)
