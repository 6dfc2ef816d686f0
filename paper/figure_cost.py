"""Learning cost against the proportion of learning queries, 1,000 cost values (Figure 5).

Three curves.  If the learning cost is added to the privacy cost, as a price, an optimal policy is a
vertex of the linear program: its proportion of learning queries is constant until another vertex
becomes optimal, and then jumps.  If the cost is limited, problem (9) of the paper, the optimum
mixes two vertices and moves without jumps.  In the finite horizon of the main experiment the
terminal cost is the price.  Each curve is computed exactly, by the stationary distribution or the
forward recursion, and by simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.policy import Observation, QueueTable
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import read_preset
from covertfl.errors import NoSolution
from covertfl.evaluation.horizon import evaluate_horizon_policy, simulate_horizon_policy
from covertfl.evaluation.queue import evaluate_queue_policy, simulate_queue_policy
from covertfl.solvers.average_cost import (
    QueueOperator,
    always_learn,
    never_learn,
    solve_average_cost,
)
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import solve_queue
from paper.averages import round_curve
from paper.cells import CellStore
from paper.experiment import Experiment, Reading, Request, ResultDict, load_queue

# The paper's settings: experiment 1's oracle and costs, a buffer of 40, 1,000 simulation runs.
CAPACITY = 40
VALUES = 1000
RUNS = 1000
# Ours.  An update that finds no room costs as much as the most expensive wait over a long time, so
# that letting the buffer overflow does not pay.
OVERFLOW_COST = 100.0
LEAST_PRICE, LARGEST_PRICE = 0.002, 2.0
LEAST_SCALE, LARGEST_SCALE = 0.002, 2.0
ROUNDS, BURN_IN = 2000, 500
SEED = 4
QUICK_VALUES, QUICK_RUNS = 100, 100
FARTHEST = 20.0  # largest factor by which a limit is tightened, if none is too tight
JUMP = 0.005  # smallest difference between neighbours that counts as a jump


@dataclass(frozen=True, eq=False)
class StackedTables:
    """A separate policy for each of many runs that are simulated together."""

    tables: FloatArray  # (V, W, 2, levels) probabilities of learning
    repeats: int  # number of runs for each table

    def learn_prob(self, observation: Observation) -> FloatArray:
        """Return the probabilities of all runs, those of one table next to each other."""
        which = np.repeat(np.arange(len(self.tables)), self.repeats)
        found: FloatArray = self.tables[
            which, observation.oracle_state, observation.arrival, observation.backlog
        ]
        return found


def load_problems(reading: Reading) -> tuple[QueueProblem, FiniteHorizon]:
    """Load the queue with the paper's buffer, and the main experiment."""
    queue, horizon = load_queue(f"{reading}/queue"), read_preset(f"{reading}/main").problem
    assert isinstance(horizon, FiniteHorizon)
    if queue.capacity is None:
        queue = replace(queue, capacity=CAPACITY, overflow_cost=OVERFLOW_COST)
    return queue, horizon


def sweep_price(
    problem: QueueProblem, prices: Sequence[float]
) -> tuple[list[float], list[BoolArray]]:
    """Solve the Lagrangian problem, equation (10): privacy cost + price x learning cost.

    Returns
    -------
    the prices that have an optimum, and the optima; with a cost that is not convex there may be
    none that is reached from every start
    """
    operator = QueueOperator(problem)
    solved, found, start = [], [], always_learn(problem)
    for price in prices:
        try:
            start = solve_average_cost(operator, (1.0, price), start).learn
        except NoSolution:
            continue
        solved.append(price)
        found.append(start)
    return solved, found


def count_vertices(policies: Sequence[BoolArray]) -> int:
    """Return the number of different policies."""
    return len({policy.tobytes() for policy in policies})


def find_jumps(shares: FloatArray, least: float = JUMP) -> npt.NDArray[np.int64]:
    """Return where the proportion changes by more than `least` between neighbouring costs."""
    return np.flatnonzero(np.abs(np.diff(shares)) > least)


def simulate_tables(
    problem: QueueProblem, tables: FloatArray, repeats: int, *, generator: np.random.Generator
) -> FloatArray:
    """Return the (V,) proportions of learning queries in simulated runs of each table."""
    sample = simulate_queue_policy(
        problem,
        StackedTables(tables, repeats),
        rounds=ROUNDS,
        runs=len(tables) * repeats,
        burn_in=BURN_IN,
        generator=generator,
    )
    return np.asarray(sample.learn_fraction.reshape(len(tables), repeats).mean(axis=1))


