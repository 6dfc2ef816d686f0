"""Measure the default settings of a run against alternatives: the table of docs/training.md.

    python scripts/measure_defaults.py --seeds 300

Nothing is trained: actions, acceptance and moves do not depend on the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from paper.trials.schedule import Schedule, draw_schedule, follow_estimate, score_estimate

from covertfl.decision.problem import FiniteHorizon
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.run_file import build_run

PAPER, CODE = [5, 10, 20], [8, 11, 18]
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "**defaults: 8, 10, 14 clients, matched decoy**": {},
    "the same, gated decoy": {"decoy": {"gated": True}},
    "the same, decoy not gated": {"decoy": {"gated": False}},
    "5, 10, 20 clients (text), gated": {
        "federation": {"participation": PAPER},
        "decoy": {"gated": True},
    },
    "5, 10, 20 clients, accepted by model, gated": {
        "federation": {"participation": PAPER, "acceptance": "model"},
        "decoy": {"gated": True},
    },
    "5, 10, 20 clients, `min_share = 0.2`, gated": {
        "federation": {"participation": PAPER, "min_share": 0.2},
        "decoy": {"gated": True},
    },
    "8, 11, 18 clients (code), gated": {
        "federation": {"participation": CODE},
        "decoy": {"gated": True},
    },
}
HEADER = (
    "| settings | success by state | no move | moves | finished | planned | named by (6) "
    "| named by repeats |\n" + "| --- " * 8 + "|"
)


def name_by_repeats(schedule: Schedule) -> float:
    """Return how often the truth is the trajectory with the larger share of repeats, 1/2 in a tie.

    The eavesdropper may as well take the smaller share, so 0 reveals as much as 1.
    """
    shares = []
    for trajectory in (True, False):
        rounds = zip(schedule.learns, schedule.moves, strict=True)
        moved = [moves for learns, moves in rounds if learns == trajectory]
        shares.append(1.0 - np.mean(moved[:-1]) if len(moved) > 1 else 0.0)
    return 0.5 + 0.5 * float(np.sign(shares[0] - shares[1]))


def measure(task: str, name: str, sections: Mapping[str, Any], seeds: int) -> str:
    """Return a row of the table: the data of seed 0, the rounds of all seeds."""
    settings = build_run({"task": task, **sections}, "defaults", folder=Path())
    federation = build_federation(settings, KernelCache())
    clients, problem = federation.responder, federation.problem
    assert isinstance(clients, ClientResponder) and isinstance(problem, FiniteHorizon)
    planned = evaluate_horizon_policy(problem, federation.policy.policy).finish_prob
    schedules = []
    for seed in range(seeds):
        own = settings.with_seed(seed)
        responder = replace(clients, settings=own)
        schedules.append(draw_schedule(replace(federation, settings=own, responder=responder)))
    moves = [len(schedule.list_queries(learns=False)) for schedule in schedules]
    finished = np.mean([schedule.is_completed for schedule in schedules])
    named = np.mean([score_estimate(follow_estimate(schedule)[-1]) for schedule in schedules])
    repeats = np.mean([name_by_repeats(schedule) for schedule in schedules])
    success = ", ".join(f"{prob:.2f}" for prob in problem.oracle.success)
    return (
        f"| {name} | {success} | {np.mean(np.array(moves) == 0):.1%} "
        f"| {min(moves)} to {max(moves)} | {finished:.0%} "
        f"| {planned:.0%} | {named:.0%} | {repeats:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure default settings against alternatives.")
    parser.add_argument("--seeds", type=int, default=300)
    seeds = parser.parse_args().seeds
    for task in ("toxicity", "digits"):
        print(f'\n`task = "{task}"`, {seeds} seeds:\n\n{HEADER}')
        for name, sections in ALTERNATIVES.items():
            print(measure(task, name, sections, seeds), flush=True)


if __name__ == "__main__":
    main()
