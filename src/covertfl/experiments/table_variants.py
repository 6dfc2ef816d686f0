"""MNIST in other forms: FedSGD and seven oracle states (Table 2), random rounds (Appendix A).

With FedSGD clients reply with gradients.  With seven oracle states, one eighth of the data as
threshold and uniform numbers of batches nearly every state would succeed, so in every reading
rounds are accepted with the printed success probabilities (D22 of docs/deviations.md).  The random
policy learns at random rounds and uses every reply; the optimal policy that it is compared with has
the true trajectories of the table with 20 clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from covertfl.experiments import table_mnist
from covertfl.experiments.experiment import Reading, Request, Result
from covertfl.experiments.table_mnist import Outcomes, compute_outcomes, make_experiment
from covertfl.experiments.trials.averages import average
from covertfl.experiments.trials.cells import CellStore
from covertfl.experiments.trials.covert_runs import Eavesdropping, summarise
from covertfl.experiments.trials.setups import PublicData, Setup

# Printed accuracy of eavesdropper, if there is one, and learner, by policy.
Paper = Mapping[str, tuple[float | None, float]]

# The paper's settings (Appendix A); it does not state the number of clients for FedSGD.
CLIENTS = 20
FEDSGD_ROUNDS, FEDSGD_UPDATES, FEDSGD_SEEDS = 240, 75, 20
FEDSGD_PUBLIC = PublicData(size=0.1, classes=4, class_share=0.9)
FEDSGD_PAPER: Paper = {"greedy": (0.89, 0.89), "optimal": (0.56, 0.88)}
QUICK_DIVISOR = 4

STATES_CLIENTS, STATES_PARTICIPATION = 100, (36, 41, 45, 50, 55, 58, 100)
STATES_MIN_SHARE, STATES_SEEDS = 0.125, 30
STATES_PUBLIC = PublicData(size=1.0, classes=2, class_share=0.99)
STATES_PAPER: Paper = {"greedy": (0.93, 0.88), "optimal": (0.34, 0.88)}

# 30 learning queries in 120 rounds, against the weakest eavesdropper of the table.
RANDOM_PAPER: Paper = {"random": (None, 0.805), "optimal": (None, 0.925)}
WEAKEST = 0


def make_fedsgd_setup(reading: Reading, *, quick: bool) -> Setup:
    """Return the setup of the MNIST tables, with gradients instead of weights."""
    divisor = QUICK_DIVISOR if quick else 1
    return replace(
        table_mnist.make_setup(reading, CLIENTS, quick=quick),
        rounds=FEDSGD_ROUNDS // divisor,
        updates=FEDSGD_UPDATES // divisor,
        algorithm="fedsgd",
    )


def make_states_setup(reading: Reading, *, quick: bool) -> Setup:
    """Return the setup of the MNIST tables with seven oracle states."""
    return replace(
        table_mnist.make_setup(reading, CLIENTS, quick=quick),
        clients=STATES_CLIENTS,
        participation=STATES_PARTICIPATION,
        preset="states7",
        acceptance="model",
        min_share=STATES_MIN_SHARE,
        transition=None,
    )


def run_fedsgd(request: Request, store: CellStore) -> Result:
    """Compute both policies with FedSGD against one eavesdropper."""
    setup = make_fedsgd_setup(request.reading, quick=request.quick)
    return _compare(setup, FEDSGD_PUBLIC, FEDSGD_PAPER, FEDSGD_SEEDS, request, store)


def run_states(request: Request, store: CellStore) -> Result:
    """Compute both policies with seven oracle states against one eavesdropper."""
    setup = make_states_setup(request.reading, quick=request.quick)
    return _compare(setup, STATES_PUBLIC, STATES_PAPER, STATES_SEEDS, request, store)


def _compare(
    setup: Setup, public: PublicData, paper: Paper, seeds: int, request: Request, store: CellStore
) -> Result:
    """Compute policies against one eavesdropper, for tables with one row per policy."""
    seeds = request.count_seeds(seeds, table_mnist.QUICK_SEEDS)
    against = [Eavesdropping(public)]
    outcomes, examples = compute_outcomes(setup, tuple(paper), seeds, against, request, store)
    return {
        "settings": setup.describe() | {"public": vars(public)},
        "examples": examples,
        "rows": _list_rows(outcomes, paper),
    }


def run_random(request: Request, store: CellStore) -> Result:
    """Compute the learner's accuracy with both policies, and the difference paired by seed."""
    setup = table_mnist.make_setup(request.reading, CLIENTS, quick=request.quick)
    seeds = request.count_seeds(table_mnist.SEEDS, table_mnist.QUICK_SEEDS)
    against = [Eavesdropping(table_mnist.list_rows(CLIENTS)[WEAKEST].public)]
    outcomes, _ = compute_outcomes(setup, tuple(RANDOM_PAPER), seeds, against, request, store)
    pairs = zip(outcomes["optimal", 0], outcomes["random", 0], strict=True)
    return {
        "settings": setup.describe(),
        "difference": average([best.learner[-1] - other.learner[-1] for best, other in pairs]),
        "rows": _list_rows(outcomes, RANDOM_PAPER),
    }


def _list_rows(outcomes: Outcomes, paper: Paper) -> list[Result]:
    return [
        {
            "policy": policy,
            **summarise(outcomes[policy, 0]),
            "paper": {"eavesdropper": eavesdropper, "learner": learner},
        }
        for policy, (eavesdropper, learner) in paper.items()
    ]


FEDSGD = make_experiment(
    "table-fedsgd", "MNIST with FedSGD", "Table 2, left, Appendix A", run_fedsgd
)
STATES = make_experiment(
    "table-states", "MNIST with seven oracle states", "Table 2, right, Appendix A", run_states
)
RANDOM = make_experiment(
    "random-policy", "Learning queries placed at random", "Appendix A, text", run_random
)
