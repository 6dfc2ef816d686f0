"""Figures computed from the records of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.report.records import RunRecords


def stack_by_round(runs: Sequence[RunRecords], key: str) -> FloatArray:
    """Return one entry of the metrics as (runs, rounds), NaN where a run has none."""
    length = max((len(run.metrics) for run in runs), default=0)
    table = np.full((len(runs), length), np.nan)
    for row, run in zip(table, runs, strict=True):
        values = [record[key] for record in run.metrics]
        row[: len(values)] = [np.nan if value is None else value for value in values]
    return table


def list_waits(runs: Sequence[RunRecords]) -> FloatArray:
    """Return the rounds that each update of any run waited."""
    waits = [record["done"] - record["came"] for run in runs for record in run.updates]
    return np.array(waits, dtype=np.float64)


def compute_little_wait(runs: Sequence[RunRecords]) -> float | None:
    """Return the mean wait by Little's law: backlog summed over rounds, divided by updates done."""
    done = sum(len(run.updates) for run in runs)
    if not done:
        return None
    return float(sum(record["backlog"] for run in runs for record in run.rounds)) / done


def average_policy(runs: Sequence[RunRecords]) -> tuple[FloatArray, int]:
    """Return mean learning probabilities by (oracle state, backlog), and the number of rounds.

    A probability is NaN where its pair never occurred.
    """
    records = [record for run in runs for record in run.rounds]
    if not records:
        return np.empty((0, 0)), 0
    states = np.array([record["oracle_state"] for record in records])
    backlogs = np.array([record["backlog"] for record in records])
    probs = np.array([record["learn_prob"] for record in records], dtype=np.float64)
    known = [len(run.setting("oracle", "success") or ()) for run in runs]
    shape = (max(*known, int(states.max()) + 1, 1), int(backlogs.max()) + 1)
    totals, visits = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (states, backlogs), probs)
    np.add.at(visits, (states, backlogs), 1.0)
    means = np.divide(totals, visits, out=np.full(shape, np.nan), where=visits > 0)
    return means, len(records)


def find_backlog_limit(run: RunRecords) -> float | None:
    """Return the mean backlog that the limit allows, None unless the cost is linear in it alone."""
    limit, cost = run.setting("queue", "learning_limit"), run.setting("cost", "learning")
    if limit is None or not isinstance(cost, Mapping):
        return None
    linear = cost.get("shape") == "linear" and cost.get("charged", "always") == "always"
    factors = set(cost.get("by_state") or (1.0,))
    scale = float(cost.get("scale", 1.0)) * float(max(factors))
    return float(limit) / scale if linear and len(factors) == 1 and scale else None


def find_wait_limit(run: RunRecords) -> float | None:
    """Return the mean wait that the limit allows, by Little's law at the arrival rate."""
    backlog = find_backlog_limit(run)
    sizes = run.setting("queue", "arrival_sizes") or {
        run.setting("queue", "arrival_size") or 0: run.setting("queue", "arrival_prob") or 0.0
    }
    rate = sum(float(prob) * float(size) for size, prob in sizes.items())
    return None if backlog is None or rate == 0.0 else backlog / rate


def find_guess(run: RunRecords) -> float:
    """Return the probability of naming the true trajectory by a uniform guess."""
    return 1.0 / run.trajectories
