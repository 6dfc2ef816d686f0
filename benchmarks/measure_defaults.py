"""Measure the default settings of a run against alternatives: the table of docs/training.md.

    python benchmarks/measure_defaults.py --seeds 300

trains runs of all alternatives in one federation, and reads what was sent from their folders.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from section import read_lines, render_table

from covertfl import FiniteHorizon, Oracle, Run, evaluate_horizon_policy, solve

PAPER, CODE = [5, 10, 20], [8, 11, 18]
ALTERNATIVES: dict[str, dict[str, Any]] = {
    "**defaults: 8, 10, 14 clients, matched decoy**": {},
    "the same, gated decoy": {"gated": True},
    "the same, decoy not gated": {"gated": False},
    "5, 10, 20 clients (text), gated": {"participation": PAPER, "gated": True},
    "5, 10, 20 clients, accepted by model, gated": {
        "participation": PAPER,
        "acceptance": "model",
        "gated": True,
    },
    "5, 10, 20 clients, `min_share = 0.2`, gated": {
        "participation": PAPER,
        "min_share": 0.2,
        "gated": True,
    },
    "8, 11, 18 clients (code), gated": {"participation": CODE, "gated": True},
}
COLUMNS = (
    "settings",
    "success by state",
    "no move",
    "moves",
    "finished",
    "planned",
    "named by (6)",
    "named by repeats",
)


def read_sent(folder: Path) -> dict[bool, list[str]]:
    """Return the names of the weights that were sent, by whether they are the true ones."""
    sent: dict[bool, list[str]] = {True: [], False: []}
    for record in read_lines(folder / "private" / "rounds.jsonl"):
        sent[record["trajectory"] == 0].append(record["weights"])
    return sent


def count_moves(sent: list[str]) -> int:
    """Return how often a query differs from the one before it."""
    return sum(before != after for before, after in pairwise(sent))


def name_larger(true: float, decoy: float) -> float:
    """Return 1 if the number of the truth is the larger one, 1/2 if both are equal."""
    return 0.5 + 0.5 * float(np.sign(true - decoy))


def find_repeats(sent: list[str]) -> float:
    """Return the share of queries that repeat the one before.

    The eavesdropper may as well take the smaller share, so 0 reveals as much as 1.
    """
    return 1.0 - count_moves(sent) / (len(sent) - 1) if len(sent) > 1 else 0.0


def find_planned(problem: FiniteHorizon, success: Any) -> float:
    """Return the probability that all updates are made, with the success of this federation."""
    oracle = Oracle(problem.oracle.transition, success)
    known = FiniteHorizon(
        oracle, problem.privacy_cost, problem.learning_cost, problem.rounds, problem.updates
    )
    policy: Any = solve(known).policy
    return evaluate_horizon_policy(known, policy).finish_prob


def measure(task: str, keys: Mapping[str, Any], seeds: int) -> list[str]:
    """Return the cells of an alternative: the data of seed 0, the rounds of all seeds."""
    run = Run(task, data={"seed": 0}, keep="hashes", **keys)
    with tempfile.TemporaryDirectory(prefix="covertfl-defaults-") as folder:
        summaries = run.train(folder, seeds=seeds).runs
        sent = [read_sent(path) for path in sorted(Path(folder).glob("seed-*"))]
    by_data = keys.get("acceptance") != "model"
    success = summaries[0].success_measured if by_data else summaries[0].success_printed
    assert success is not None
    assert isinstance(run.problem, FiniteHorizon)
    moves = np.array([count_moves(each[False]) for each in sent])
    return [
        ", ".join(f"{prob:.2f}" for prob in success),
        f"{np.mean(moves == 0):.1%}",
        f"{moves.min()} to {moves.max()}",
        f"{np.mean([summary.completed for summary in summaries]):.0%}",
        f"{find_planned(run.problem, success):.0%}",
        f"{np.mean([name_larger(len(each[True]), len(each[False])) for each in sent]):.0%}",
        f"{np.mean([name_larger(*map(find_repeats, each.values())) for each in sent]):.0%}",
    ]


def main() -> None:
    """Print a table for each task."""
    parser = argparse.ArgumentParser(description="Measure default settings against alternatives.")
    parser.add_argument("--seeds", type=int, default=300)
    seeds = parser.parse_args().seeds
    for task in ("toxicity", "digits"):
        rows = [[name, *measure(task, keys, seeds)] for name, keys in ALTERNATIVES.items()]
        table = render_table(COLUMNS, rows, left=len(COLUMNS))
        print(f'\n`task = "{task}"`, {seeds} seeds:\n\n{table}', flush=True)


if __name__ == "__main__":
    main()
