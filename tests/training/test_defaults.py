"""Plain settings work: every preset trains, the decoy moves, the learner finishes as planned.

Nothing is trained here: actions, acceptance and moves do not depend on the weights.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl import FiniteHorizon, QueueProblem, evaluate_horizon_policy
from covertfl.decision.problem_file import PRESET_NAMES, READINGS
from covertfl.evaluation.bounds import service_capacity
from covertfl.runs.records import MemoryRecords
from covertfl.runs.round import run_rounds
from covertfl.runs.settings import build_run
from covertfl.runs.simulated import SimulatedEngine, run_together
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation
from covertfl.schemes.scheduled import Scheduled
from tests.support.slow_cases import mark_slow
from tests.support.still_kernel import StillKernel

KERNELS = KernelCache()
TASKS = ("toxicity", "digits")
SEEDS = 25


def build(task: str, **sections: object) -> Federation:
    """Return the federation of a run file with nothing but a task and some sections."""
    return build_federation(build_run({"task": task, **sections}, "run", folder=Path()), KERNELS)


@dataclass
class Schedule:
    """The rounds of a run: whether each learned, and whether its trajectory moved."""

    learns: list[bool]
    moves: list[bool]
    final: RunState

    def count_moves(self, *, learns: bool) -> int:
        """Return how often the true trajectory moves, or the decoy."""
        rounds = zip(self.learns, self.moves, strict=True)
        return sum(moves for own, moves in rounds if own == learns)


def draw_schedule(federation: Federation) -> Schedule:
    """Run a federation whose kernel trains nothing."""
    scheme, outputs = federation.scheme, 1 if federation.task.loss == "binary" else 10
    assert isinstance(scheme, Scheduled)
    still = StillKernel(federation.layout, outputs)
    scheme = replace(scheme, setup=replace(scheme.setup, kernel=still))
    federation = replace(federation, kernel=still, scheme=scheme)
    states = [start_run(federation)]
    rounds = run_rounds(federation, MemoryRecords(), states[0], states.append)
    [final] = run_together([(federation, rounds)])
    pairs = list(itertools.pairwise(states))
    return Schedule(
        [after.learning_queries > before.learning_queries for before, after in pairs],
        [
            (after.updates, after.scheme.moves) != (before.updates, before.scheme.moves)
            for before, after in pairs
        ],
        final,
    )


def draw_seeds(federation: Federation, seeds: int) -> list[Schedule]:
    """Draw the rounds of runs that differ in their seeds; the data of one serve all."""
    engine, scheme, schedules = federation.engine, federation.scheme, []
    assert isinstance(engine, SimulatedEngine) and isinstance(scheme, Scheduled)
    for seed in range(seeds):
        settings = federation.settings.with_seed(seed)
        acceptance = replace(engine.acceptance, settings=settings)
        own = replace(
            federation,
            settings=settings,
            engine=replace(engine, settings=settings, acceptance=acceptance),
            scheme=replace(scheme, setup=replace(scheme.setup, hidden_seed=seed)),
        )
        schedules.append(draw_schedule(own))
    return schedules


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_the_scheme_works_with_nothing_but_a_task(task: str) -> None:
    federation = build(task)
    assert isinstance(federation.problem, FiniteHorizon)
    printed = federation.settings.problem.oracle.success
    assert federation.problem.oracle.success == pytest.approx(printed, abs=0.03)
    assert isinstance(federation.scheme, Scheduled)
    planned = evaluate_horizon_policy(federation.problem, federation.scheme.policy.policy)
    schedules = draw_seeds(federation, SEEDS)
    assert min(schedule.count_moves(learns=False) for schedule in schedules) >= 4
    finished = np.mean([schedule.final.queue.backlog == 0 for schedule in schedules])
    error = np.sqrt(planned.finish_prob * (1.0 - planned.finish_prob) / SEEDS)
    assert finished == pytest.approx(planned.finish_prob, abs=3.0 * error)
    exposures = np.array([schedule.final.exposure for schedule in schedules])
    named = 0.5 + 0.5 * np.sign(exposures - 0.5)
    assert named.mean() < 0.25  # equation (6) holds the decoy
    assert 0.3 < np.mean([more_repeats(schedule) for schedule in schedules]) < 0.7


def more_repeats(schedule: Schedule) -> float:
    """Return 1 if a larger share of true queries than of decoy queries repeats, 0.5 in a tie."""
    shares = []
    for learns in (True, False):
        moved = [
            moves
            for own, moves in zip(schedule.learns, schedule.moves, strict=True)
            if own == learns
        ]
        # The last query is repeated by none.
        shares.append(1.0 - np.mean(moved[:-1]) if len(moved) > 1 else 0.0)
    return 0.5 + 0.5 * float(np.sign(shares[0] - shares[1]))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", mark_slow(PRESET_NAMES, ["main"]))
@pytest.mark.parametrize("reading", mark_slow(READINGS, ["sound"]))
def test_every_preset_trains(task: str, reading: str, name: str) -> None:
    federation = build(task, problem=f"{reading}/{name}")
    measured, printed = federation.measured, federation.settings.problem.oracle.success
    assert measured is not None
    assert measured == pytest.approx(printed, abs=0.13 if name == "states7" else 0.05)
    schedule = draw_schedule(federation)
    assert schedule.count_moves(learns=True) >= 10
    # With the privacy costs as the text prints them, learning in the worst state is cheapest, and
    # the optimal policy hardly obfuscates (D2 of docs/deviations.md).
    if (reading, name) != ("paper-text", "main"):
        assert schedule.count_moves(learns=False) >= 10


@pytest.mark.parametrize("task", TASKS)
def test_the_queue_of_the_sound_reading_has_room(task: str) -> None:
    problem = build(task, problem="sound/queue").problem
    assert isinstance(problem, QueueProblem)
    assert service_capacity(problem) > 1.05 * problem.load