def describe_curve(costs: FloatArray, exact: FloatArray, simulated: FloatArray) -> dict[str, Any]:
    """Return a curve with its jumps and the distance of the simulation from it."""
    jumps = find_jumps(exact)
    return {
        "costs": [float(f"{cost:.5g}") for cost in costs],
        "exact": round_curve(exact),
        "simulated": round_curve(simulated),
        "jumps": len(jumps),
        "largest_jump": round(float(np.abs(np.diff(exact)).max()), 5),
        "largest_error": round(float(np.abs(simulated - exact).max()), 5),
        "mean_error": round(float(np.abs(simulated - exact).mean()), 5),
    }


def compute_price_curve(problem: QueueProblem, values: int, repeats: int) -> Mapping[str, Any]:
    """Compute the curve of the learning cost as a price."""
    asked = np.geomspace(LEAST_PRICE, LARGEST_PRICE, values)
    prices, policies = sweep_price(problem, asked.tolist())
    tables = np.stack(policies).astype(np.float64)
    evaluations = [evaluate_queue_policy(problem, QueueTable(table)) for table in tables]
    exact = np.array([evaluation.learn_fraction for evaluation in evaluations])
    generator = np.random.default_rng(SEED)
    simulated = simulate_tables(problem, tables, repeats, generator=generator)
    curve = describe_curve(np.array(prices), exact, simulated)
    return curve | {"vertices": count_vertices(policies)}


def compute_limit_curve(problem: QueueProblem, values: int, repeats: int) -> Mapping[str, Any]:
    """Compute the curve of a limited cost; scaling the cost up equals scaling the limit down."""
    operator = QueueOperator(problem)
    tight = solve_average_cost(operator, (0.0, 1.0), always_learn(problem)).gain
    idle = QueueTable(never_learn(problem).astype(np.float64))
    loose = evaluate_queue_policy(problem, idle).learning_cost
    least = problem.limit / loose
    most = FARTHEST if tight <= 0.0 else min(FARTHEST, 0.999 * problem.limit / tight)
    factors, solutions = [], []
    for factor in np.geomspace(least, most, values).tolist():
        try:
            solutions.append(solve_queue(problem.with_limit(problem.limit / factor)))
        except NoSolution:
            continue
        factors.append(factor)
    exact = np.array([solution.evaluation.learn_fraction for solution in solutions])
    tables = np.stack([solution.policy.table for solution in solutions])
    generator = np.random.default_rng(SEED + 1)
    simulated = simulate_tables(problem, tables, repeats, generator=generator)
    mixing = sum(solution.mixing is not None for solution in solutions)
    return describe_curve(np.array(factors), exact, simulated) | {"mixing": mixing}


def compute_horizon_curve(problem: FiniteHorizon, values: int, runs: int) -> Mapping[str, Any]:
    """Compute the curve of the terminal cost as a price, in the finite horizon."""
    scales = np.geomspace(LEAST_SCALE, LARGEST_SCALE, values)
    generator = np.random.default_rng(SEED + 2)
    exact, simulated, policies = [], [], []
    for scale in scales:
        cost = replace(problem.learning_cost, scale=float(scale))
        scaled = replace(problem, learning_cost=cost)
        solution = solve_horizon(scaled)
        exact.append(evaluate_horizon_policy(scaled, solution.policy).exposure)
        sample = simulate_horizon_policy(scaled, solution.policy, runs, generator=generator)
        simulated.append(float(sample.learning_queries.mean()) / problem.rounds)
        policies.append(solution.learn)
    curve = describe_curve(scales, np.array(exact), np.array(simulated))
    return curve | {"vertices": count_vertices(policies)}


def run_figure(request: Request, store: CellStore) -> ResultDict:
    """Compute all three curves."""
    queue, horizon = load_problems(request.reading)
    values = QUICK_VALUES if request.quick else VALUES
    runs = request.count_seeds(RUNS, QUICK_RUNS)
    repeats = max(runs // 50, 1)
    sizes = {"values": values, "runs": runs, "farthest": FARTHEST}
    key = {"part": "cost", "reading": request.reading, **sizes}
    curves = {
        "price": partial(compute_price_curve, queue, values, repeats),
        "limit": partial(compute_limit_curve, queue, values, repeats),
        "horizon": partial(compute_horizon_curve, horizon, values, runs),
    }
    work = {name: ({**key, "curve": name}, compute) for name, compute in curves.items()}
    found = store.work_out(work)
    return {
        "settings": {
            "reading": request.reading,
            "values": values,
            "capacity": CAPACITY,
            "overflow_cost": OVERFLOW_COST,
            "queue_runs": repeats,
            "queue_rounds": ROUNDS,
            "horizon_runs": runs,
            "horizon_rounds": horizon.rounds,
            "seed": SEED,
        },
        "curves": [{"curve": name, **curve} for name, curve in found.items()],
    }


FIGURE = Experiment(
    "figure-cost",
    "Learning cost against the proportion of learning queries",
    "Figure 5, Appendix A",
    run_figure,
)
