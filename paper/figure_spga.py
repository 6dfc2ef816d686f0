"""Convergence of the policy gradient's thresholds over 100 runs, with the exact ones (Figure 4).

Algorithm 1 is run as printed and in corrected form (D12 to D17 of docs/deviations.md), on the queue
of the reading and on those that the paper's text and its published code describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.problem import QueueProblem
from covertfl.errors import CovertflError
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.kernels.job import count_cores
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.score import measure_gap
from covertfl.solvers.spga.search import solve_spga
from covertfl.solvers.spga.settings import Settings, default_settings, printed_settings
from covertfl.solvers.structure import find_queue_thresholds
from paper.averages import average, round_curve
from paper.cells import CellStore
from paper.experiment import Experiment, Request, ResultDict, load_queue

# The paper's settings (section 4, Appendix A).
RUNS = 100
PRINTED_ITERATIONS = 4000
# Ours: shorter than the default search, so that a hundred take less than a minute.
ITERATIONS, ROLLOUT = 2000, 2000
SEED = 1
QUICK_RUNS = 20
POINTS = 101  # kept of a curve
NO_ARRIVAL = 0
PAPERS = ("paper-text", "paper-code")  # readings that are shown beside the requested one
FARTHEST = 10.0  # times the limit; beyond it a policy has given up on the queue


def choose_variants(problem: QueueProblem) -> dict[str, Settings]:
    """Return the settings of Algorithm 1, as printed and corrected."""
    return {
        "printed": printed_settings(problem, iterations=PRINTED_ITERATIONS),
        "corrected": default_settings(problem, iterations=ITERATIONS, rollout=ROLLOUT),
    }


def effective_thresholds(parameters: FloatArray) -> FloatArray:
    """Return (..., W) thresholds without an arrival: theta_1 and theta_2 weighted by h."""
    theta1, theta2, h = np.moveaxis(parameters[..., NO_ARRIVAL], -2, 0)
    return np.asarray(h * theta1 + (1.0 - h) * theta2)


def describe_optimum(solution: QueueSolution) -> dict[str, Any]:
    """Return the averages of the exact optimum, and the backlogs from which it surely learns.

    Such a backlog is chi_2 of equation (13) if the policy has that form; otherwise the smallest
    from which on it learns at every larger one.  Both are for rounds without an arrival.
    """
    thresholds = find_queue_thresholds(solution)
    if thresholds is None:
        certain = [find_last_switch(probs) for probs in solution.policy.table[:, NO_ARRIVAL]]
    else:
        columns = [column[NO_ARRIVAL] for column in thresholds]
        certain = [None if column is None else column[1] for column in columns]
    return {
        "privacy_cost": round(solution.evaluation.privacy_cost, 6),
        "learning_cost": round(solution.evaluation.learning_cost, 6),
        "limit": solution.problem.limit,
        "capacity": solution.problem.capacity,
        "has_threshold_form": thresholds is not None,
        "thresholds": certain,
    }


def find_last_switch(probs: FloatArray) -> int | None:
    """Return the smallest backlog from which on learning is certain, None if there is none."""
    uncertain = np.flatnonzero(probs < 1.0)
    first = int(uncertain[-1]) + 1
    return first if first < len(probs) else None


def describe_paths(paths: FloatArray) -> dict[str, Any]:
    """Return mean, 10% and 90% quantiles over runs of (runs, K, W) paths, by oracle state."""
    at = np.unique(np.linspace(0, paths.shape[1] - 1, POINTS).round().astype(np.int64))
    states = []
    for state in range(paths.shape[2]):
        kept = np.ascontiguousarray(paths[:, at, state])
        low, high = np.quantile(kept, [0.1, 0.9], axis=0)
        mean = round_curve(kept.mean(axis=0))
        states.append({"mean": mean, "low": round_curve(low), "high": round_curve(high)})
    return {"iterations": (at + 1).tolist(), "states": states}


def evaluate_run(optimum: QueueSolution, run: SpgaRun) -> dict[str, float]:
    """Return the exact average costs of a run's policy and its gap at equal learning cost.

    All are NaN if the policy gives up on the queue, so that it has no averages.
    """
    problem = optimum.problem
    policy = run.policy(problem)
    try:
        evaluation = evaluate_queue_policy(problem, policy)
        gap = measure_gap(problem, policy)
    except CovertflError:
        return dict.fromkeys(("privacy", "learning", "gap"), float("nan"))
    return {"privacy": evaluation.privacy_cost, "learning": evaluation.learning_cost, "gap": gap}


def summarise_costs(judged: list[dict[str, float]], limit: float) -> dict[str, Any]:
    """Count the runs that keep the limit within 5%, and average those that did not give up."""
    columns = (np.array([entry[key] for entry in judged]) for key in ("privacy", "learning", "gap"))
    privacy, learning, gaps = columns
    with np.errstate(invalid="ignore"):
        sane = learning <= FARTHEST * limit
    known = sane & np.isfinite(gaps)
    return {
        "runs": len(judged),
        "gave_up": int(np.count_nonzero(~sane)),
        "keep_limit": int(np.count_nonzero(learning[sane] <= 1.05 * limit)),
        "privacy_cost": average(privacy[sane].tolist()) if sane.any() else None,
        "learning_cost": average(learning[sane].tolist()) if sane.any() else None,
        "gap": average(gaps[known].tolist()) if known.any() else None,
    }


def run_variant(problem: QueueProblem, settings: Settings, runs: int) -> Mapping[str, Any]:
    """Run one variant of the algorithm on one queue."""
    optimum = solve_queue(problem)
    found = solve_spga(problem, settings, seed=SEED, runs=runs, threads=count_cores())
    paths = np.stack([effective_thresholds(run.history.parameters) for run in found])
    judged = [evaluate_run(optimum, run) for run in found]
    return {
        "paths": describe_paths(paths),
        "costs": summarise_costs(judged, problem.limit),
        "optimum": describe_optimum(optimum),
        "final": describe_thresholds(paths[:, -1]),
    }


def describe_thresholds(thresholds: FloatArray) -> list[dict[str, float]]:
    """Return mean and deviation over runs of (runs, W) thresholds, by oracle state."""
    return [
        {"mean": round(float(column.mean()), 3), "deviation": round(float(column.std()), 3)}
        for column in thresholds.T
    ]


def run_figure(request: Request, store: CellStore) -> ResultDict:
    """Run both variants on the queue of the reading, of the paper's text and of its code."""
    names = dict.fromkeys(f"{reading}/queue" for reading in (request.reading, *PAPERS))
    runs = request.count_seeds(RUNS, QUICK_RUNS)
    work, titles = {}, []
    for name in names:
        problem = load_queue(name)
        for variant, settings in choose_variants(problem).items():
            key = {"part": "spga-gaps", "problem": name, "settings": asdict(settings), "runs": runs}
            compute = partial(run_variant, problem, settings, runs)
            work[f"{name}, {variant}"] = key, compute
            titles.append({"problem": name, "variant": variant})
    found = store.work_out(work).values()
    return {
        "settings": {
            "runs": runs,
            "printed_iterations": PRINTED_ITERATIONS,
            "iterations": ITERATIONS,
            "rollout": ROLLOUT,
            "seed": SEED,
        },
        "panels": [title | panel for title, panel in zip(titles, found, strict=True)],
    }


FIGURE = Experiment(
    "figure-spga", "Convergence of the policy gradient's thresholds", "Figure 4", run_figure
)
