"""How good learner and decoys of exchangeable runs are, for `measure_exchangeable.py accuracy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.auditing.baselines import fit_logistic
from covertfl.engines.simulated import run_together
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.federation import start_run
from covertfl.runs.records import MemoryRecords
from covertfl.runs.rounds import run_rounds
from covertfl.runs.settings import RunSettings

Result = dict[str, Any]


def rank(outputs: FloatArray, labels: FloatArray) -> tuple[float, float]:
    """Return the AUC of outputs, and the accuracy of the best threshold or its reverse."""
    from scipy.stats import rankdata

    positive = labels == 1.0
    ranks, count = rankdata(outputs), int(positive.sum())
    auc = (ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(labels) - count))
    ordered = positive[np.argsort(outputs)]
    below = np.concatenate([[0], np.cumsum(~ordered)])
    above = count - np.concatenate([[0], np.cumsum(ordered)])
    right = (below + above) / len(labels)
    return float(auc), float(max(right.max(), 1.0 - right.min()))


def measure_accuracy(settings: RunSettings, seeds: Sequence[int]) -> list[Result]:
    """Train runs and return how good learner and decoys are, beside learners without secrecy."""
    kernels = KernelCache()
    others = {
        "plain": settings.with_condition("greedy", "mirrored"),
        "always": settings.with_condition("always-learn", "mirrored"),
    }
    results = []
    for seed in seeds:
        federations = {
            "replica": build_federation(settings.with_seed(seed), kernels),
            **{
                name: build_federation(other.with_seed(seed), kernels)
                for name, other in others.items()
            },
        }
        finals = run_finals(list(federations.values()))
        clients: Any = federations["replica"].responder
        validation, public = clients.task.validation, clients.task.public
        learner = dict(zip(federations, finals, strict=True))
        decoys = []
        for decoy in learner["replica"].decoys:
            outputs = clients.kernel.predict(decoy, validation.features)[:, 0]
            decoys.append([clients.score(decoy), *rank(outputs, validation.labels)])
        results.append(
            {
                **{
                    name: float(federations[name].responder.score(state.true))
                    for name, state in learner.items()
                },
                "updates": learner["replica"].updates,
                "decoys": decoys,
                "alone": fit_logistic(public, validation, seed=seed),
            }
        )
    return results


def run_finals(federations: Sequence[Any]) -> list[Any]:
    """Run federations in memory and return their final trajectories."""
    states = run_together(
        [(each, run_rounds(each, MemoryRecords(), start_run(each))) for each in federations]
    )
    return [state.learner for state in states]


def report_accuracy(results: Mapping[str, Sequence[Result]]) -> str:
    lines = [
        "| public set | learner | without secrecy, 16 updates | always learning, 136 rounds | "
        "decoy | its ranking (AUC) | best threshold | logistic fit on the public set |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in results.items():
        cells = [
            *([run[key] for run in runs] for key in ("replica", "plain", "always")),
            *([decoy[place] for run in runs for decoy in run["decoys"]] for place in range(3)),
            [run["alone"] for run in runs],
        ]
        shown = " | ".join(f"{np.mean(cell):.3f} ± {np.std(cell, ddof=1):.3f}" for cell in cells)
        finished = np.mean([run["updates"] == 16 for run in runs])
        lines.append(f"| {name} | {shown} |")
        lines.append(f"| | {finished:.0%} of runs finished | | | | | | |")
    return "\n".join(lines)
