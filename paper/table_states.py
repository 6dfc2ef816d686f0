"""MNIST with seven oracle states (Table 2, right).

With one eighth of the data as threshold and uniform numbers of batches nearly every state would
succeed, so in every reading rounds are accepted with the printed success probabilities (D22 of
docs/deviations.md).
"""

from __future__ import annotations

from dataclasses import replace

from paper import table_mnist
from paper.cells import CellStore
from paper.covert_runs import PublicData, Setup
from paper.experiment import Reading, Request, ResultDict

CLIENTS, PARTICIPATION = 100, (36, 41, 45, 50, 55, 58, 100)
MIN_SHARE, SEEDS = 0.125, 30
PUBLIC = PublicData(size=1.0, classes=2, class_share=0.99)
PAPER: table_mnist.Paper = {"greedy": (0.93, 0.88), "optimal": (0.34, 0.88)}


def make_setup(reading: Reading, *, quick: bool) -> Setup:
    """Return the setup of the MNIST tables with seven oracle states."""
    return replace(
        table_mnist.make_setup(reading, 20, quick=quick),
        clients=CLIENTS,
        participation=PARTICIPATION,
        preset="states7",
        acceptance="model",
        min_share=MIN_SHARE,
        transition=None,
    )


def run(request: Request, store: CellStore) -> ResultDict:
    """Compute both policies with seven oracle states against one eavesdropper."""
    setup = make_setup(request.reading, quick=request.quick)
    return table_mnist.compare_policies(setup, PUBLIC, PAPER, SEEDS, request, store)


TABLE = table_mnist.make_experiment(
    "table-states",
    "MNIST with seven oracle states",
    "Table 2, right, Appendix A",
    run,
    seeds=(SEEDS, table_mnist.QUICK_SEEDS),
)
