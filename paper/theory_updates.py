"""Theorem 1's bound against measured gradient norms on a function with noisy gradients.

The learner updates on accepted replies only, with m-th step 1/m or a constant step.  The measured
quantity is the squared gradient norm at the randomised estimate, which is iterate i with
probability mu_i / sum(mu); its expectation over i is computed exactly, its mean over runs from
seeds.  The bounds keep the initial gap (D10 of docs/deviations.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.problem_file import read_preset
from covertfl.planning.updates import updates_needed_constant_step, updates_needed_decreasing_step
from paper.averages import average
from paper.noisy_function import NoisyFunction, make_function

UPDATES = (10, 30, 100, 300, 1000, 3000)
QUICK_UPDATES = (10, 30, 100)
RUNS, QUICK_RUNS = 40, 10
PRESET = "sound/main"
# Goals for which the sufficient number of updates is compared with the measured one.
GOALS = (4.0, 2.0, 1.0)


def bound_norm(task: NoisyFunction, gap: float, steps: FloatArray) -> float:
    """Return (D + L s^2 sum(mu^2) / 2) / sum(mu), the bound of Theorem 1's proof for any steps."""
    noise = task.smoothness * task.response_limit**2
    return float((gap + noise * np.sum(steps**2) / 2.0) / np.sum(steps))


def walk(task: NoisyFunction, steps: FloatArray, seed: int, start: FloatArray) -> FloatArray:
    """Return squared gradient norms at the iterates x_1 .. x_M."""
    oracle = read_preset(PRESET).problem.oracle
    generator = np.random.default_rng([seed, 1])
    point, state = start.astype(np.float32), oracle.num_states - 1
    norms = np.empty(len(steps))
    for m, step in enumerate(steps):
        norms[m] = np.sum(task.gradient(point) ** 2)
        is_accepted = False
        while not is_accepted:
            response, sigma = task.respond(point, state, generator=generator)
            state = int(generator.choice(oracle.num_states, p=oracle.transition[state]))
            is_accepted = task.accepts(sigma)
        point = task.step(point, response, step)
    return norms


def choose_steps(task: NoisyFunction, gap: float, updates: int, kind: str) -> FloatArray:
    """Return the steps 1/m, or the constant step sqrt(2 D / (L s^2 M))."""
    if kind == "decreasing":
        return 1.0 / np.arange(1, updates + 1)
    noise = task.smoothness * task.response_limit**2
    return np.full(updates, math.sqrt(2.0 * gap / (noise * updates)))


def measure_norms(updates: tuple[int, ...], runs: int) -> Mapping[str, Any]:
    """Measure gradient norms and compute their bounds, for both kinds of steps."""
    tasks = [make_function(seed) for seed in range(runs)]
    starts = [task.first_weights(seed).astype(np.float64) for seed, task in enumerate(tasks)]
    # All starts have the same distance from their minima, but different values.
    gap = max(task.value(start) for task, start in zip(tasks, starts, strict=True))

    def walk_all(steps: FloatArray) -> list[FloatArray]:
        pairs = zip(tasks, starts, strict=True)
        return [walk(task, steps, seed, start) for seed, (task, start) in enumerate(pairs)]

    rows = []
    for kind in ("decreasing", "constant"):
        # With steps 1/m shorter runs are the beginnings of the longest.
        whole = choose_steps(tasks[0], gap, max(updates), kind)
        longest = walk_all(whole) if kind == "decreasing" else []
        for number in updates:
            steps = choose_steps(tasks[0], gap, number, kind)
            found = longest or walk_all(steps)
            measured = [float(steps @ norms[:number] / steps.sum()) for norms in found]
            rows.append(
                {
                    "steps": kind,
                    "updates": number,
                    "measured": average(measured),
                    "largest": round(max(measured), 5),
                    "bound": round(bound_norm(tasks[0], gap, steps), 5),
                }
            )
    noise = tasks[0].smoothness * tasks[0].response_limit ** 2
    return {
        "runs": runs,
        "gap": round(gap, 4),
        "smoothness_noise": round(noise, 4),
        "rows": rows,
        "goals": [_compare_goal(rows, gap, noise, goal) for goal in GOALS],
    }


def _compare_goal(
    rows: list[dict[str, Any]], gap: float, noise: float, goal: float
) -> dict[str, Any]:
    """Return the updates that suffice for a goal by formulas F1 and F2, and those measured."""
    met = {
        kind: [
            row["updates"]
            for row in rows
            if row["steps"] == kind and row["measured"]["mean"] <= goal
        ]
        for kind in ("decreasing", "constant")
    }
    return {
        "goal": goal,
        "decreasing_bound": float(f"{updates_needed_decreasing_step(gap, noise, goal):.4g}"),
        "decreasing_measured": min(met["decreasing"], default=None),
        "constant_bound": updates_needed_constant_step(gap, noise, goal),
        "constant_measured": min(met["constant"], default=None),
    }
