"""The demonstration: from the example log to policies, a plan and pictures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from covertfl import plots, render, results
from covertfl.atomic_file import write_atomically
from covertfl.fitted_problem import format_problem
from covertfl.oracle_fit import fit_oracle
from covertfl.participation_log import read_example_log
from covertfl.planner import plan_horizon, plan_queue
from covertfl.policy_file import write_policy
from covertfl.problem import FiniteHorizon, QueueProblem
from covertfl.problem_file import parse_problem, read_preset
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import solve_queue

# The example log's clients hold 27,200 examples; a quarter of them makes a round a success.
EXAMPLE_CUTS = (8.0, 15.0)
EXAMPLE_MIN_EXAMPLES = 6800.0


def run_demo(folder: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Fit the example log, plan, solve the paper's two problems, and draw the policies.

    Parameters
    ----------
    folder : where problem, policies and pictures go
    quiet : print nothing
    """
    folder.mkdir(parents=True, exist_ok=True)
    show = (lambda *_: None) if quiet else _show
    fitted = fit_oracle(read_example_log(), cuts=EXAMPLE_CUTS, min_examples=EXAMPLE_MIN_EXAMPLES)
    show("1. The oracle, fitted to the example log", render.render_fit(fitted))

    text = format_problem(fitted)
    write_atomically(folder / "problem.toml", text)
    problem = parse_problem(text, "problem.toml").problem
    assert isinstance(problem, QueueProblem)  # the example log has arrivals
    queue_plan = plan_queue(problem)
    show("2. The plan for the fitted queue", render.render_queue_plan(queue_plan))

    main = read_preset("sound/main").problem
    assert isinstance(main, FiniteHorizon)
    horizon_plan = plan_horizon(main, generator=np.random.default_rng(0))
    show("3. The plan for the paper's main experiment", render.render_horizon_plan(horizon_plan))

    start = time.perf_counter()
    horizon = solve_horizon(main)
    horizon_seconds = time.perf_counter() - start
    show("4. Its optimal policy", render.render_horizon_solution(horizon, horizon_seconds))

    start = time.perf_counter()
    queue = solve_queue(_paper_queue())
    queue_seconds = time.perf_counter() - start
    show("5. The paper's queue", render.render_queue_solution(queue, queue_seconds))

    write_policy(folder / "queue-policy.json", queue.policy)
    write_policy(folder / "horizon-policy.json", horizon.policy)
    pictures = {
        "queue-policy.png": plots.plot_queue_policy(queue),
        "horizon-policy.png": plots.plot_horizon_policy(horizon),
        "completion.png": plots.plot_completion(horizon_plan),
        "frontier.png": plots.plot_frontier(queue_plan),
    }
    for name, figure in pictures.items():
        plots.save_figure(figure, folder / name)
    if not quiet:
        print(f"\nPictures, problem and policies are in {folder}: {', '.join(pictures)}")
    return {
        "fit": results.describe_fit(fitted),
        "queue_plan": results.describe_queue_plan(queue_plan),
        "horizon_plan": results.describe_horizon_plan(horizon_plan),
        "horizon": results.describe_horizon_solution(horizon, horizon_seconds),
        "queue": results.describe_queue_solution(queue, queue_seconds),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def _paper_queue() -> QueueProblem:
    problem = read_preset("sound/queue").problem
    assert isinstance(problem, QueueProblem)
    return problem


def _show(title: str, body: Any) -> None:
    print(f"\n{title}\n{'=' * len(title)}")
    render.print_result(body)
