"""The demonstration: the paper's main experiment on a small scale, and what an eavesdropper gets.

20 clients train the toxicity classifier in 45 rounds, with 16 updates to make.  The public set,
which the eavesdropper owns, has no toxic comments in scenario 1, and a tenth of it is toxic in
scenario 2.  The eavesdropper is the paper's: proportional sampling, equation (6) of the paper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.auditing.run import RunAudit, audit_run
from covertfl.decision.problem import FiniteHorizon
from covertfl.demo.page import Panel, render_page
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.files.atomic import write_atomically
from covertfl.runs.build import KernelCache
from covertfl.runs.progress import RunProgress
from covertfl.runs.run_file import build_run
from covertfl.runs.settings import RunSettings
from covertfl.training import train_all

NUM_SEEDS = 5
LISTENER = "majority"  # the paper's eavesdropper
POSITIVE_SHARES = {1: 0.0, 2: 0.1}
# Table 1 of the paper, by scenario, policy and decoy.
PAPER = {
    (1, "greedy", "public"): {"eavesdropper_accuracy": 0.83, "learner_accuracy": 0.84},
    (1, "optimal", "public"): {"eavesdropper_accuracy": 0.52, "learner_accuracy": 0.81},
    (2, "greedy", "public"): {"eavesdropper_accuracy": 0.83, "learner_accuracy": 0.82},
    (2, "optimal", "public"): {"eavesdropper_accuracy": 0.69, "learner_accuracy": 0.81},
}


@dataclass(frozen=True)
class Condition:
    """A row of the table."""

    scenario: int
    policy: str
    decoy: str

    @property
    def folder(self) -> str:
        """Return the name of the folder of its runs."""
        return f"scenario-{self.scenario}-{self.policy}-{self.decoy}"

    def settings(self, seed: int) -> RunSettings:
        """Return the settings of the run with one seed."""
        content = {
            "task": "toxicity",
            "seed": seed,
            "data": {"public_positive_share": POSITIVE_SHARES[self.scenario]},
            "policy": {"kind": self.policy},
            "decoy": {"kind": self.decoy},
        }
        return build_run(content, "demo", folder=Path())


POLICIES = ("greedy", "optimal", "minority")
CONDITIONS = (
    *(Condition(scenario, policy, "public") for scenario in (1, 2) for policy in POLICIES),
    Condition(2, "optimal", "adversarial"),
    Condition(2, "minority", "adversarial"),
)


def _describe_row(condition: Condition, runs: Sequence[RunAudit]) -> dict[str, Any]:
    """Return a row of `demo --json`.

    Completion over a few runs is partly luck, so the exact probability is given beside it.
    """
    federation = runs[0].federation
    summaries = [run.summary for run in runs if run.summary is not None]
    assert federation is not None and isinstance(federation.problem, FiniteHorizon)
    expected = evaluate_horizon_policy(federation.problem, federation.policy.policy)
    return {
        "scenario": condition.scenario,
        "policy": condition.policy,
        "decoy": condition.decoy,
        "learner_accuracy": _mean(summary.learner_accuracy for summary in summaries),
        "eavesdropper_accuracy": _mean(_find_curve(run)[-1] for run in runs),
        "eavesdropper_worst": max(_find_curve(run)[-1] for run in runs),
        "held_true": sum(run.findings[LISTENER].named or 0.0 for run in runs),
        "runs": len(runs),
        "exposure": _mean(summary.exposure for summary in summaries),
        "completion": _mean(summary.completed for summary in summaries),
        "expected_exposure": expected.exposure,
        "expected_completion": expected.finish_prob,
        "updates_done": _mean(summary.updates_done for summary in summaries),
        "paper": PAPER.get((condition.scenario, condition.policy, condition.decoy)),
    }


def _find_curve(run: RunAudit) -> tuple[float, ...]:
    """Return the accuracy of the eavesdropper's estimate after each round."""
    return run.findings[LISTENER].accuracy or ()


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def run_demo(
    folder: Path,
    *,
    seeds: int = NUM_SEEDS,
    conditions: Sequence[Condition] = CONDITIONS,
    on_round: Callable[[RunProgress], None] | None = None,
) -> dict[str, Any]:
    """Train every condition, audit it and write the page; return what `--json` prints.

    The folder receives the runs, result.json and index.html; each condition has `seeds` runs.
    """
    places = [
        (condition.settings(seed), folder / "runs" / condition.folder / f"seed-{seed}")
        for condition in conditions
        for seed in range(seeds)
    ]
    train_all(places, force=True, on_round=on_round)
    kernels, panels, rows = KernelCache(), [], []
    for number, condition in enumerate(conditions):
        part = places[number * seeds : (number + 1) * seeds]
        audits = [audit_run(path, kernels, names=[LISTENER]) for _, path in part]
        rows.append(_describe_row(condition, audits))
        title = f"scenario {condition.scenario}: {condition.policy}, {condition.decoy} decoy"
        learner, eavesdropper = [run.learner for run in audits], list(map(_find_curve, audits))
        panels.append(Panel(title, np.array(learner), np.array(eavesdropper)))
    content = {"rows": rows, "page": str(folder / "index.html")}
    write_atomically(folder / "result.json", json.dumps(content, indent=2) + "\n")
    write_atomically(folder / "index.html", render_page(rows, panels))
    return content
