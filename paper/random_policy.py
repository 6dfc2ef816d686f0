"""MNIST with learning queries at random rounds, all replies used (Appendix A).

The optimal policy that it is compared with has the runs of the table with 20 clients.
"""

from __future__ import annotations

from paper import table_mnist
from paper.averages import average
from paper.cells import CellStore
from paper.experiment import Request, ResultDict

# 30 learning queries in 120 rounds, against the weakest eavesdropper of the table.
CLIENTS, WEAKEST = 20, 0
PAPER: table_mnist.Paper = {"random": (None, 0.805), "optimal": (None, 0.925)}


def run(request: Request, store: CellStore) -> ResultDict:
    """Compute the learner's accuracy with both policies, and the difference paired by seed."""
    setup = table_mnist.make_setup(request.reading, CLIENTS, quick=request.quick)
    seeds = request.list_seeds(table_mnist.SEEDS, table_mnist.QUICK_SEEDS)
    publics = [table_mnist.list_rows(CLIENTS)[WEAKEST].public]
    outcomes, _ = table_mnist.compute_outcomes(setup, tuple(PAPER), seeds, publics, request, store)
    pairs = zip(outcomes["optimal", 0], outcomes["random", 0], strict=True)
    return {
        "settings": setup.describe(),
        "difference": average([best.learner[-1] - other.learner[-1] for best, other in pairs]),
        "rows": table_mnist.list_policy_rows(outcomes, PAPER),
    }


COMPARISON = table_mnist.make_experiment(
    "random-policy", "Learning queries placed at random", "Appendix A, text", run
)
