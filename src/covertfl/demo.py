"""The demonstration: the paper's main experiment on a small scale, and what an eavesdropper gets.

The toxicity classifier is trained by 20 clients in 45 rounds, 16 updates owed.  In scenario 1 the
public set, which the eavesdropper holds, has no toxic comments, in scenario 2 a tenth of it.  The
eavesdropper is the paper's: proportional sampling, equation (6).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.atomic_file import write_atomically
from covertfl.demo_page import Panel, render_page
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from covertfl.eavesdroppers.separation import Separator
from covertfl.federation import Federation
from covertfl.horizon_evaluation import evaluate_horizon_policy
from covertfl.problem import FiniteHorizon
from covertfl.run_file import RunSettings, build_run
from covertfl.training import KernelShelf, Progress, build_federation, train_all
from covertfl.transcript import PublicTranscript, read_lines

NUM_SEEDS = 5
POSITIVE_SHARES = {1: 0.0, 2: 0.1}
# The paper's table: eavesdropper's and learner's accuracy by scenario and policy.
PAPER = {
    (1, "greedy"): (0.83, 0.84),
    (1, "optimal"): (0.52, 0.81),
    (2, "greedy"): (0.83, 0.82),
    (2, "optimal"): (0.69, 0.81),
}


@dataclass(frozen=True)
class Condition:
    """A row of the table."""

    scenario: int
    policy: str
    decoy: str

    @property
    def folder(self) -> str:
        """Where its runs go."""
        return f"scenario-{self.scenario}-{self.policy}-{self.decoy}"

    def settings(self, seed: int) -> RunSettings:
        """The run of one seed."""
        content = {
            "task": "toxicity",
            "seed": seed,
            "data": {"public_positive_share": POSITIVE_SHARES[self.scenario]},
            "policy": {"kind": self.policy},
            # As in the paper.  Gated, a decoy hardly moves here: nearly all rounds that would be
            # accepted are spent on learning.
            "decoy": {"kind": self.decoy, "gated": False},
        }
        return build_run(content, "demo", folder=Path())


CONDITIONS = (
    *(
        Condition(scenario, policy, "public")
        for scenario in (1, 2)
        for policy in ("greedy", "optimal", "minority")
    ),
    Condition(2, "optimal", "adversarial"),
    Condition(2, "minority", "adversarial"),
)


@dataclass(frozen=True, eq=False)
class WatchedRun:
    """A run and what the eavesdropper made of it.

    Parameters
    ----------
    summary : of the run
    learner : (N,) accuracy of the true weights after each round
    eavesdropper : (N,) accuracy of the estimate (6) after each round
    held_true : 1 if the last estimate is the true trajectory, 0 if not, half where it ties
    """

    summary: dict[str, Any]
    learner: tuple[float, ...]
    eavesdropper: tuple[float, ...]
    held_true: float


def watch_run(path: Path, federation: Federation) -> WatchedRun:
    """Let the paper's eavesdropper listen to a finished run.

    It is fed the public folder alone; the private records only say afterwards whether it was right.
    """
    clients = federation.answerers
    transcript = PublicTranscript(path / "public")
    private = list(read_lines(path / "private" / "rounds.jsonl"))
    eavesdropper, separator, scores = MajorityEavesdropper(Means()), Separator(), {}
    truth: dict[int, bool] = {}
    curve, held = [], 0.0
    for record, known in zip(transcript.records, private, strict=True):
        weights = clients.layout.join(transcript.read_weights(record.weights))
        trajectory, moved = separator.place(weights)
        query = SeenQuery(record.round, trajectory, weights, moved)
        eavesdropper.observe(query)
        truth[query.trajectory] = known["trajectory"] == 0
        estimate = eavesdropper.estimate()
        for candidate in estimate:
            if candidate.tobytes() not in scores:
                scores[candidate.tobytes()] = clients.score(candidate)
        curve.append(_mean(scores[candidate.tobytes()] for candidate in estimate))
        belief = eavesdropper.belief()
        held = _mean(truth[int(number)] for number in np.flatnonzero(belief == belief.max()))
    learner = [record["learner_score"] for record in read_lines(path / "metrics.jsonl")]
    summary = json.loads((path / "summary.json").read_text("utf-8"))
    return WatchedRun(summary, tuple(learner), tuple(curve), held)


def describe_row(
    condition: Condition, runs: Sequence[WatchedRun], federation: Federation
) -> dict[str, Any]:
    """A row of `demo --json`; a few runs finish by luck, so the exact chance stands beside them."""
    assert isinstance(federation.problem, FiniteHorizon)
    expected = evaluate_horizon_policy(federation.problem, federation.policy.policy)
    paper = (
        PAPER.get((condition.scenario, condition.policy)) if condition.decoy == "public" else None
    )
    return {
        "scenario": condition.scenario,
        "policy": condition.policy,
        "decoy": condition.decoy,
        "learner_accuracy": _mean(run.summary["learner_accuracy"] for run in runs),
        "eavesdropper_accuracy": _mean(run.eavesdropper[-1] for run in runs),
        "eavesdropper_worst": max(run.eavesdropper[-1] for run in runs),
        "held_true": sum(run.held_true for run in runs),
        "runs": len(runs),
        "exposure": _mean(run.summary["exposure"] for run in runs),
        "completion": _mean(run.summary["completed"] for run in runs),
        "expected_exposure": expected.exposure,
        "expected_completion": expected.finish_prob,
        "updates_done": _mean(run.summary["updates_done"] for run in runs),
        "paper": None
        if paper is None
        else {"eavesdropper_accuracy": paper[0], "learner_accuracy": paper[1]},
    }


def make_panels(watched: Mapping[Condition, Sequence[WatchedRun]]) -> list[Panel]:
    """The curves of each condition."""
    return [
        Panel(
            f"scenario {condition.scenario}: {condition.policy}, {condition.decoy} decoy",
            np.array([run.learner for run in runs]),
            np.array([run.eavesdropper for run in runs]),
        )
        for condition, runs in watched.items()
    ]


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def run_demo(
    folder: Path,
    *,
    seeds: int = NUM_SEEDS,
    conditions: Sequence[Condition] = CONDITIONS,
    tell: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Train every condition, listen to it, and write the page; gives what `--json` prints.

    Parameters
    ----------
    folder : where runs, result.json and index.html go
    tell : told of every round of every run
    """
    places = [
        (condition.settings(seed), folder / "runs" / condition.folder / f"seed-{seed}")
        for condition in conditions
        for seed in range(seeds)
    ]
    train_all(places, force=True, tell=tell)
    shelf, watched, rows = KernelShelf(), {}, []
    for number, condition in enumerate(conditions):
        part = places[number * seeds : (number + 1) * seeds]
        federations = [build_federation(run, shelf) for run, _ in part]
        watched[condition] = [
            watch_run(path, federation)
            for (_, path), federation in zip(part, federations, strict=True)
        ]
        rows.append(describe_row(condition, watched[condition], federations[0]))
    content = {"rows": rows, "page": str(folder / "index.html")}
    write_atomically(folder / "result.json", json.dumps(content, indent=2) + "\n")
    write_atomically(folder / "index.html", render_page(rows, make_panels(watched)))
    return content
