"""The price of an oracle state that is read with errors (assumption M4 of the paper).

The optimal policy is solved as if the state were known, and then acts on readings that are wrong
with some probability, each of the other states being equally likely.  Costs and success follow the
true state.  The cost is computed exactly and simulated with drawn readings, and compared with the
optimum of a state that is known: in a finite horizon the expected cost, in a queue the privacy cost
of the optimum with the same average learning cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.policy import Observation, Policy
from covertfl.decision.problem import FiniteHorizon
from covertfl.decision.problem_file import read_preset
from covertfl.evaluation.horizon import evaluate_horizon_policy, simulate_horizon_policy
from covertfl.evaluation.queue import evaluate_queue_policy, simulate_queue_policy
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import solve_queue
from paper.averages import average
from paper.cells import CellStore
from paper.experiment import Experiment, Request, ResultDict, load_queue

ERRORS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4)
RUNS, QUICK_RUNS = 20_000, 2000  # simulated horizons
QUEUE_RUNS, ROUNDS, BURN_IN = 200, 2000, 1000
# A queue with less load than the paper's, whose backlogs stay small.
ARRIVAL_PROB, LIMIT = 0.05, 3.0
SEED = 14


def spread_errors(error: float, num_states: int) -> FloatArray:
    """Return the (W, W) probabilities of reading a state (column) in a true state (row)."""
    confusion = np.full((num_states, num_states), error / (num_states - 1))
    np.fill_diagonal(confusion, 1.0 - error)
    return confusion


@dataclass(frozen=True, eq=False)
class MisreadPolicy:
    """A policy of the state that is read, as a policy of the true state.

    Readings are independent given the true state, so it learns with the average probability over
    what may be read.
    """

    policy: Policy
    confusion: FloatArray

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probability of learning given the true oracle state."""
        state = np.asarray(observation.oracle_state)
        prob: FloatArray = np.zeros(())
        for read, share in enumerate(self.confusion.T):
            as_read = replace(observation, oracle_state=np.full_like(state, read))
            prob = prob + share[state] * self.policy.learn_prob(as_read)
        return prob


@dataclass(frozen=True, eq=False)
class ReadingPolicy:
    """A policy that acts on drawn readings of the (R,) oracle states of R simulated runs."""

    policy: Policy
    confusion: FloatArray
    generator: np.random.Generator

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Draw readings and return the probability of learning given them."""
        reached = np.cumsum(self.confusion, axis=1)[observation.oracle_state]
        draws = self.generator.random((len(reached), 1))
        read = np.minimum((reached <= draws).sum(axis=1), len(self.confusion) - 1)
        return self.policy.learn_prob(replace(observation, oracle_state=read))


def measure_horizon(error: float, reading: str, runs: int) -> Mapping[str, Any]:
    """Return exact and simulated cost of a finite horizon, and the price of the errors."""
    problem = read_preset(f"{reading}/main").problem
    assert isinstance(problem, FiniteHorizon)
    policy = solve_horizon(problem).policy
    confusion = spread_errors(error, problem.oracle.num_states)
    known = evaluate_horizon_policy(problem, policy).total_cost
    exact = evaluate_horizon_policy(problem, MisreadPolicy(policy, confusion))
    ours, theirs = map(np.random.default_rng, np.random.SeedSequence([SEED, 0]).spawn(2))
    drawn = ReadingPolicy(policy, confusion, theirs)
    sample = simulate_horizon_policy(problem, drawn, runs, generator=ours)
    paid = np.where(sample.actions, problem.privacy_cost[sample.oracle_states], 0.0).sum(axis=1)
    return {
        "error": error,
        "cost": round(exact.total_cost, 5),
        "simulated": average((paid + problem.terminal_cost()[sample.backlog_left]).tolist()),
        "price": round(exact.total_cost / known - 1.0, 5),
        "finish_prob": round(exact.finish_prob, 5),
        "exposure": round(exact.exposure, 5),
    }


def measure_queue(error: float, runs: int) -> Mapping[str, Any]:
    """Return exact and simulated costs of a queue, and the price of the errors."""
    problem = replace(load_queue("sound/queue"), arrival_prob=ARRIVAL_PROB, limit=LIMIT)
    solution = solve_queue(problem)
    solved, policy = solution.problem, solution.policy
    confusion = spread_errors(error, problem.oracle.num_states)
    exact = evaluate_queue_policy(solved, MisreadPolicy(policy, confusion))
    known = solve_queue(problem.with_limit(exact.learning_cost)).evaluation.privacy_cost
    ours, theirs = map(np.random.default_rng, np.random.SeedSequence([SEED, 1]).spawn(2))
    drawn = ReadingPolicy(policy, confusion, theirs)
    sample = simulate_queue_policy(
        solved, drawn, rounds=ROUNDS, runs=runs, burn_in=BURN_IN, generator=ours
    )
    return {
        "error": error,
        "privacy_cost": round(exact.privacy_cost, 5),
        "simulated_privacy": average(sample.privacy_cost.tolist()),
        "learning_cost": round(exact.learning_cost, 5),
        "simulated_learning": average(sample.learning_cost.tolist()),
        "optimum": round(known, 5),
        "price": round(exact.privacy_cost / known - 1.0, 5),
        "full_prob": float(f"{exact.full_prob:.2g}"),
    }


def run_partial_oracle(request: Request, store: CellStore) -> ResultDict:
    """Compute both problems for all probabilities of an error."""
    runs = request.count_seeds(RUNS, QUICK_RUNS)
    queue_runs = request.count_seeds(QUEUE_RUNS, QUEUE_RUNS // 10)
    work = {}
    for error in ERRORS:
        key = {"part": "partial-oracle", "error": error}
        work[f"horizon {error}"] = (
            {**key, "reading": request.reading, "runs": runs},
            partial(measure_horizon, error, request.reading, runs),
        )
        work[f"queue {error}"] = (
            {**key, "queue_runs": queue_runs},
            partial(measure_queue, error, queue_runs),
        )
    cells = store.work_out(work)
    rows = {name: [cells[f"{name} {error}"] for error in ERRORS] for name in ("horizon", "queue")}
    settings = {"reading": request.reading, "runs": runs, "queue_runs": queue_runs}
    return {"settings": {**settings, "limit": LIMIT, "arrival_prob": ARRIVAL_PROB}, **rows}


PRICE = Experiment(
    "partial-oracle", "An oracle read with errors", "assumption M4", run_partial_oracle
)
