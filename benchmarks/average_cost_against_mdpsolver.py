"""The average-cost problem, equation (10), at one multiplier: covertfl against MDPSolver.

Run as a script with CAPACITY PARALLEL REPEATS, this file solves one size with MDPSolver and prints
the result as JSON, so that a run that takes too long can be killed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from measurement import Timing, format_ratio, format_seconds, load_peer, run_apart, time_repeats
from reference_problem import make_queue
from section import Check, Section

from covertfl import Action, QueueProblem
from covertfl.decision.problem import round_learning_cost
from covertfl.evaluation.chain import solve_chain
from covertfl.solvers.average_cost import (
    AverageCostSolution,
    QueueOperator,
    always_learn,
    solve_average_cost,
)
from covertfl.solvers.occupation_lp import build_transition_matrix

CAPACITIES, QUICK_CAPACITIES = (40, 200, 1000, 5000), (40, 200)
WEIGHTS = (1.0, 0.1)
AGREEMENT = 1e-6
# Time limit of one run of MDPSolver, in seconds.
PEER_LIMIT = 120.0


def solve_ours(problem: QueueProblem) -> AverageCostSolution:
    """Solve by policy iteration from scratch, without anything cached."""
    return solve_average_cost(QueueOperator(problem), WEIGHTS, always_learn(problem))


# --- MDPSolver ----------------------------------------------------------------------------------


def make_peer_model(problem: QueueProblem) -> Any:
    """Build the same problem for MDPSolver: rewards and sparse transitions by state and action.

    States with backlog 0 do not have the action of learning.
    """
    privacy = np.broadcast_to(problem.privacy_cost[:, None, None], problem.table_shape)
    rewards, probs, columns = [], [], []
    for action in Action:
        cost = WEIGHTS[1] * round_learning_cost(problem, action) + WEIGHTS[0] * action * privacy
        matrix = build_transition_matrix(problem, action)
        matrix.eliminate_zeros()
        rewards.append((-cost).ravel().tolist())
        probs.append([row.tolist() for row in np.split(matrix.data, matrix.indptr[1:-1])])
        columns.append([row.tolist() for row in np.split(matrix.indices, matrix.indptr[1:-1])])
    admissible = [
        (0,) if state % problem.num_levels == 0 else (0, 1) for state in range(problem.num_states)
    ]

    def by_state(table: list[list[Any]]) -> list[list[Any]]:
        return [[table[u][state] for u in actions] for state, actions in enumerate(admissible)]

    model = load_peer("mdpsolver", "MDPSolver").model()
    model.mdp(
        rewards=by_state(rewards), tranMatProbs=by_state(probs), tranMatColumns=by_state(columns)
    )
    return model


def solve_with_peer(capacity: int, *, parallel: bool, repeats: int) -> dict[str, Any]:
    """Solve one size with MDPSolver and compare its policy with covertfl's."""
    problem = make_queue(capacity)
    ours = solve_ours(problem)
    seconds = []
    for _ in range(repeats):
        model = make_peer_model(problem)
        model.solve(algorithm="mpi", criterion="average", parallel=parallel)
        seconds.append(model.getRuntime() / 1e3)
    learn = np.array(model.getPolicy(), dtype=np.bool_).reshape(problem.table_shape)
    gain = float(np.dot(WEIGHTS, solve_chain(problem, learn.astype(np.float64)).averages))
    return {
        "seconds": seconds,
        "gain_difference": abs(gain - ours.gain) / ours.gain,
        "states_that_differ": int((learn != ours.learn).sum()),
    }


# --- the comparison -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Timings of one size; `peer` is None if it was killed."""

    num_states: int
    ours: Timing
    peer: Timing | None
    threads: str
    gain_difference: float | None
    states_that_differ: int | None

    @property
    def ratio(self) -> float:
        """Return MDPSolver's time divided by covertfl's; a lower bound if it was killed."""
        return (self.peer.best if self.peer else PEER_LIMIT) / self.ours.best

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row as text."""
        return (
            f"{self.num_states:,}",
            str(self.ours),
            str(self.peer) if self.peer else f"more than {format_seconds(PEER_LIMIT)}",
            self.threads,
            "not known" if self.gain_difference is None else f"{self.gain_difference:.0e}",
            "not known" if self.states_that_differ is None else f"{self.states_that_differ} states",
            format_ratio(self.ratio) if self.peer else f"more than {format_ratio(self.ratio)}",
        )


def measure_capacity(
    capacity: int, *, threads: tuple[bool, ...] = (True, False), repeats: int = 3
) -> Row:
    """Solve one size with both; of MDPSolver's ways to use the processor the faster one counts.

    Parameters
    ----------
    threads : which to try, True for all cores and False for one
    """
    problem = make_queue(capacity)
    _, ours = time_repeats(lambda: solve_ours(problem), repeats=10)
    runs = {
        parallel: run_apart(__file__, (capacity, int(parallel), repeats), limit=PEER_LIMIT)
        for parallel in threads
    }
    finished = {parallel: run for parallel, run in runs.items() if run is not None}
    if not finished:
        words = " or ".join(_describe(parallel) for parallel in threads)
        return Row(problem.num_states, ours, None, words, None, None)
    parallel, run = min(finished.items(), key=lambda item: min(item[1]["seconds"]))
    return Row(
        problem.num_states,
        ours,
        Timing(tuple(run["seconds"])),
        _describe(parallel),
        run["gain_difference"],
        run["states_that_differ"],
    )


def _describe(parallel: bool) -> str:
    return "all cores" if parallel else "one core"


def measure(*, quick: bool) -> Section:
    """Measure the whole comparison."""
    load_peer("mdpsolver", "MDPSolver")
    rows: list[Row] = []
    threads: tuple[bool, ...] = (True, False)
    for capacity in QUICK_CAPACITIES if quick else CAPACITIES:
        if capacity > 1000:  # once, on as many cores as were faster at the previous size
            threads = (rows[-1].threads == _describe(True),)
        repeats = 3 if capacity <= 200 else 1
        rows.append(measure_capacity(capacity, threads=threads, repeats=repeats))
    differences = [row.gain_difference for row in rows if row.gain_difference is not None]
    worst = max(differences, default=float("inf"))
    text = f"where MDPSolver finished, both policies cost the same to {AGREEMENT:g}"
    return Section(
        "Average cost at one multiplier: policy iteration against MDPSolver",
        ("states", "covertfl", "MDPSolver", "on", "costs differ by", "actions differ in", "ratio"),
        tuple(row.cells for row in rows),
        (Check(f"{text} (largest difference {worst:.0e})", worst <= AGREEMENT),),
        {f"{row.num_states:,} states": row.ratio for row in rows if row.peer},
        is_guarded=True,
    )


if __name__ == "__main__":
    size, is_parallel, times = map(int, sys.argv[1:])
    print(json.dumps(solve_with_peer(size, parallel=bool(is_parallel), repeats=times)))
