"""The demonstration: the paper's main experiment on a small scale, and what an eavesdropper gets.

20 clients train the toxicity classifier in 45 rounds, with 16 updates to make.  The public set,
which the eavesdropper owns, has no toxic comments in scenario 1, and a tenth of it is toxic in
scenario 2.  One eavesdropper is the paper's: proportional sampling, equation (6) of the paper.
The other knows problem and policy (`eavesdroppers.likelihood`).  Exchangeable replicas, which hold
it at one half, have the rounds that finish all updates with 95% (`planning.exchangeable`), and so
has one row of each scenario with the policy `minority`, beside the paper's 45 rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.auditing.run import RunAudit, audit_run
from covertfl.decision.policy import Policy
from covertfl.decision.problem import FiniteHorizon
from covertfl.demo.page import Panel, render_page
from covertfl.demo.words import explain_finishing, write_caution, write_headline
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.files.atomic import write_atomically
from covertfl.planning.exchangeable import accepted_by_rounds
from covertfl.runs.build import KernelCache
from covertfl.runs.progress import RunProgress
from covertfl.runs.run_file import build_run
from covertfl.runs.settings import RunSettings
from covertfl.training import train_all

NUM_SEEDS = 5
LISTENER = "majority"  # the paper's eavesdropper
AWARE = "likelihood"  # one that knows the scheme
TRAJECTORIES = 2  # of exchangeable runs
EXCHANGEABLE_ROUNDS = 115  # enough for 16 updates of 2 trajectories with 95%
MINORITY_ROUNDS = 79  # enough for 16 updates with 95%, true queries in the minority
POSITIVE_SHARES = {1: 0.0, 2: 0.1}
SCENARIOS = {1: "no toxic comments", 2: "a tenth of toxic comments"}
# Table 1 of the paper, by scenario, policy and decoy.
PAPER = {
    (1, "greedy", "public"): {"eavesdropper_accuracy": 0.83, "learner_accuracy": 0.84},
    (1, "optimal", "public"): {"eavesdropper_accuracy": 0.52, "learner_accuracy": 0.81},
    (2, "greedy", "public"): {"eavesdropper_accuracy": 0.83, "learner_accuracy": 0.82},
    (2, "optimal", "public"): {"eavesdropper_accuracy": 0.69, "learner_accuracy": 0.81},
}


@dataclass(frozen=True)
class Condition:
    """A row of the table.

    Parameters
    ----------
    rounds : None for the paper's 45
    """

    scenario: int
    policy: str
    decoy: str
    rounds: int | None = None

    @property
    def folder(self) -> str:
        """Return the name of the folder of its runs."""
        suffix = "" if self.rounds is None else f"-{self.rounds}"
        return f"scenario-{self.scenario}-{self.policy}-{self.decoy}{suffix}"

    @property
    def is_exchangeable(self) -> bool:
        """Return whether its trajectories are exchangeable."""
        return self.policy == "exchangeable"

    def settings(self, seed: int) -> RunSettings:
        """Return the settings of the run with one seed."""
        content: dict[str, Any] = {
            "task": "toxicity",
            "seed": seed,
            "data": {"public_positive_share": POSITIVE_SHARES[self.scenario]},
            "policy": {"kind": self.policy},
            "decoy": {"kind": self.decoy},
        }
        if self.rounds is not None:
            content |= {"rounds": self.rounds}
        return build_run(content, "demo", folder=Path())


POLICIES = ("greedy", "optimal", "minority")
CONDITIONS = (
    *(Condition(scenario, policy, "public") for scenario in (1, 2) for policy in POLICIES),
    Condition(2, "optimal", "adversarial"),
    Condition(2, "minority", "adversarial"),
    Condition(1, "minority", "public", MINORITY_ROUNDS),
    Condition(2, "minority", "adversarial", MINORITY_ROUNDS),
    Condition(1, "exchangeable", "replica", EXCHANGEABLE_ROUNDS),
    Condition(2, "exchangeable", "replica", EXCHANGEABLE_ROUNDS),
)


def _describe_row(condition: Condition, runs: Sequence[RunAudit]) -> dict[str, Any]:
    """Return a row of `demo --json`.

    Completion over a few runs is partly luck, so the exact probability is given beside it.
    """
    federation = runs[0].federation
    summaries = [run.summary for run in runs if run.summary is not None]
    assert federation is not None and isinstance(federation.problem, FiniteHorizon)
    exposure, completion = _expect(condition, federation.problem, federation.policy.policy)
    return {
        "scenario": condition.scenario,
        "policy": condition.policy,
        "decoy": condition.decoy,
        "learner_accuracy": _mean(summary.learner_accuracy for summary in summaries),
        "eavesdropper_accuracy": _mean(_find_curve(run, LISTENER)[-1] for run in runs),
        "eavesdropper_worst": max(_find_curve(run, LISTENER)[-1] for run in runs),
        "held_true": _count_named(runs, LISTENER),
        "aware_accuracy": _mean(_find_curve(run, AWARE)[-1] for run in runs),
        "aware_named": _count_named(runs, AWARE),
        "runs": len(runs),
        "rounds": federation.problem.rounds,
        "exposure": _mean(summary.exposure for summary in summaries),
        "completion": _mean(summary.completed for summary in summaries),
        "expected_exposure": exposure,
        "expected_completion": completion,
        "updates": federation.problem.updates,
        "updates_done": _mean(summary.updates_done for summary in summaries),
        "paper": PAPER.get((condition.scenario, condition.policy, condition.decoy)),
    }


def _expect(condition: Condition, problem: FiniteHorizon, policy: Policy) -> tuple[float, float]:
    """Return the expected share of true queries and the probability of all updates, exactly."""
    if condition.is_exchangeable:
        accepted = TRAJECTORIES * problem.updates
        by_rounds = accepted_by_rounds(problem.oracle, accepted, problem.rounds)
        return 1.0 / TRAJECTORIES, float(by_rounds[-1])
    expected = evaluate_horizon_policy(problem, policy)
    return expected.exposure, expected.finish_prob


def _find_curve(run: RunAudit, name: str) -> tuple[float, ...]:
    """Return the accuracy of an eavesdropper's estimate after each round."""
    return run.findings[name].accuracy or ()


def _count_named(runs: Sequence[RunAudit], name: str) -> float:
    """Return in how many runs an eavesdropper names the true model; a tie of K counts 1 / K."""
    return sum(run.findings[name].named or 0.0 for run in runs)


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
        audits = [audit_run(path, kernels, names=[LISTENER, AWARE]) for _, path in part]
        rows.append(_describe_row(condition, audits))
        learner = np.array([run.learner for run in audits])
        curves = [
            np.array([_find_curve(run, name) for run in audits]) for name in (LISTENER, AWARE)
        ]
        panels.append(Panel(rows[-1], learner, *curves))
    content = {
        "headline": write_headline(rows),
        "caution": write_caution(rows),
        "rows": rows,
        "finishing": explain_finishing(rows),
        "page": str(folder / "index.html"),
    }
    write_atomically(folder / "result.json", json.dumps(content, indent=2) + "\n")
    page = render_page({**content, "scenarios": SCENARIOS}, panels)
    write_atomically(folder / "index.html", page)
    return content
