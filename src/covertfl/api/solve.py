"""`solve`: find the optimal policy of a problem by any method."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

from covertfl.api.problem import ProblemSource, resolve_problem
from covertfl.api.solution import Solution
from covertfl.decision.arguments import read_callback, read_count, require_choice
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import QueueSolution, solve_queue
from covertfl.solvers.spga.score import describe_costs, score_horizon_runs, score_queue_runs

if TYPE_CHECKING:
    from covertfl.solvers.spga.result import SpgaRun

Method = Literal["exact", "lp", "spga"]
OnProgress = Callable[[str, float], None]


def solve(
    problem: ProblemSource,
    method: Method = "exact",
    *,
    seed: int = 0,
    iterations: int = 2000,
    runs: int = 1,
    on_progress: OnProgress | None = None,
) -> Solution:
    """Return the optimal policy of a queue (9) or a horizon (7), with its certificate.

    Parameters
    ----------
    problem : a problem, the name of a preset or the path of a problem file
    method : "exact"; "lp", a linear program, for queues only; or "spga", the structured policy
        gradient (Algorithm 1), which needs no transition probabilities
    seed, iterations, runs : of the policy gradient; the best of its runs is kept
    on_progress : called with a detail and the share done, 0 where that is not known

    Raises
    ------
    InvalidInput
        if the problem or an argument is not valid
    Infeasible, Unstable, SplitChain
        if the problem has no solution; the message says which bound cannot be met
    """
    loaded = resolve_problem(problem)
    report: OnProgress = read_callback(on_progress, "on_progress")
    require_choice(method, get_args(Method), "method")
    if method == "exact":
        return _solve_exactly(loaded.problem, report)
    if method == "lp":
        return _solve_by_program(loaded.problem, loaded.name, report)
    return _solve_by_search(
        loaded.problem,
        seed=read_count(seed, "seed", least=0),
        iterations=read_count(iterations, "iterations"),
        runs=read_count(runs, "runs"),
        on_progress=report,
    )


def _solve_exactly(problem: Problem, on_progress: OnProgress) -> Solution:
    """Solve by policy iteration and multiplier search, or by backward induction."""
    start = time.perf_counter()
    if isinstance(problem, FiniteHorizon):
        found = solve_horizon(problem)
        return Solution(problem, "exact", found.policy, found, time.perf_counter() - start)
    return _wrap_queue(_solve_queue(problem, on_progress), start)


def _wrap_queue(found: QueueSolution, start: float) -> Solution:
    seconds = time.perf_counter() - start
    return Solution(found.problem, found.method, found.policy, found, seconds)


def _solve_queue(problem: QueueProblem, on_progress: OnProgress) -> QueueSolution:
    return solve_queue(problem, on_progress=lambda detail: on_progress(detail, 0.0))


def _solve_by_program(problem: Problem, name: str, on_progress: OnProgress) -> Solution:
    """Solve a queue by the linear program, at the capacity that the exact solver finds."""
    from covertfl.solvers.occupation_lp import solve_occupation_lp

    if isinstance(problem, FiniteHorizon):
        raise InvalidInput(f"{name}: method lp is for queue problems; a horizon needs exact")
    start = time.perf_counter()
    if problem.capacity is None:
        problem = _solve_queue(problem, on_progress).problem
    return _wrap_queue(solve_occupation_lp(problem), start)


def _solve_by_search(
    problem: Problem, *, seed: int, iterations: int, runs: int, on_progress: OnProgress
) -> Solution:
    """Search by the structured policy gradient, in parallel over cores, and judge the runs.

    A queue is solved exactly first, so that a limit which cannot be met is refused at once; the
    search uses nothing of it.
    """
    if isinstance(problem, FiniteHorizon):
        found, seconds = _search(problem, seed, iterations, runs, on_progress)
        horizon = score_horizon_runs(problem, found)
        return Solution(problem, "spga", horizon.policy, horizon, seconds, seed)
    optimum = _solve_queue(problem, on_progress)
    found, seconds = _search(problem, seed, iterations, runs, on_progress)
    score = score_queue_runs(problem, found, optimum=optimum)
    chosen = score.solution
    return Solution(chosen.problem, "spga", chosen.policy, score, seconds, seed)


def _search(
    problem: Problem, seed: int, iterations: int, runs: int, on_progress: OnProgress
) -> tuple[list[SpgaRun], float]:
    """Return the runs of a search and the seconds they took."""
    from covertfl.solvers.spga.search import solve_spga
    from covertfl.solvers.spga.settings import default_settings, horizon_settings

    def report(done: int, privacy: float, learning: float) -> None:
        on_progress(describe_costs(problem, privacy, learning), done / (iterations * runs))

    start = time.perf_counter()
    if isinstance(problem, FiniteHorizon):
        settings = horizon_settings(problem, iterations=iterations)
    else:
        settings = default_settings(problem, iterations=iterations)
    threads = max(1, min(runs, os.cpu_count() or 1))
    found = solve_spga(problem, settings, seed=seed, runs=runs, threads=threads, on_progress=report)
    return found, time.perf_counter() - start
