"""The compiled loops of the structured policy gradient: gradient estimate and rollouts."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covertfl.arrays import FloatArray
from covertfl.decision.policy import HorizonTable, build_sigmoid_table
from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.spga.experience import Experience, SimulatedSource
from covertfl.solvers.spga.kernel import (
    _estimate_slope,
    _move,
    _perturb,
    _update_multiplier,
    make_trial,
    roll_out,
    tabulate_odds,
)
from covertfl.solvers.spga.rules import Rules, extract_rules
from covertfl.solvers.spga.search import Memory
from covertfl.solvers.spga.settings import Settings, default_settings, printed_settings
from tests.support.paper_queues import (
    FALLING_COST,
    SIGMOID_PARAMETERS,
    TEXT_ORACLE,
    constant_cost_queue,
    reference_queue,
)


def overflowing_queue(charged: Any) -> QueueProblem:
    """A small queue that is often full, loses updates and pays for both."""
    return QueueProblem(
        TEXT_ORACLE,
        FALLING_COST,
        LearningCost("quadratic", 0.1, charged),
        arrival_prob=0.2,
        arrival_size=3,
        limit=4.0,
        capacity=9,
        overflow_cost=2.5,
        full_cost=1.5,
    )


# --- the gradient estimate ----------------------------------------------------------------------


GRADIENT = np.array([1.0, -2.0, 3.0, 0.0])


class FixedBits:
    """Stands in for a generator: up (a draw of 0) or down (a draw of 1), as listed."""

    def __init__(self, ups: tuple[bool, ...]) -> None:
        self._draws = iter([0.0 if up else 1.0 for up in ups])

    def random(self) -> float:
        return next(self._draws)


def estimate(settings: Settings, generator: Any, omega: float) -> FloatArray:
    """How far one step of size 1 moves against a linear cost with the gradient above."""
    schedule = settings.as_tuple()
    memory = Memory(
        parameters=np.array([5.0, 5.0, 5.0, 0.5]),
        momentum=np.zeros(4),
        spread=np.zeros(4),
        average=np.zeros(4),
        numbers=np.zeros(3),
        counters=np.zeros(2, dtype=np.int64),
    )
    direction, policies = np.empty(4), np.tile(memory.parameters, (3, 1))
    draw = _perturb if isinstance(generator, np.random.Generator) else _perturb.py_func
    draw(generator, schedule, omega, direction, policies)
    slope = float(GRADIENT @ policies[1] - GRADIENT @ policies[2])
    if schedule.divides:
        slope /= 2.0 * omega
    start = memory.parameters.copy()
    _move(schedule, memory, slope, direction, 1e-3)
    return np.asarray((start - memory.parameters) / 1e-3)


def expected_estimate(settings: Settings, omega: float) -> FloatArray:
    """The mean over all sixteen equally likely directions."""
    patterns = itertools.product((False, True), repeat=4)
    moves = [estimate(settings, FixedBits(ups), omega) for ups in patterns]
    return np.asarray(np.mean(moves, axis=0))


def plain_steps(settings: Settings) -> Settings:
    """Without the running mean and mean square, which are no part of the estimate."""
    return replace(settings, normalises=False, momentum=0.0)


@pytest.mark.parametrize("omega", [0.01, 0.3, 0.5])
def test_signs_and_division_give_an_unbiased_gradient(omega: float) -> None:
    settings = plain_steps(default_settings(reference_queue()))
    assert expected_estimate(settings, omega) == pytest.approx(GRADIENT, abs=1e-9)


def test_printed_estimate_is_biased() -> None:
    """With 0 and 1 each entry is mixed with the sum of all (deviation D13)."""
    settings = printed_settings(reference_queue())
    assert expected_estimate(settings, 1.0) == pytest.approx([1.5, 0.0, 2.5, 1.0], abs=1e-9)


@pytest.mark.parametrize(("rademacher", "expected"), [(True, GRADIENT), (False, [1.5, 0, 2.5, 1])])
def test_drawn_directions_average_to_the_enumerated_mean(
    rademacher: bool, expected: FloatArray
) -> None:
    settings = plain_steps(default_settings(reference_queue()))
    settings = replace(settings, rademacher=rademacher, divides=rademacher)
    generator = np.random.default_rng(11)
    drawn = np.array([estimate(settings, generator, 0.5) for _ in range(4_000)])
    error = drawn.std(axis=0) / math.sqrt(len(drawn))
    scale = 1.0 if rademacher else 2.0  # without division it grows with 2 omega, printed 2
    assert np.all(np.abs(scale * drawn.mean(axis=0) - expected) < 5.0 * scale * error + 1e-9)
    assert error.max() < 0.1


# --- the multiplier -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiplier", "excess", "iteration", "expected"),
    [
        (10.0, 3.0, 1, 11.5),  # above the limit it rises by kappa times the excess
        (10.0, -0.2, 1, 9.9),  # below the limit it falls by as much,
        (10.0, -2.0, 1, 9.75),  # but by no more than the share kappa / rho = 0.025 of itself,
        (0.1, -1.0, 1, 0.0975),  # so that it stays positive; as misprinted this would be 0.9975
        (0.1, -1.0, 5, 0.0995),  # kappa is 0.1 in iteration 5
        (0.0, -1.0, 1, 0.0),
        (0.0, 0.5, 5, 0.05),
    ],
)
def test_printed_multiplier_by_hand(
    multiplier: float, excess: float, iteration: int, expected: float
) -> None:
    """Second line of (15), read as max[(1 - kappa/rho) xi, xi + kappa (l - Lambda)] (D12)."""
    schedule = printed_settings(reference_queue()).as_tuple()
    assert (schedule.step, schedule.penalty) == (0.5, 20.0)
    found = _update_multiplier(schedule, multiplier, excess, 1.0 / iteration)
    assert found == pytest.approx(expected, rel=1e-12)


def test_corrected_multiplier_by_hand() -> None:
    """Its floor is 0, and its step has a scale of its own."""
    settings = replace(default_settings(reference_queue()), multiplier_step=0.2)
    schedule = settings.as_tuple()
    assert _update_multiplier(schedule, 1.0, 3.0, 0.5) == pytest.approx(1.3)
    assert _update_multiplier(schedule, 1.0, -3.0, 0.5) == pytest.approx(0.7)
    assert _update_multiplier(schedule, 0.1, -3.0, 0.5) == 0.0


@pytest.mark.parametrize(
    ("constrained", "weight"), [(1.5, 20.0), (0.6, 2.0), (0.5, 0.0), (0.0, 0.0)]
)
def test_weight_of_the_learning_cost_by_hand(constrained: float, weight: float) -> None:
    """First line of (15): max[0, xi + rho (l - Lambda)], here with xi = 10 and Lambda = 1."""
    rules = extract_rules(reference_queue())
    schedule = printed_settings(reference_queue()).as_tuple()
    nothing, numbers = np.zeros(18), np.array([10.0, 9.9, 0.0])
    memory = Memory(nothing, nothing, nothing, nothing, numbers, np.zeros(2, dtype=np.int64))
    costs = np.array([[0.7, constrained], [0.9, 1.2], [0.8, 1.7]])
    slope, spent, found = _estimate_slope(rules, schedule, memory, costs, 1.0)
    assert (spent, found) == (constrained, pytest.approx(weight))
    assert slope == pytest.approx(0.1 - 0.5 * weight)


# --- rollouts -----------------------------------------------------------------------------------


def roll(
    rules: Rules,
    rounds: Experience,
    draws: FloatArray,
    y: int,
    *,
    parameters: FloatArray = SIGMOID_PARAMETERS,
    temperature: float = 0.7,
) -> tuple[float, float, int]:
    """Costs and backlog of one policy, which must not depend on those tried beside it."""
    parts = (rounds.oracle_state, rounds.arrival, rounds.success, draws)
    own = parameters.ravel()
    others = [own * factor for factor in (0.5, 0.9)]
    policies, trial = np.stack([*others, own]), make_trial(rules)
    backlog, costs = trial[:2]
    found = []
    for number in range(3):
        backlog[:] = y
        roll_out(
            rules,
            np.roll(policies, number, axis=0),
            temperature,
            tabulate_odds(temperature),
            parts,
            0,
            len(draws),
            trial,
        )
        at = (2 + number) % 3
        found.append((float(costs[at, 0]), float(costs[at, 1]), int(backlog[at])))
    assert found[0] == found[1] == found[2]
    return found[0]


@pytest.mark.parametrize("temperature", [0.01, 0.3, 1.0, 30.0])
def test_odds_of_the_table(temperature: float) -> None:
    table = tabulate_odds(temperature)
    reach = len(table) // 2
    assert reach >= 37.0 * temperature
    expected = np.exp(-np.arange(-reach, reach + 1) / temperature)
    assert table == pytest.approx(expected, rel=1e-11)


def roll_literally(
    problem: QueueProblem,
    rounds: Experience,
    draws: FloatArray,
    y: int,
    parameters: FloatArray = SIGMOID_PARAMETERS,
) -> tuple[float, float, int]:
    """The queue and the policy (14) once more, in plain Python, from the definition."""
    columns = parameters.shape[2]
    assert problem.capacity is not None and problem.overflow_cost is not None
    privacy = learning = 0.0
    for t in range(len(draws)):
        o, arrived = int(rounds.oracle_state[t]), int(rounds.arrival[t])
        index = sum(arrived > size for size in [0, *(problem.arrival_sizes or ())][: columns - 1])
        theta1, theta2, h = parameters[:, o, index]
        prob = h / (1 + math.exp((theta1 - y) / 0.7)) + (1 - h) / (1 + math.exp((theta2 - y) / 0.7))
        learns = y > 0 and draws[t] < prob
        held = float(problem.learning_cost.at(np.array(y)))
        held *= problem.learning_cost.by_state[o] if problem.learning_cost.by_state else 1.0
        privacy += float(problem.privacy_cost[o]) if learns else 0.0
        if not learns or problem.learning_cost.charged == "always":
            learning += held
        if not learns and y == problem.capacity:
            learning += problem.full_cost
        wanted = y + arrived - int(learns and bool(rounds.success[t]))
        learning += problem.overflow_cost * max(wanted - problem.capacity, 0)
        y = min(wanted, problem.capacity)
    return privacy / len(draws), learning / len(draws), y


@pytest.mark.parametrize("charged", ["always", "when-obfuscating"])
@pytest.mark.parametrize("start", [0, 5, 9])
def test_rollout_equals_a_literal_one(charged: str, start: int) -> None:
    problem = overflowing_queue(charged)
    source = SimulatedSource(TEXT_ORACLE, 0.2, 3, generator=np.random.default_rng(start))
    rounds, draws = source.next_rounds(400), np.random.default_rng(7).random(400)
    found = roll(extract_rules(problem), rounds, draws, start)
    assert found == pytest.approx(roll_literally(problem, rounds, draws, start), rel=1e-12)
    assert roll_literally(problem, rounds, draws, start)[0] > 0.0


@pytest.mark.parametrize("charged", ["always", "when-obfuscating"])
def test_rollout_of_several_sizes_and_costs_by_state_equals_a_literal_one(charged: str) -> None:
    """Also with arrivals of sizes that the problem does not name."""
    base = overflowing_queue(charged)
    problem = replace(
        base,
        arrival_prob=None,
        arrival_size=None,
        arrival_sizes={1: 0.2, 4: 0.1},
        learning_cost=replace(base.learning_cost, by_state=(0.5, 2.0, 3.0)),
    )
    generator = np.random.default_rng(3)
    source = SimulatedSource(
        TEXT_ORACLE, np.array([0.2, 0.1, 0.1]), np.array([1, 3, 6]), generator=generator
    )
    rounds, draws = source.next_rounds(400), generator.random(400)
    parameters = np.concatenate([SIGMOID_PARAMETERS, SIGMOID_PARAMETERS[:, :, 1:] * 0.8], axis=2)
    found = roll(extract_rules(problem), rounds, draws, 2, parameters=parameters)
    expected = roll_literally(problem, rounds, draws, 2, parameters)
    assert set(rounds.arrival) == {0, 1, 3, 6}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "problem",
    [
        overflowing_queue("always"),
        overflowing_queue("when-obfuscating"),
        reference_queue(),
        constant_cost_queue(),
    ],
    ids=["always", "when-obfuscating", "reference", "full-cost"],
)
def test_long_rollouts_agree_with_the_exact_evaluation(problem: QueueProblem) -> None:
    exact = evaluate_queue_policy(problem, build_sigmoid_table(problem, SIGMOID_PARAMETERS, 0.7))
    generator = np.random.default_rng(12)
    source = SimulatedSource(
        problem.oracle, problem.arrival_probs[1:], problem.arrival_support[1:], generator=generator
    )
    rules, stretch, y = extract_rules(problem), 40_000, 0
    averages = []
    for _ in range(100):
        *costs, y = roll(rules, source.next_rounds(stretch), generator.random(stretch), y)
        averages.append(costs)
    mean, error = np.mean(averages, axis=0), np.std(averages, axis=0) / 10.0
    expected = np.array([exact.privacy_cost, exact.learning_cost])
    assert np.all(np.abs(mean - expected) < 4.0 * error)
    assert np.all(error < 0.01 * expected)


def test_horizon_rollouts_agree_with_the_exact_evaluation() -> None:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 12, 5)
    y = np.arange(problem.updates + 1)
    theta1, theta2, h = SIGMOID_PARAMETERS[:, :, 0][..., None]
    prob = h / (1 + np.exp((theta1 - y) / 0.7)) + (1 - h) / (1 + np.exp((theta2 - y) / 0.7))
    prob[:, 0] = 0.0
    exact = evaluate_horizon_policy(problem, HorizonTable(np.stack([prob] * problem.rounds)))
    generator = np.random.default_rng(13)
    source = SimulatedSource(problem.oracle, generator=generator)
    rules, count = extract_rules(problem), 12 * 2_000
    totals = []
    for _ in range(50):
        privacy, learning, _ = roll(rules, source.next_rounds(count), generator.random(count), 0)
        assert learning == 0.0
        totals.append(privacy * problem.rounds)
    error = np.std(totals) / math.sqrt(50)
    assert abs(np.mean(totals) - exact.total_cost) < 4.0 * error
    assert error < 0.005 * exact.total_cost


def test_never_learns_at_backlog_0() -> None:
    """With thresholds below 0 it would, but nothing is owed."""
    rules = extract_rules(reference_queue())
    rounds = Experience(np.full(50, 2), np.zeros(50, dtype=np.int64), np.ones(50, dtype=np.bool_))
    parameters = np.full(18, -3.0)
    parameters[12:] = 0.5
    found = roll(rules, rounds, np.zeros(50), 0, parameters=parameters, temperature=0.3)
    assert found == (0.0, 0.0, 0)
    table = build_sigmoid_table(reference_queue(), parameters.reshape(3, 3, 2), 0.3).table
    assert np.all(table[:, :, 0] == 0.0) and np.all(table[:, :, 1:] > 0.99)
