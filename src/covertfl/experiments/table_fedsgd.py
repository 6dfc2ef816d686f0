"""FedSGD on MNIST: clients reply with gradients (Table 2, left half)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from covertfl.experiments import table_mnist
from covertfl.experiments.experiment import Experiment, Reading, Request, Result
from covertfl.experiments.trials.cells import CellStore
from covertfl.experiments.trials.setups import PublicData, Setup

# The paper's settings (Appendix A); it does not state the number of clients.
ROUNDS, UPDATES = 240, 75
CLIENTS = 20
PUBLIC = PublicData(size=0.1, classes=4, class_share=0.9)
SEEDS = 20
# Accuracy of eavesdropper and learner.
PAPER: Mapping[str, tuple[float, float]] = {"greedy": (0.89, 0.89), "optimal": (0.56, 0.88)}
QUICK_DIVISOR, QUICK_SEEDS = 4, 2


def make_setup(reading: Reading, *, quick: bool) -> Setup:
    """Return the setup of the MNIST tables, with gradients instead of weights."""
    divisor = QUICK_DIVISOR if quick else 1
    return replace(
        table_mnist.make_setup(reading, CLIENTS, quick=quick),
        rounds=ROUNDS // divisor,
        updates=UPDATES // divisor,
        algorithm="fedsgd",
    )


def run_table(request: Request, store: CellStore) -> Result:
    """Compute both policies against one eavesdropper."""
    setup = make_setup(request.reading, quick=request.quick)
    seeds = request.count_seeds(SEEDS, QUICK_SEEDS)
    return table_mnist.compare_policies(setup, PUBLIC, PAPER, seeds, request, store)


TABLE = Experiment(
    "table-fedsgd",
    "MNIST with FedSGD",
    "Table 2, left, Appendix A",
    run_table,
    uses_gpu=True,
    check=table_mnist.check_images,
)
