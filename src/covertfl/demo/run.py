"""The demonstration: the paper's main experiment on a small scale, and what an eavesdropper gets.

20 clients train the toxicity classifier in 45 rounds, with 16 updates to make.  The public set,
which the eavesdropper owns, has no toxic comments in scenario 1, and a tenth of it is toxic in
scenario 2.  One eavesdropper is the paper's: proportional sampling, equation (6) of the paper.
The other knows problem and policy (`eavesdroppers.likelihood`).  Exchangeable replicas, which hold
it at one half, have the rounds that finish all updates with 95% (`planning.trajectories`), and so
has one row of each scenario with the policy `minority`, beside the paper's 45 rounds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.auditing.run import RunAudit, audit_run
from covertfl.decision.problem import FiniteHorizon
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.files.disk import write_atomically
from covertfl.planning.trajectories import accepted_by_rounds
from covertfl.report.page import render_template
from covertfl.report.plots import (
    BLUE,
    GREEN,
    INK,
    VERMILION,
    inline_drawing,
    new_axes,
    save_drawing,
)
from covertfl.runs.settings import RunSettings, build_run
from covertfl.runs.train import KernelCache, RunProgress
from covertfl.schemes.scheme import PublicFacts
from covertfl.training import train_all

NUM_SEEDS = 5
LISTENER = "majority"  # the paper's eavesdropper
AWARE = "likelihood"  # one that knows the scheme
EXCHANGEABLE_ROUNDS = 115  # enough for 16 updates of 2 trajectories with 95%
MINORITY_ROUNDS = 79  # enough for 16 updates with 95%, true queries in the minority
POSITIVE_SHARES = {1: 0.0, 2: 0.1}
SCENARIOS = {1: "no toxic comments", 2: "a tenth of toxic comments"}
# Table 1 of the paper, by scenario, policy and decoy.
PAPER: Mapping[tuple[int, str | None, str | None], Mapping[str, float]] = {
    (1, "greedy", "public"): {"eavesdropper_accuracy": 0.83, "learner_accuracy": 0.84},
    (1, "optimal", "public"): {"eavesdropper_accuracy": 0.52, "learner_accuracy": 0.81},
    (2, "greedy", "public"): {"eavesdropper_accuracy": 0.83, "learner_accuracy": 0.82},
    (2, "optimal", "public"): {"eavesdropper_accuracy": 0.69, "learner_accuracy": 0.81},
}
POLICIES = ("greedy", "optimal", "minority")
Row = Mapping[str, Any]
PANEL_SIZE = {"width": 3.6, "height": 2.4}  # inches; three beside each other, or one on a phone


@dataclass(frozen=True)
class Condition:
    """A row of the table.

    Parameters
    ----------
    policy, decoy : None where the scheme has none
    rounds : None for the paper's 45
    """

    scenario: int
    scheme: str
    policy: str | None = None
    decoy: str | None = None
    rounds: int | None = None

    @property
    def folder(self) -> str:
        """Return the name of the folder of its runs."""
        suffix = "" if self.rounds is None else f"-{self.rounds}"
        name = self.scheme if self.policy is None else f"{self.policy}-{self.decoy}"
        return f"scenario-{self.scenario}-{name}{suffix}"

    def settings(self, seed: int) -> RunSettings:
        """Return the settings of the run with one seed."""
        content: dict[str, Any] = {
            "task": "toxicity",
            "seed": seed,
            "scheme": self.scheme,
            "data": {"public_positive_share": POSITIVE_SHARES[self.scenario]},
        }
        if self.policy is not None:
            content |= {"policy": {"kind": self.policy}, "decoy": {"kind": self.decoy}}
        if self.rounds is not None:
            content |= {"rounds": self.rounds}
        return build_run(content, "demo", folder=Path())


CONDITIONS = (
    *(Condition(one, "scheduled", policy, "public") for one in (1, 2) for policy in POLICIES),
    Condition(2, "scheduled", "optimal", "adversarial"),
    Condition(2, "scheduled", "minority", "adversarial"),
    Condition(1, "scheduled", "minority", "public", MINORITY_ROUNDS),
    Condition(2, "scheduled", "minority", "adversarial", MINORITY_ROUNDS),
    Condition(1, "exchangeable", rounds=EXCHANGEABLE_ROUNDS),
    Condition(2, "exchangeable", rounds=EXCHANGEABLE_ROUNDS),
)


def _describe_row(condition: Condition, runs: Sequence[RunAudit]) -> dict[str, Any]:
    """Return a row of `demo --json`.

    Completion over a few runs is partly luck, so the exact probability is given beside it.
    """
    federation = runs[0].federation
    summaries = [run.summary for run in runs if run.summary is not None]
    assert federation is not None and isinstance(federation.problem, FiniteHorizon)
    exposure, completion = _expect(federation.problem, federation.scheme.describe())
    return {
        "scenario": condition.scenario,
        "scheme": condition.scheme,
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


def _expect(problem: FiniteHorizon, known: PublicFacts) -> tuple[float, float]:
    """Return the expected share of true queries and the probability of all updates, exactly."""
    if known.is_symmetric:
        accepted = known.trajectories * problem.updates
        by_rounds = accepted_by_rounds(problem.oracle, accepted, problem.rounds)
        return 1.0 / known.trajectories, float(by_rounds[-1])
    expected = evaluate_horizon_policy(problem, known.policy)
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


def write_headline(rows: Sequence[Row]) -> str:
    """Return in one sentence what an eavesdropper that counts queries ends up with."""
    plain, covert, _ = _split(rows)
    parts = []
    if plain:
        parts.append(
            "without covertness, an eavesdropper ends up with a model of "
            f"{_span(plain, 'eavesdropper_accuracy')} accuracy, and its owner with "
            f"{_span(plain, 'learner_accuracy')}"
        )
    if covert:
        parts.append(
            "with covertness, an eavesdropper that counts queries ends up with "
            f"{_span(covert, 'eavesdropper_accuracy')}, where guessing has 50%, and the owner with "
            f"{_span(covert, 'learner_accuracy')}"
        )
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}." if parts else ""


def write_caution(rows: Sequence[Row]) -> str:
    """Return what an eavesdropper that knows the scheme ends up with."""
    _, covert, replicas = _split(rows)
    sentences = []
    if covert:
        sentences.append(
            "An eavesdropper that knows the scheme finds the true model in "
            f"{_count(covert, 'aware_named')} covert runs."
        )
    if replicas:
        sentences.append(
            "Exchangeable replicas leave even that one a guess between two models: it is right in "
            f"{_count(replicas, 'aware_named')} runs, a tie counting one half, and the owner has "
            f"{_span(replicas, 'learner_accuracy')}."
        )
    return " ".join(sentences)


def explain_finishing(rows: Sequence[Row]) -> str:
    """Return why runs end before all updates are made, and how many rounds it takes."""
    sentences = [
        f"Why a run may not make all {rows[0]['updates']} updates: a round counts only if enough "
        "clients take part, and the rounds are limited."
    ]
    for rounds in sorted({int(row["rounds"]) for row in rows}):
        members = [row for row in rows if row["rounds"] == rounds]
        whose = "the paper's " if any(row["paper"] for row in members) else ""
        sentences.append(
            f"With {whose}{rounds} rounds {_span(members, 'expected_completion')} of runs are "
            f"expected to make them all; here {_count_finished(members)} did."
        )
    sentences.append(
        "Runs with the same seed meet the same clients in every row, so a seed with few clients "
        "falls short in every row of as many rounds."
    )
    return " ".join(sentences)


def _split(rows: Sequence[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows that hide nothing, those of the paper's scheme, and those of replicas."""
    plain = [row for row in rows if row["policy"] == "greedy"]
    replicas = [row for row in rows if row["policy"] is None]
    return plain, [row for row in rows if row not in [*plain, *replicas]], replicas


