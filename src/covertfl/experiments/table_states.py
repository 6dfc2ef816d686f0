"""Seven oracle states and 100 clients on MNIST (Table 2, right half).

With one eighth of the data as threshold and uniform numbers of batches nearly every state would
succeed, so in every reading rounds are accepted with the printed success probabilities (D22 of
docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from covertfl.experiments import table_mnist
from covertfl.experiments.experiment import Experiment, Reading, Request, Result
from covertfl.experiments.trials.cells import CellStore
from covertfl.experiments.trials.setups import PublicData, Setup

# The paper's settings (Appendix A).
CLIENTS = 100
PARTICIPATION = (36, 41, 45, 50, 55, 58, 100)
MIN_SHARE = 0.125
PUBLIC = PublicData(size=1.0, classes=2, class_share=0.99)
SEEDS = 30
# Accuracy of eavesdropper and learner.
PAPER: Mapping[str, tuple[float, float]] = {"greedy": (0.93, 0.88), "optimal": (0.34, 0.88)}
QUICK_SEEDS = 2


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


def run_table(request: Request, store: CellStore) -> Result:
    """Compute both policies against one eavesdropper."""
    setup = make_setup(request.reading, quick=request.quick)
    seeds = request.count_seeds(SEEDS, QUICK_SEEDS)
    return table_mnist.compare_policies(setup, PUBLIC, PAPER, seeds, request, store)


TABLE = Experiment(
    "table-states",
    "MNIST with seven oracle states",
    "Table 2, right, Appendix A",
    run_table,
    uses_gpu=True,
    check=table_mnist.check_images,
)
