"""MNIST with FedSGD (Table 2, left): clients reply with gradients instead of weights."""

from __future__ import annotations

from dataclasses import replace

from paper import table_mnist
from paper.cells import CellStore
from paper.covert_runs import PublicData, Setup
from paper.experiment import Reading, Request, ResultDict

# The paper's settings (Appendix A); it does not state the number of clients for FedSGD.
CLIENTS, ROUNDS, UPDATES, SEEDS = 20, 240, 75, 20
PUBLIC = PublicData(size=0.1, classes=4, class_share=0.9)
PAPER: table_mnist.Paper = {"greedy": (0.89, 0.89), "optimal": (0.56, 0.88)}
QUICK_DIVISOR = 4


def make_setup(reading: Reading, *, quick: bool) -> Setup:
    """Return the setup of the MNIST tables, with gradients instead of weights."""
    divisor = QUICK_DIVISOR if quick else 1
    return replace(
        table_mnist.make_setup(reading, CLIENTS, quick=quick),
        rounds=ROUNDS // divisor,
        updates=UPDATES // divisor,
        algorithm="fedsgd",
    )


def run(request: Request, store: CellStore) -> ResultDict:
    """Compute both policies with FedSGD against one eavesdropper."""
    setup = make_setup(request.reading, quick=request.quick)
    return table_mnist.compare_policies(setup, PUBLIC, PAPER, SEEDS, request, store)


TABLE = table_mnist.make_experiment(
    "table-fedsgd",
    "MNIST with FedSGD",
    "Table 2, left, Appendix A",
    run,
    seeds=(SEEDS, table_mnist.QUICK_SEEDS),
)