def _span(rows: Iterable[Row], key: str) -> str:
    """Return the smallest and the largest percentage, or the one they share."""
    ends = [f"{100.0 * pick(row[key] for row in rows):.0f}%" for pick in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def _count(rows: Iterable[Row], key: str) -> str:
    return f"{sum(row[key] for row in rows):g} of {sum(row['runs'] for row in rows)}"


def _count_finished(rows: Sequence[Row]) -> str:
    """Return how many runs of each row finished, the fewest and the most over rows."""
    counts = [round(row["completion"] * row["runs"]) for row in rows]
    return f"{' to '.join(map(str, sorted({min(counts), max(counts)})))} of {rows[0]['runs']}"


@dataclass(frozen=True, eq=False)
class Panel:
    """The curves of one condition: accuracies after each round, (runs, N).

    Parameters
    ----------
    row : of the table, with scenario, policy, decoy and rounds
    eavesdropper : the paper's, which counts queries
    aware : one that knows the scheme
    """

    row: Mapping[str, Any]
    learner: FloatArray
    eavesdropper: FloatArray
    aware: FloatArray


def render_page(content: Mapping[str, Any], panels: Sequence[Panel]) -> str:
    """Render the page, complete in itself, from what `run_demo` returns and the panels."""
    drawn = [
        {"row": panel.row, "drawing": _draw_panel(panel, f"panel-{number}")}
        for number, panel in enumerate(panels)
    ]
    return render_template("covertfl.demo", "demo.html", {**content, "panels": drawn})


def _draw_panel(panel: Panel, name: str) -> str:
    """Draw the accuracy of learner and eavesdroppers by round, as SVG in the page's colours."""
    curves: Any = (
        (BLUE, "-", panel.learner),
        (VERMILION, "-", panel.eavesdropper),
        (GREEN, "--", panel.aware),
    )
    with new_axes(**PANEL_SIZE) as axes:
        for colour, style, values in curves:
            rounds = np.arange(1, values.shape[1] + 1)
            axes.plot(rounds, values.mean(axis=0), color=colour, linestyle=style)
            band: Any = {"color": colour, "alpha": 0.15, "linewidth": 0}
            axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), **band)
        axes.axhline(0.5, color=INK, linewidth=1.0, linestyle=":")
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy")
        axes.set_xlim(1, panel.learner.shape[1])
        axes.set_ylim(0.3, 0.9)
        return inline_drawing(save_drawing(axes), name)
