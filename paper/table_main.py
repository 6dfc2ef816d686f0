"""The main experiment: toxicity, both scenarios, every policy and two decoys (Table 1, Figure 3).

The paper's optimal policy is the stationary one that its policy gradient finds (`spga`); here the
exact one for the finite horizon (`optimal`) and the one that keeps learning queries a minority
(`minority`, formula F5 of docs/paper_map.md) are added.
"""

from __future__ import annotations

from dataclasses import dataclass

from covertfl.demo.run import PAPER as TABLE_1, POSITIVE_SHARES
from paper import covert_runs
from paper.averages import band
from paper.cells import CellStore
from paper.covert_runs import (
    Condition,
    PublicData,
    RunOutcome,
    Setup,
    choose_acceptance,
    choose_learning_rate,
    make_row,
)
from paper.experiment import Experiment, Reading, Request, ResultDict

# The paper's settings (section 4, Appendix A).
ROUNDS, UPDATES = 45, 16
CLIENTS, PARTICIPATION = 20, (5, 10, 20)
MIN_SHARE = 0.25
# The paper has 10 seeds, too few for accuracies that depend on which trajectory is named.
SEEDS = 100
# The names of policies in its Table 1: the optimal one is the stationary one of policy gradient.
PRINTED_POLICIES = {"greedy": "greedy", "spga": "optimal"}
POLICIES = ("greedy", "spga", "optimal", "minority")
DECOYS = ("public", "adversarial")
QUICK_SEEDS = 2


@dataclass(frozen=True)
class TableRow:
    """A row of the table."""

    scenario: int
    policy: str
    decoy: str


def make_setup(reading: Reading) -> Setup:
    """Return the setup of the main experiment."""
    return Setup(
        task="toxicity",
        reading=reading,
        rounds=ROUNDS,
        updates=UPDATES,
        clients=CLIENTS,
        participation=PARTICIPATION,
        acceptance=choose_acceptance(reading),
        min_share=MIN_SHARE,
        learning_rate=choose_learning_rate(reading),
    )


def compute_outcomes(
    request: Request, store: CellStore
) -> tuple[dict[TableRow, list[RunOutcome]], Setup]:
    """Compute the outcomes of every row by seed."""
    setup, seeds = make_setup(request.reading), request.list_seeds(SEEDS, QUICK_SEEDS)
    rows = {
        TableRow(scenario, policy, decoy): Condition(policy, PublicData(positive_share=part), decoy)
        for decoy in DECOYS
        for scenario, part in POSITIVE_SHARES.items()
        for policy in POLICIES
    }
    outcomes, _ = covert_runs.compute_outcomes(setup, seeds, list(rows.values()), store)
    return {row: outcomes[condition] for row, condition in rows.items()}, setup


def run_table(request: Request, store: CellStore) -> ResultDict:
    """Compute Table 1 with intervals, completion and exposure."""
    outcomes, setup = compute_outcomes(request, store)
    rows = [
        {**vars(row), **make_row(runs), "paper": find_printed(row)}
        for row, runs in outcomes.items()
    ]
    return {"settings": setup.describe(), "rows": rows}


def find_printed(row: TableRow) -> dict[str, float] | None:
    """Return the paper's final values, None except for its own decoy and policies."""
    paper = TABLE_1.get((row.scenario, PRINTED_POLICIES.get(row.policy, ""), row.decoy))
    if paper is None:
        return None
    return {name: paper[f"{name}_accuracy"] for name in ("eavesdropper", "learner")}


def run_figure(request: Request, store: CellStore) -> ResultDict:
    """Compute the accuracy of learner and eavesdropper by round."""
    outcomes, setup = compute_outcomes(request, store)
    curves = [
        {
            **vars(row),
            "seeds": len(runs),
            "learner": band([run.learner for run in runs], two_levels=True),
            "eavesdropper": band([run.eavesdropper for run in runs], two_levels=True),
            "paper": find_printed(row),
        }
        for row, runs in outcomes.items()
    ]
    return {"settings": setup.describe(), "curves": curves}


TABLE = Experiment(
    "table-main",
    "Main experiment: what learner and eavesdropper get",
    "Table 1",
    run_table,
    seeds=(SEEDS, QUICK_SEEDS),
)
FIGURE = Experiment(
    "figure-accuracy",
    "Accuracy by round, both scenarios",
    "Figure 3",
    run_figure,
    seeds=(SEEDS, QUICK_SEEDS),
)
