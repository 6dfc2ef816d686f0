"""Learning queries at random rounds, every reply used, against the optimal policy (Appendix A).

The true trajectories of the optimal policy are those of the table with 20 clients.
"""

from __future__ import annotations

from collections.abc import Mapping

from covertfl.experiments import table_mnist
from covertfl.experiments.experiment import Experiment, Request, Result
from covertfl.experiments.trials.averages import average
from covertfl.experiments.trials.cells import CellStore
from covertfl.experiments.trials.covert_runs import summarise

# The paper's settings: 30 learning queries in 120 rounds, 20 clients.
CLIENTS = 20
POLICIES = ("random", "optimal")
# Accuracy of the learner.
PAPER: Mapping[str, float] = {"random": 0.805, "optimal": 0.925}
# The weakest eavesdropper of the table: good classes 2, size 0.1, share 0.99.
ROW = 0


def run_comparison(request: Request, store: CellStore) -> Result:
    """Compute the learner's accuracy with both policies, and the difference paired by seed."""
    setup = table_mnist.make_setup(request.reading, CLIENTS, quick=request.quick)
    seeds = request.count_seeds(table_mnist.SEEDS, table_mnist.QUICK_SEEDS)
    against = [table_mnist.list_rows(CLIENTS)[ROW].against]
    outcomes, _ = table_mnist.compute_outcomes(
        setup, POLICIES, seeds, against, store, device=request.device
    )
    pairs = zip(outcomes["optimal", 0], outcomes["random", 0], strict=True)
    return {
        "settings": setup.describe(),
        "difference": average([best.learner[-1] - other.learner[-1] for best, other in pairs]),
        "rows": [
            {
                "policy": policy,
                **summarise(outcomes[policy, 0]),
                "paper": {"eavesdropper": None, "learner": PAPER[policy]},
            }
            for policy in POLICIES
        ],
    }


COMPARISON = Experiment(
    "random-policy",
    "Learning queries placed at random",
    "Appendix A, text",
    run_comparison,
    uses_gpu=True,
    check=table_mnist.check_images,
)
