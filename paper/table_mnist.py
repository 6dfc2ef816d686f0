"""The MNIST tables: 27 eavesdroppers, two policies, 20 and 50 clients (Appendix A).

The true trajectory does not depend on the eavesdropper's data: it is trained once for all 27.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from covertfl.runs.train import require_torch
from paper import covert_runs
from paper.cells import CellStore
from paper.covert_runs import (
    Condition,
    PublicData,
    RunOutcome,
    Setup,
    Transition,
    choose_acceptance,
    choose_learning_rate,
    make_row,
)
from paper.experiment import Experiment, Reading, Request, ResultDict

# The paper's settings (Appendix A).
ROUNDS, UPDATES = 120, 30
SEEDS = 10
MIN_SHARE = 0.25
PARTICIPATION: Mapping[int, tuple[int, ...]] = {20: (5, 10, 20), 50: (12, 25, 50)}
CLASS_SHARES = (0.99, 0.9, None)  # None: their natural share
PrintedLine = tuple[int, float, float, tuple[float, ...], float, float]
MODEL = "paper-cnn"
# The published code has a matrix of its own for this experiment (D20 of docs/deviations.md).
CODE_TRANSITION: Transition = ((0.8, 0.2, 0.0), (0.15, 0.7, 0.15), (0.0, 0.15, 0.85))
POLICIES = ("greedy", "optimal")
# As printed, by number of clients: good classes and size; accuracy of the eavesdropper with the
# greedy policy, and with the optimal one for each share of the good classes; then of the learner
# with the greedy and the optimal policy.
PAPER: Mapping[int, tuple[PrintedLine, ...]] = {
    20: (
        (2, 0.1, 0.857, (0.336, 0.725, 0.927), 0.925, 0.832),
        (2, 0.4, 0.859, (0.445, 0.907, 0.973), 0.924, 0.815),
        (2, 1.0, 0.850, (0.632, 0.916, 0.968), 0.930, 0.822),
        (5, 0.1, 0.843, (0.784, 0.900, 0.932), 0.924, 0.817),
        (5, 0.4, 0.834, (0.707, 0.920, 0.970), 0.922, 0.819),
        (5, 1.0, 0.848, (0.820, 0.961, 0.977), 0.926, 0.815),
        (8, 0.1, 0.830, (0.898, 0.957, 0.943), 0.926, 0.819),
        (8, 0.4, 0.868, (0.898, 0.936, 0.955), 0.926, 0.809),
        (8, 1.0, 0.864, (0.943, 0.975, 0.975), 0.931, 0.831),
    ),
    50: (
        (2, 0.1, 0.861, (0.320, 0.611, 0.852), 0.860, 0.840),
        (2, 0.4, 0.884, (0.318, 0.734, 0.895), 0.862, 0.830),
        (2, 1.0, 0.852, (0.393, 0.864, 0.955), 0.859, 0.843),
        (5, 0.1, 0.875, (0.461, 0.655, 0.807), 0.638, 0.838),
        (5, 0.4, 0.843, (0.595, 0.795, 0.916), 0.854, 0.833),
        (5, 1.0, 0.864, (0.000, 0.000, 0.000), 0.857, 0.840),
        (8, 0.1, 0.868, (0.000, 0.000, 0.000), 0.856, 0.839),
        (8, 0.4, 0.841, (0.805, 0.916, 0.914), 0.862, 0.832),
        (8, 1.0, 0.861, (0.000, 0.000, 0.000), 0.853, 0.840),
    ),
}
# Weights are scored on one in ten validation images after each update; the last ones, and the best
# of these, on all images.
STRIDE, QUICK_STRIDE = 10, 4
# The short form: a small network, a twelfth of the examples, half of the rounds, few seeds, three
# eavesdroppers.
QUICK_MODEL, QUICK_THINNING, QUICK_DIVISOR, QUICK_SEEDS = "small-cnn", 12, 2, 2
QUICK_ROWS = (0, 13, 26)
Outcomes = dict[tuple[str, int], list[RunOutcome]]  # by policy and number of the public set
# Printed accuracy of eavesdropper, if there is one, and learner, by policy.
Paper = Mapping[str, tuple[float | None, float]]


@dataclass(frozen=True)
class PrintedRow:
    """A row of a printed table: accuracies by policy, None if the decoy never ran."""

    public: PublicData
    eavesdropper: Mapping[str, float | None]
    learner: Mapping[str, float]


def list_rows(clients: int) -> list[PrintedRow]:
    """Return the 27 rows, corrected as in D23 of docs/deviations.md.

    The learner's columns are exchanged in print, and 0.000 is not an accuracy.
    """
    return [
        PrintedRow(
            PublicData(size=size, classes=classes, class_share=class_share),
            {"greedy": greedy, "optimal": optimal or None},
            {"greedy": second, "optimal": first},
        )
        for classes, size, greedy, by_share, first, second in PAPER[clients]
        for class_share, optimal in zip(CLASS_SHARES, by_share, strict=True)
    ]


def make_setup(reading: Reading, clients: int, *, quick: bool) -> Setup:
    """Return the setup of the tables."""
    divisor = QUICK_DIVISOR if quick else 1
    return Setup(
        task="mnist",
        reading=reading,
        rounds=ROUNDS // divisor,
        updates=UPDATES // divisor,
        clients=clients,
        participation=PARTICIPATION[clients],
        model=QUICK_MODEL if quick else MODEL,
        acceptance=choose_acceptance(reading),
        min_share=MIN_SHARE,
        learning_rate=choose_learning_rate(reading),
        thinning=QUICK_THINNING if quick else 1,
        transition=CODE_TRANSITION if reading == "paper-code" else None,
    )


def compute_outcomes(
    setup: Setup,
    policies: Sequence[str],
    seeds: Sequence[int],
    publics: Sequence[PublicData],
    request: Request,
    store: CellStore,
) -> tuple[Outcomes, int]:
    """Compute outcomes by policy and number of the public set; count the examples trained on."""
    places = {
        (policy, number): Condition(policy, public)
        for policy in policies
        for number, public in enumerate(publics)
    }
    stride = STRIDE if setup.thinning == 1 else QUICK_STRIDE
    found, examples = covert_runs.compute_outcomes(
        setup, seeds, list(places.values()), store, device=request.device, stride=stride
    )
    return {place: found[condition] for place, condition in places.items()}, examples


def run_table(clients: int, request: Request, store: CellStore) -> ResultDict:
    """Compute one of the two tables."""
    setup = make_setup(request.reading, clients, quick=request.quick)
    rows = list_rows(clients)
    if request.quick:
        rows = [rows[number] for number in QUICK_ROWS]
    seeds = request.list_seeds(SEEDS, QUICK_SEEDS)
    publics = [row.public for row in rows]
    outcomes, examples = compute_outcomes(setup, POLICIES, seeds, publics, request, store)
    return {
        "settings": setup.describe(),
        "examples": examples,
        "rows": [
            {
                "classes": row.public.classes,
                "size": row.public.size,
                "class_share": row.public.class_share,
                "policy": policy,
                **make_row(outcomes[policy, number]),
                "paper": {"eavesdropper": row.eavesdropper[policy], "learner": row.learner[policy]},
            }
            for number, row in enumerate(rows)
            for policy in POLICIES
        ],
    }


def compare_policies(
    setup: Setup, public: PublicData, paper: Paper, seeds: int, request: Request, store: CellStore
) -> ResultDict:
    """Compute policies against one eavesdropper, for tables with one row per policy."""
    used = request.list_seeds(seeds, QUICK_SEEDS)
    outcomes, examples = compute_outcomes(setup, tuple(paper), used, [public], request, store)
    return {
        "settings": setup.describe() | {"public": vars(public)},
        "examples": examples,
        "rows": list_policy_rows(outcomes, paper),
    }


def list_policy_rows(outcomes: Outcomes, paper: Paper) -> list[ResultDict]:
    """Return one row per policy, with the printed values beside ours."""
    return [
        {
            "policy": policy,
            **make_row(outcomes[policy, 0]),
            "paper": {"eavesdropper": eavesdropper, "learner": learner},
        }
        for policy, (eavesdropper, learner) in paper.items()
    ]


def check_images() -> None:
    """Load the images; raise `Missing` without them or torch."""
    require_torch()
    from covertfl.tasks.mnist import load_mnist

    load_mnist()


make_experiment = partial(Experiment, uses_gpu=True, seeds=(SEEDS, QUICK_SEEDS), check=check_images)
TABLE_20, TABLE_50 = (
    make_experiment(f"table-mnist-{n}", f"MNIST, {n} clients", place, partial(run_table, n))
    for n, place in ((20, "Table 3, Appendix A"), (50, "Table 4, Appendix A"))
)
