"""The promised wait against its formula and simulated queues; drift against simulated services."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from covertfl.decision.policy import GreedyPolicy, QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.evaluation.queue import simulate_queue_policy
from covertfl.runs.settings import DRIFT_ROUNDS
from covertfl.schemes.scheme import SeenRound
from covertfl.service.promise import (
    CHECK_EVERY,
    FEWEST,
    check_participation,
    find_drift,
    judge_arrivals,
    promise_wait,
)
from covertfl.solvers.constrained import solve_queue
from tests.support.played_services import SERVICE
from tests.support.small_runs import make_run

SERVICES, ROUNDS = 300, 2_000


def make_problem(**changes: Any) -> QueueProblem:
    problem = make_run(SERVICE, **changes).problem
    assert isinstance(problem, QueueProblem)
    return problem


def simulate_services(
    problem: QueueProblem, count: int, rounds: int, *, factor: int = 1, seed: int = 5
) -> list[list[SeenRound]]:
    """Draw oracle states, arrivals and acceptance of services from a problem."""
    generator = np.random.default_rng(seed)
    steps = np.cumsum(problem.oracle.transition, axis=1)
    state = np.zeros(count, dtype=np.int64)
    rows = []
    for _ in range(rounds):
        draws = generator.random(count)
        state = np.minimum((steps[state] <= draws[:, np.newaxis]).sum(axis=1), len(steps) - 1)
        arrived = problem.arrival_support[problem.draw_arrivals(generator.random(count))]
        accepted = generator.random(count) < problem.oracle.success[state]
        rows.append((state, factor * arrived, accepted))
    states, arrivals, successes = (np.array(part) for part in zip(*rows, strict=True))
    return [
        list(zip(*(part[:, at].tolist() for part in (states, arrivals, successes)), strict=True))
        for at in range(count)
    ]


def list_warnings(problem: QueueProblem, seen: list[SeenRound]) -> set[str]:
    """Return what a service with these rounds is warned of."""
    found: set[str] = set()
    for done in range(FEWEST, len(seen) + 1, CHECK_EVERY):
        found |= set(find_drift(problem, seen[max(0, done - DRIFT_ROUNDS) : done]))
    return found


def test_the_promise_is_limit_over_scale_and_load() -> None:
    problem = make_problem()
    # Learning costs 0.6 for each update owed, at most 3 on average; 0.1 * 2 updates come a round.
    assert promise_wait(problem, GreedyPolicy()) == pytest.approx(3.0 / 0.6 / 0.2)


def test_the_promise_is_kept_in_a_long_simulation() -> None:
    problem = make_problem()
    solved = solve_queue(problem)
    generator = np.random.default_rng(3)
    found = simulate_queue_policy(
        problem.with_capacity(500),
        solved.policy,
        rounds=6_000,
        runs=30,
        burn_in=500,
        generator=generator,
    )
    promised = promise_wait(problem, solved.policy)
    assert promised is not None
    wait = float(found.mean_backlog.mean()) / problem.load
    assert wait == pytest.approx(promised, rel=0.05)  # the limit is binding
    assert wait < 1.05 * promised


def test_without_a_linear_limit_the_promise_is_the_policys_own_wait() -> None:
    quadratic = {"learning": {"shape": "quadratic", "scale": 0.05}}
    problem = make_problem(cost=quadratic, queue={"capacity": 12, "overflow_cost": 5.0})
    table = np.zeros((3, len(problem.arrival_support), 13))
    table[:, :, 1:] = 0.7
    policy = QueueTable(table)
    promised = promise_wait(problem, policy)
    generator = np.random.default_rng(3)
    found = simulate_queue_policy(
        problem, policy, rounds=4_000, runs=30, burn_in=200, generator=generator
    )
    assert promised == pytest.approx(found.mean_backlog.mean() / problem.load, rel=0.05)
    assert promise_wait(problem, GreedyPolicy()) is None


@pytest.mark.parametrize("rounds", [500, pytest.param(1_000, marks=pytest.mark.slow)])
def test_services_without_drift_are_not_warned(rounds: int) -> None:
    problem = make_problem()
    services = simulate_services(problem, SERVICES, rounds)
    warned = [bool(list_warnings(problem, seen)) for seen in services]
    assert np.mean(warned) <= 0.01


def test_services_are_warned_when_arrivals_double() -> None:
    problem = make_problem()
    found = [
        list_warnings(problem, seen) for seen in simulate_services(problem, 10, ROUNDS, factor=2)
    ]
    assert all("arrivals" in one for one in found)
    assert sum("participation" in one for one in found) <= 1


def test_services_are_warned_when_participation_changes() -> None:
    problem = make_problem()
    other = make_problem(oracle={"success": [0.1, 0.35, 0.8]})
    found = [list_warnings(problem, seen) for seen in simulate_services(other, 10, ROUNDS)]
    assert all("participation" in one for one in found)
    impossible: list[SeenRound] = [(0, 0, False), (2, 0, True)] * 200
    assert check_participation(problem, impossible).p_value == 0.0


def test_p_values_of_arrivals_are_those_of_a_normal_total() -> None:
    problem = make_problem()
    # 0.1 * 2 updates a round: mean 0.2, variance 0.1 * 4 - 0.04 = 0.36.
    arrived = [2] * 50 + [0] * 350
    z = (100 - 0.2 * 400) / np.sqrt(0.36 * 400)
    expected = 2.0 * (1.0 - NormalDist().cdf(z))
    assert judge_arrivals(problem, arrived) == pytest.approx(expected, rel=1e-9)
    assert judge_arrivals(problem, [2] * 40 + [0] * 360) == 1.0


def test_p_values_without_drift_are_rarely_small() -> None:
    """A test at level p is wrong about p of the time, also in short windows."""
    problem = make_problem()
    services = simulate_services(problem, 600, FEWEST, seed=8)
    values = {
        "participation": [check_participation(problem, seen).p_value for seen in services],
        "arrivals": [judge_arrivals(problem, [one[1] for one in seen]) for seen in services],
    }
    for name, found in values.items():
        for level in (0.01, 0.1):
            assert np.mean(np.array(found) < level) < level + 3 * np.sqrt(level / 600), name
