"""The policy gradient on recorded rounds and through a change of the system, for docs/spga.md."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.resources import files

import numpy as np
from paper.experiment import load_queue
from paper.figure_spga import evaluate_run
from paper.figure_tracking import track_change
from paper.page.markdown import table
from reference_problem import make_queue
from spga_ablation import SEED, THREADS, judge

from covertfl.api.fit import fit
from covertfl.decision.problem import QueueProblem
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.spga.experience import Experience, ReplayedLog, SimulatedSource
from covertfl.solvers.spga.result import SpgaRun
from covertfl.solvers.spga.rules import extract_rules
from covertfl.solvers.spga.score import LIMIT_SLACK
from covertfl.solvers.spga.search import search_policy
from covertfl.solvers.spga.settings import Settings, default_settings, settings_for_log

LOGS, LENGTHS = 10, (600, 5000)
FIT_SEEDS = (0, 1, 2)
LOGS_PER_RUN, SOUND_LENGTH = 5, 5000
TRACKED_RUNS, ITERATIONS, ROLLOUT = 12, 4000, 1000
SPREAD = ("logs", "gap: mean", "largest", "learning / limit: least", "largest", "keep the limit")


def sample_log(problem: QueueProblem, length: int, number: int) -> Experience:
    """Return recorded rounds of a queue."""
    generator = np.random.default_rng([SEED, length, number])
    probs, sizes = problem.arrival_probs[1:], problem.arrival_support[1:]
    source = SimulatedSource(problem.oracle, probs, sizes, generator=generator)
    return source.next_rounds(length)


def search_log(problem: QueueProblem, recorded: Experience, settings: Settings) -> SpgaRun:
    """Search on recorded rounds that are replayed."""
    source, generator = ReplayedLog(recorded), np.random.default_rng(SEED)
    return search_policy(extract_rules(problem), source, settings, generator=generator)


def render_logs(runs: int) -> str:
    """Measure searches on logs, scored on the true model, and on the example log of the package."""
    problem = make_queue(40)
    rows = []
    for length in LENGTHS:
        logs = [sample_log(problem, length, number) for number in range(min(LOGS, runs))]

        def search(recorded: Experience) -> SpgaRun:
            return search_log(problem, recorded, settings_for_log(problem, recorded))

        with ThreadPoolExecutor(THREADS) as pool:
            found = [judge(problem, run) for run in pool.map(search, logs)]
        rows.append([f"reference queue, {length:,} rounds", *spread(found)])
    with files("covertfl.data").joinpath("participation.csv").open() as file:
        fitted = fit(file.name, cuts=(8, 15), min_examples=6800)
    judged: list[tuple[float, float] | None] = []
    for seed in FIT_SEEDS[:runs]:
        policy = fitted.search_policy(seed=seed)
        assert isinstance(policy.problem, QueueProblem) and policy.evaluation is not None
        assert policy.gap is not None
        judged.append((policy.gap, policy.evaluation.learning_cost / policy.problem.limit))
    length = fitted.details.num_rounds
    rows.append([f"example log of the package, {length:,} rounds", *spread(judged)])
    return table(["rounds", *SPREAD], rows, "l" + "r" * len(SPREAD))


def spread(judged: Sequence[tuple[float, float] | None]) -> list[str]:
    """Return the cells of the columns `SPREAD`."""
    found = [each for each in judged if each is not None]
    assert found, "all searches gave up"
    gaps, shares = np.array(found).T
    kept = int(np.count_nonzero(shares <= 1.0 + LIMIT_SLACK))
    return [
        str(len(judged)),
        f"{gaps.mean():.1%}",
        f"{gaps.max():.1%}",
        f"{shares.min():.2f}",
        f"{shares.max():.2f}",
        f"{kept} of {len(judged)}",
    ]


def render_full_logs(runs: int) -> str:
    """Measure both ways to start a rollout on logs with more arrivals than successes."""
    problem = load_queue("sound/queue")
    bounded, settings = solve_queue(problem).problem, default_settings(problem)
    kinds = [settings, replace(settings, carries_over=False, start_backlog=0)]
    columns = ["log", "arrivals / successes"]
    for kind in ("carried over", "from an empty queue"):
        columns += [f"{kind}: gap", "learning / limit"]
    rows = []
    for number in range(LOGS_PER_RUN * runs):
        recorded = sample_log(problem, SOUND_LENGTH, number)
        load = recorded.arrival.sum() / recorded.success.sum()
        if load < 1.0:
            continue
        cells = [str(number + 1), f"{load:.3f}"]
        for each in kinds:
            found = judge(bounded, search_log(problem, recorded, each))
            cells += ["gives up", ""] if found is None else [f"{found[0]:.1%}", f"{found[1]:.2f}"]
        rows.append(cells)
    text = table(columns, rows, "l" + "r" * (len(columns) - 1))
    return (
        f"Of {LOGS_PER_RUN * runs} logs of `sound/queue` with {SOUND_LENGTH:,} rounds, {len(rows)} "
        f"have at least as many arrivals as successes:\n\n{text}"
    )


def track(runs: int) -> list[tuple[SpgaRun, SpgaRun]]:
    """Search through the change of the tracking problem; return each search before and after."""
    before, after = (load_queue(f"sound/tracking-{when}") for when in ("before", "after"))
    settings = default_settings(before, iterations=ITERATIONS, rollout=ROLLOUT, tracking=True)
    search = partial(track_change, before, after, settings)
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(search, range(min(TRACKED_RUNS, runs))))


def render_tracking(runs: int) -> str:
    """Measure the policies of a search at the change of the system and at its end."""
    found, rows = track(runs), []
    for stage, when in enumerate(("before", "after")):
        optimum = solve_queue(load_queue(f"sound/tracking-{when}"))
        judged = [evaluate_run(optimum, pair[stage]) for pair in found]
        limit = optimum.problem.limit
        cells = spread([(each["gap"], each["learning"] / limit) for each in judged])
        place = f"{when}, at iteration {(stage + 1) * ITERATIONS // 2:,}"
        rows.append([place, *cells])
    columns = ["the change", "runs", *SPREAD[1:]]
    return table(columns, rows, "l" + "r" * len(SPREAD))
