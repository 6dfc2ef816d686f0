"""The main experiment: toxicity, both scenarios, every policy and two decoys (Table 1, Figure 2).

The paper's optimal policy is the stationary one that its policy gradient finds (`spga`); here the
exact one for the finite horizon (`optimal`) and the one that keeps learning queries a minority
(`minority`, formula F5 of docs/paper_map.md) are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from covertfl.decision.problem import FiniteHorizon
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.experiments.experiment import Experiment, Reading, Request, ResultDict
from covertfl.experiments.trials.averages import band
from covertfl.experiments.trials.cells import CellStore
from covertfl.experiments.trials.covert_runs import CovertRuns, Eavesdropping, RunOutcome, make_row
from covertfl.experiments.trials.setups import (
    PublicData,
    Setup,
    choose_acceptance,
    choose_learning_rate,
    prepare_trial,
)
from covertfl.runs.build import KernelCache

# The paper's settings (section 4, Appendix A).
ROUNDS, UPDATES = 45, 16
CLIENTS, PARTICIPATION = 20, (5, 10, 20)
MIN_SHARE = 0.25
SEEDS = 10
POSITIVE_SHARES: Mapping[int, float] = {1: 0.0, 2: 0.1}
# Its Table 1: accuracy of eavesdropper and learner by scenario and policy.  Its optimal policy is
# the stationary one of the policy gradient.
PAPER: Mapping[tuple[int, str], tuple[float, float]] = {
    (1, "greedy"): (0.83, 0.84),
    (1, "spga"): (0.52, 0.81),
    (2, "greedy"): (0.83, 0.82),
    (2, "spga"): (0.69, 0.81),
}
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
) -> tuple[dict[TableRow, list[RunOutcome]], dict[str, dict[str, float]], Setup]:
    """Compute the outcomes of every row, and the exact probabilities of each policy."""
    setup, kernels = make_setup(request.reading), KernelCache()
    seeds = request.count_seeds(SEEDS, QUICK_SEEDS)
    runs = [
        prepare_trial(setup, policy, seed, kernels) for seed in range(seeds) for policy in POLICIES
    ]
    places = [(scenario, decoy) for scenario in POSITIVE_SHARES for decoy in DECOYS]
    against = [
        Eavesdropping(PublicData(positive_share=POSITIVE_SHARES[scenario]), decoy)
        for scenario, decoy in places
    ]
    found = CovertRuns(store).work_out(runs, against, at_once=2 * len(POLICIES))
    outcomes: dict[TableRow, list[RunOutcome]] = {
        TableRow(scenario, policy, decoy): []
        for decoy in DECOYS
        for scenario in POSITIVE_SHARES
        for policy in POLICIES
    }
    for (number, other), outcome in sorted(found.items()):
        scenario, decoy = places[other]
        outcomes[TableRow(scenario, runs[number].policy, decoy)].append(outcome)
    expected = {}
    for run in runs[: len(POLICIES)]:
        problem = run.federation.problem
        assert isinstance(problem, FiniteHorizon)
        exact = evaluate_horizon_policy(problem, run.federation.policy.policy)
        expected[run.policy] = {
            "completion": round(exact.finish_prob, 5),
            "exposure": round(exact.exposure, 5),
            "minority": round(exact.minority_prob, 5),
        }
    return outcomes, expected, setup


def run_table(request: Request, store: CellStore) -> ResultDict:
    """Compute Table 1 with intervals, completion and exposure."""
    outcomes, expected, setup = compute_outcomes(request, store)
    rows = [
        {
            **vars(row),
            **make_row(runs),
            "expected": expected[row.policy],
            "paper": _find_printed(row),
        }
        for row, runs in outcomes.items()
    ]
    return {"settings": setup.describe(), "rows": rows}


def _find_printed(row: TableRow) -> dict[str, float] | None:
    """Return the paper's final values, None except for its own decoy and policies."""
    paper = PAPER.get((row.scenario, row.policy))
    if paper is None or row.decoy != "public":
        return None
    return {"eavesdropper": paper[0], "learner": paper[1]}


def run_figure(request: Request, store: CellStore) -> ResultDict:
    """Compute the accuracy of learner and eavesdropper by round."""
    outcomes, _, setup = compute_outcomes(request, store)
    curves = [
        {
            **vars(row),
            "seeds": len(runs),
            "learner": band([run.learner for run in runs]),
            "eavesdropper": band([run.eavesdropper for run in runs]),
            "paper": _find_printed(row),
        }
        for row, runs in outcomes.items()
    ]
    return {"settings": setup.describe(), "curves": curves}


TABLE = Experiment(
    "table-main", "Main experiment: what learner and eavesdropper get", "Table 1", run_table
)
FIGURE = Experiment("figure-accuracy", "Accuracy by round, both scenarios", "Figure 2", run_figure)
