"""The learner on MNIST under settings that the paper does not state (Appendix A).

The learners of the paper's MNIST tables, and its learner under a random policy, are less accurate
than ours.  Each variant changes one or two settings of the table with 20 clients that the paper
leaves open: the learning rate of the published code, the number of examples that a client holds,
and a Dirichlet split, under which clients differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paper import random_policy, table_mnist
from paper.averages import average
from paper.cells import CellStore
from paper.covert_runs import Setup, choose_learning_rate
from paper.experiment import Request, ResultDict

CODE_RATE = {"learning_rate": choose_learning_rate("paper-code")}
# What a variant changes in the setup of the table with 20 clients.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "as in the table": {},
    "1/12 of the examples": {"client_thinning": 12},
    "1/40 of the examples": {"client_thinning": 40},
    "learning rate 1e-4": CODE_RATE,
    "learning rate 1e-4, 1/4 of the examples": {**CODE_RATE, "client_thinning": 4},
    "learning rate 1e-4, 1/12 of the examples": {**CODE_RATE, "client_thinning": 12},
    "Dirichlet 0.3": {"split": 0.3},
    "Dirichlet 0.1": {"split": 0.1},
    "Dirichlet 0.1, 1/12 of the examples": {"split": 0.1, "client_thinning": 12},
    "Dirichlet 0.1, learning rate 1e-4": {"split": 0.1, **CODE_RATE},
}
QUICK_VARIANTS = ("as in the table", "Dirichlet 0.1")
POLICIES = ("greedy", "optimal", "random")


def find_printed() -> dict[str, tuple[float | None, float]]:
    """Return the paper's accuracy of the learner by policy, 20 clients; greedy is a mean."""
    rows = table_mnist.list_rows(random_policy.CLIENTS)
    greedy = sum(row.learner["greedy"] for row in rows) / len(rows)
    return {"greedy": (None, round(greedy, 3)), **random_policy.PAPER}


def list_setups(request: Request) -> dict[str, Setup]:
    """Return the setups by variant; two of them can be the same."""
    setup = table_mnist.make_setup(request.reading, random_policy.CLIENTS, quick=request.quick)
    variants = QUICK_VARIANTS if request.quick else tuple(VARIANTS)
    return {variant: replace(setup, **VARIANTS[variant]) for variant in variants}


def run(request: Request, store: CellStore) -> ResultDict:
    """Compute the learner's accuracy by variant and policy."""
    setups = list_setups(request)
    seeds = request.list_seeds(table_mnist.SEEDS, table_mnist.QUICK_SEEDS)
    weakest = table_mnist.list_rows(random_policy.CLIENTS)[random_policy.WEAKEST].public
    rows = []
    for variant, setup in setups.items():
        outcomes, _ = table_mnist.compute_outcomes(
            setup, POLICIES, seeds, [weakest], request, store
        )
        rows += [{"variant": variant, **row} for row in _compare(outcomes)]
    return {"settings": next(iter(setups.values())).describe(), "rows": rows}


def _compare(outcomes: table_mnist.Outcomes) -> list[ResultDict]:
    """Return one row per policy, with what the optimal policy gains over it, paired by seed."""
    found = table_mnist.list_policy_rows(outcomes, find_printed())
    best = [run.learner[-1] for run in outcomes["optimal", 0]]
    for row in found:
        ours = [run.learner[-1] for run in outcomes[row["policy"], 0]]
        row["gain"] = average([one - other for one, other in zip(best, ours, strict=True)])
    return found


LEARNERS = table_mnist.make_experiment(
    "mnist-learners", "The learner on MNIST under other settings", "Appendix A", run
)
