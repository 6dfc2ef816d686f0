"""The structured policy gradient: its formulas, its rollouts and what it never looks at."""

from __future__ import annotations

import itertools
import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from covertfl.arrays import FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.policy import HorizonTable, build_mixture_table, build_sigmoid_table
from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.errors import InvalidInput
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.evaluation.queue import evaluate_queue_policy
from covertfl.solvers.spga import search as spga
from covertfl.solvers.spga.experience import Experience, LiveFeed, SimulatedSource
from covertfl.solvers.spga.kernel import _move, _perturb, make_trial, roll_out, tabulate_odds
from covertfl.solvers.spga.score import measure_gap
from covertfl.solvers.spga.state import Memory, Rules
from tests.support.paper_queues import (
    FALLING_COST,
    TEXT_ORACLE,
    constant_cost_queue,
    reference_queue,
)

# theta_1, theta_2, h by oracle state and arrival: a policy that learns late in bad states.
PARAMETERS = np.array(
    [
        [[9.0, 7.5], [4.0, 3.2], [1.2, 0.4]],
        [[12.0, 11.0], [6.0, 5.0], [2.5, 1.0]],
        [[0.7, 0.4], [0.5, 0.3], [0.2, 0.9]],
    ]
)
SHORT: dict[str, Any] = {"iterations": 60, "rollout": 200}


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


def estimate(settings: spga.Settings, generator: Any, omega: float) -> FloatArray:
    """How far one step of size 1 moves against a linear cost with the gradient above."""
    schedule = spga._schedule(settings)
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


def expected_estimate(settings: spga.Settings, omega: float) -> FloatArray:
    """The mean over all sixteen equally likely directions."""
    patterns = itertools.product((False, True), repeat=4)
    moves = [estimate(settings, FixedBits(ups), omega) for ups in patterns]
    return np.asarray(np.mean(moves, axis=0))


def plain_steps(settings: spga.Settings) -> spga.Settings:
    """Without the running mean and mean square, which are no part of the estimate."""
    return replace(settings, normalises=False, momentum=0.0)


@pytest.mark.parametrize("omega", [0.01, 0.3, 0.5])
def test_signs_and_division_give_an_unbiased_gradient(omega: float) -> None:
    settings = plain_steps(spga.default_settings(reference_queue()))
    assert expected_estimate(settings, omega) == pytest.approx(GRADIENT, abs=1e-9)


def test_printed_estimate_is_biased() -> None:
    """With 0 and 1 each entry is mixed with the sum of all (deviation D13)."""
    settings = spga.printed_settings(reference_queue())
    assert expected_estimate(settings, 1.0) == pytest.approx([1.5, 0.0, 2.5, 1.0], abs=1e-9)


@pytest.mark.parametrize(("rademacher", "expected"), [(True, GRADIENT), (False, [1.5, 0, 2.5, 1])])
def test_drawn_directions_average_to_the_enumerated_mean(
    rademacher: bool, expected: FloatArray
) -> None:
    settings = plain_steps(spga.default_settings(reference_queue()))
    settings = replace(settings, rademacher=rademacher, divides=rademacher)
    generator = np.random.default_rng(11)
    drawn = np.array([estimate(settings, generator, 0.5) for _ in range(4_000)])
    error = drawn.std(axis=0) / math.sqrt(len(drawn))
    scale = 1.0 if rademacher else 2.0  # without division it grows with 2 omega, printed 2
    assert np.all(np.abs(scale * drawn.mean(axis=0) - expected) < 5.0 * scale * error + 1e-9)
    assert error.max() < 0.1


# --- rollouts -----------------------------------------------------------------------------------


def roll(
    rules: Rules,
    rounds: Experience,
    draws: FloatArray,
    y: int,
    *,
    parameters: FloatArray = PARAMETERS,
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
    problem: QueueProblem, rounds: Experience, draws: FloatArray, y: int
) -> tuple[float, float, int]:
    """The queue and the policy (14) once more, in plain Python, from the definition."""
    assert problem.capacity is not None and problem.overflow_cost is not None
    privacy = learning = 0.0
    for t in range(len(draws)):
        o, arrived = int(rounds.oracle_state[t]), int(rounds.arrival[t])
        theta1, theta2, h = PARAMETERS[:, o, int(arrived > 0)]
        prob = h / (1 + math.exp((theta1 - y) / 0.7)) + (1 - h) / (1 + math.exp((theta2 - y) / 0.7))
        learns = y > 0 and draws[t] < prob
        held = float(problem.learning_cost.at(np.array(y)))
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
    found = roll(spga.extract_rules(problem), rounds, draws, start)
    assert found == pytest.approx(roll_literally(problem, rounds, draws, start), rel=1e-12)
    assert roll_literally(problem, rounds, draws, start)[0] > 0.0


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
    exact = evaluate_queue_policy(problem, build_sigmoid_table(problem, PARAMETERS, 0.7))
    generator = np.random.default_rng(12)
    source = SimulatedSource(
        problem.oracle, problem.arrival_prob, problem.arrival_size, generator=generator
    )
    rules, stretch, y = spga.extract_rules(problem), 40_000, 0
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
    theta1, theta2, h = PARAMETERS[:, :, 0][..., None]
    prob = h / (1 + np.exp((theta1 - y) / 0.7)) + (1 - h) / (1 + np.exp((theta2 - y) / 0.7))
    prob[:, 0] = 0.0
    exact = evaluate_horizon_policy(problem, HorizonTable(np.stack([prob] * problem.rounds)))
    generator = np.random.default_rng(13)
    source = SimulatedSource(problem.oracle, generator=generator)
    rules, count = spga.extract_horizon_rules(problem), 12 * 2_000
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
    rules = spga.extract_rules(reference_queue())
    rounds = Experience(np.full(50, 2), np.zeros(50, dtype=np.int64), np.ones(50, dtype=np.bool_))
    parameters = np.full(18, -3.0)
    parameters[12:] = 0.5
    found = roll(rules, rounds, np.zeros(50), 0, parameters=parameters, temperature=0.3)
    assert found == (0.0, 0.0, 0)
    table = build_sigmoid_table(reference_queue(), parameters.reshape(3, 3, 2), 0.3).table
    assert np.all(table[:, :, 0] == 0.0) and np.all(table[:, :, 1:] > 0.99)


# --- the search ---------------------------------------------------------------------------------


def contents(run: spga.SpgaRun) -> list[bytes]:
    history = [getattr(run.history, part.name) for part in fields(run.history)]
    return [part.tobytes() for part in (run.parameters, np.array(run.multiplier), *history)]


def test_results_depend_on_the_seed_alone() -> None:
    problem = reference_queue()
    settings = spga.default_settings(problem, **SHORT)
    one = spga.solve_spga(problem, settings, seed=3, runs=4, threads=1)
    two = spga.solve_spga(problem, settings, seed=3, runs=4, threads=2)
    fewer = spga.solve_spga(problem, settings, seed=3, runs=2, threads=2)
    assert [contents(run) for run in one] == [contents(run) for run in two]
    assert [contents(run) for run in one[:2]] == [contents(run) for run in fewer]
    other = spga.solve_spga(problem, settings, seed=4)
    assert len({contents(run)[0] for run in one + other}) == 5


def test_horizon_results_depend_on_the_seed_alone() -> None:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 12, 5)
    settings = spga.horizon_settings(problem, iterations=30)
    one, two = (
        spga.solve_spga_horizon(problem, settings, seed=3, runs=3, threads=threads)
        for threads in (1, 2)
    )
    assert [contents(run) for run in one] == [contents(run) for run in two]


@pytest.mark.parametrize("variant", ["default", "printed", "tracking"])
def test_parameters_stay_in_their_box(variant: str) -> None:
    problem = reference_queue()
    settings = {
        "default": spga.default_settings(problem, **SHORT),
        "printed": spga.printed_settings(problem, iterations=60),
        "tracking": spga.default_settings(problem, **SHORT, tracking=True),
    }[variant]
    settings = replace(settings, step=50.0)  # far too long, so that the edges are met
    run = spga.solve_spga(problem, settings, seed=1)[0]
    theta, h = run.history.parameters[:, :2], run.history.parameters[:, 2]
    largest = settings.largest_threshold
    assert -0.1 * largest <= theta.min() and theta.max() <= largest
    assert h.min() >= 0.0 and h.max() <= 1.0
    assert theta.max() == largest or theta.min() == -0.1 * largest
    assert np.all(run.history.multiplier >= 0.0)


def test_history_has_a_row_for_each_iteration() -> None:
    problem = reference_queue()
    told: list[int] = []
    settings = spga.default_settings(problem, **SHORT)
    run = spga.solve_spga(
        problem, settings, seed=1, on_progress=lambda done, _privacy, _learning: told.append(done)
    )[0]
    assert told[-1] == 60
    assert run.history.parameters.shape == (60, 3, 3, 2)
    for costs in (run.history.privacy_cost, run.history.learning_cost, run.history.multiplier):
        assert costs.shape == (60,) and np.all(np.isfinite(costs))
    assert run.parameters.shape == (3, 3, 2)
    # The second half of the iterates is averaged.
    assert run.parameters == pytest.approx(run.history.parameters[30:].mean(axis=0))
    last = spga.solve_spga(problem, spga.without(settings, "averaged iterates"), seed=1)[0]
    assert np.array_equal(last.parameters, last.history.parameters[-1])


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_is_of_all_runs_together(threads: int) -> None:
    problem = reference_queue()
    told: list[int] = []
    spga.solve_spga(
        problem,
        spga.default_settings(problem, **SHORT),
        seed=1,
        runs=3,
        threads=threads,
        on_progress=lambda done, _privacy, _learning: told.append(done),
    )
    assert told == sorted(told)
    assert 0 < told[0] <= 60 and told[-1] == 180


def test_interrupt_does_not_wait_for_other_runs() -> None:
    """One run stops; the other, which would take minutes, is given up."""
    problem = reference_queue()
    settings = spga.default_settings(problem, iterations=1_000_000, rollout=5_000)

    def interrupt(done: int, _privacy: float, _learning: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        spga.solve_spga(problem, settings, seed=1, runs=2, threads=2, on_progress=interrupt)


def test_types_of_a_source_do_not_matter() -> None:
    """Small integers and numbers for successes, as a file may hold them."""
    settings = spga.default_settings(reference_queue(), **SHORT)
    rounds = simulated_rounds(12_000)
    small = Experience(
        rounds.oracle_state.astype(np.int8),
        rounds.arrival.astype(np.float64),
        rounds.success.astype(np.float64),
    )
    found = [
        spga.search_policy(BY_HAND, Opaque(kept), settings, generator=np.random.default_rng(5))
        for kept in (rounds, small)
    ]
    assert contents(found[0]) == contents(found[1])


def test_search_goes_on_in_pieces() -> None:
    """Iterations in one piece or in several are the same search."""
    problem = reference_queue()
    settings = spga.default_settings(problem, **SHORT)
    found = []
    for pieces in ((60,), (1, 25, 34)):
        source = Opaque(simulated_rounds(12_000))
        search = spga.SpgaSearch(
            spga.extract_rules(problem), settings, generator=np.random.default_rng(2)
        )
        for piece in pieces:
            search.iterate(source, piece)
        assert search.iterations == 60
        found.append(search.result())
    assert contents(found[0]) == contents(found[1])


def test_horizon_of_rules_and_unlimited_queue() -> None:
    endless = QueueProblem(TEXT_ORACLE, FALLING_COST, LearningCost("linear", 0.6), 0.1, 4, 25.0)
    rules = spga.extract_rules(endless)
    assert rules.rounds == 0 and rules.learning_cost.shape == (2, rules.capacity + 1)
    assert rules.learning_cost[0, -1] > 50 * endless.limit
    horizon = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 12, 5)
    rules = spga.extract_horizon_rules(horizon)
    assert (rules.rounds, rules.capacity) == (12, 5)
    assert rules.end_cost == pytest.approx(0.6 * np.arange(6) ** 2)


@pytest.mark.parametrize("change", sorted(spga.ABLATIONS))
def test_each_change_can_be_taken_back(change: str) -> None:
    problem = reference_queue()
    settings = spga.without(spga.default_settings(problem, **SHORT), change)
    assert settings != spga.default_settings(problem, **SHORT)
    run = spga.solve_spga(problem, settings, seed=1)[0]
    largest = float(problem.learning_cost.at(np.array(problem.capacity)))
    assert 0.0 <= run.history.learning_cost.min() <= run.history.learning_cost.max() <= largest


def test_refusals_name_what_came() -> None:
    problem = reference_queue()
    settings = spga.default_settings(problem, **SHORT)
    for runs in (0, 10**12):
        with pytest.raises(InvalidInput, match=rf"runs must lie in 1..\d+, got {runs}"):
            spga.solve_spga(problem, settings, seed=1, runs=runs)
    with pytest.raises(InvalidInput, match="threads must be at least 1, got 0"):
        spga.solve_spga(problem, settings, seed=1, threads=0)
    with pytest.raises(InvalidInput, match="rollout must be at least 1, got 0"):
        spga.default_settings(problem, **SHORT | {"rollout": 0})
    for iterations in (0, 10**12):
        with pytest.raises(InvalidInput, match=rf"iterations must lie in 1..\d+, got {iterations}"):
            spga.default_settings(problem, **SHORT | {"iterations": iterations})
    with pytest.raises(InvalidInput, match="change must be one of"):
        spga.without(settings, "nothing")


def test_what_a_source_hands_out_is_checked() -> None:
    """The compiled loops would read beyond their arrays."""
    settings = spga.default_settings(reference_queue(), **SHORT)
    search = spga.SpgaSearch(
        spga.extract_rules(reference_queue()), settings, generator=np.random.default_rng(0)
    )
    states, none, never = (
        np.zeros(200, dtype=np.int64),
        np.zeros(200, dtype=np.int64),
        np.zeros(200, dtype=np.bool_),
    )
    for rounds, sentence in (
        (Experience(states[:9], none[:9], never[:9]), "hand out the 200 rounds asked for"),
        (Experience(states, none[:9], never), "hand out the 200 rounds asked for"),
        (Experience(states + 3, none, never), r"lie in 0\.\.2, got 3\.\.3"),
        (Experience(states - 1, none, never), r"lie in 0\.\.2, got -1\.\.-1"),
        (Experience(states, none - 4, never), "at least 0, got -4"),
    ):
        with pytest.raises(InvalidInput, match=sentence):
            search.iterate(_Fixed(rounds), 1)
    assert search.iterations == 0


# --- rounding -----------------------------------------------------------------------------------


def test_rounding_by_hand() -> None:
    """Columns: in order, in the other order, below 0, hardly any weight on one side."""
    parameters = np.array(
        [
            [[2.3, 7.0], [-1.0, 3.4], [5.1, 5.1]],
            [[6.0, 2.3], [0.2, 8.0], [9.9, 9.9]],
            [[0.25, 0.25], [0.5, 0.0], [1.0, 0.9995]],
        ]
    )
    first, certain, between = spga.round_parameters(parameters)
    assert first.tolist() == [[3, 3], [1, 8], [6, 6]]
    assert certain.tolist() == [[6, 7], [1, 8], [6, 6]]
    assert between[0].tolist() == [0.25, 0.75]
    assert np.all(first <= certain)


def test_rounding_is_the_limit_of_low_temperature() -> None:
    problem = reference_queue()
    parameters = PARAMETERS + 0.05  # at a whole number the limit would be one half
    rounded = build_mixture_table(problem, *spga.round_parameters(parameters))
    cold = build_sigmoid_table(problem, parameters, 1e-4)
    assert cold.table == pytest.approx(rounded.table, abs=1e-9)


def test_run_makes_both_forms_of_its_policy() -> None:
    problem = reference_queue()
    run = spga.solve_spga(problem, spga.default_settings(problem, **SHORT), seed=1)[0]
    soft, hard = run.policy(problem).table, run.rounded_policy(problem).table
    assert soft.shape == hard.shape == problem.table_shape
    assert np.array_equal(soft, build_sigmoid_table(problem, run.parameters, 0.3).table)
    assert all(len(set(hard[o, e])) <= 3 for o in range(3) for e in (0, 1))


# --- what the search never sees -----------------------------------------------------------------


def simulated_rounds(count: int) -> Experience:
    return SimulatedSource(TEXT_ORACLE, 0.1, 4, generator=np.random.default_rng(21)).next_rounds(
        count
    )


class _Fixed:
    """Hands out the same rounds whatever is asked for."""

    def __init__(self, rounds: Experience) -> None:
        self._rounds = rounds

    def next_rounds(self, count: int) -> Experience:
        return self._rounds


class Opaque:
    """Recorded rounds behind `next_rounds`; to touch anything else is an error."""

    def __init__(self, recorded: Experience) -> None:
        object.__setattr__(self, "state", [recorded, 0])

    def __getattribute__(self, name: str) -> Any:
        if name != "next_rounds":
            raise AssertionError(f"the search looked at {name}")
        return object.__getattribute__(self, name)

    def next_rounds(self, count: int) -> Experience:
        state = object.__getattribute__(self, "state")
        recorded, start = state
        state[1] = start + count
        at = np.arange(start, start + count) % len(recorded)
        return Experience(recorded.oracle_state[at], recorded.arrival[at], recorded.success[at])


# Costs and limit of the reference queue, as one would write them down: no chance is among them.
BY_HAND = Rules(
    privacy_cost=np.array([1.8, 0.8, 0.3]),
    learning_cost=np.stack([0.6 * np.arange(41.0), np.zeros(41)]),
    overflow_cost=0.0,
    capacity=40,
    limit=1.0,
    minimises_privacy=True,
    rounds=0,
    end_cost=np.zeros(41),
)


def unlike_queue() -> QueueProblem:
    """The reference queue with every chance changed."""
    oracle = Oracle(np.full((3, 3), 1.0 / 3.0), np.array([0.5, 0.6, 0.7]))
    return replace(reference_queue(), oracle=oracle, arrival_prob=0.25)


def test_rules_and_settings_are_blind_to_the_chances() -> None:
    known, unlike = (spga.extract_rules(p) for p in (reference_queue(), unlike_queue()))
    for name in Rules._fields:
        ours = getattr(known, name)
        assert np.array_equal(ours, getattr(unlike, name)), name
        assert ours == pytest.approx(getattr(BY_HAND, name)), name
    assert spga.default_settings(reference_queue()) == spga.default_settings(unlike_queue())
    assert spga.printed_settings(reference_queue()) == spga.printed_settings(unlike_queue())
    assert all(np.shape(part) != (3, 3) for part in known)


def test_policy_is_found_from_an_opaque_source() -> None:
    """Neither the source nor the rules hold the oracle; what is found is judged with it."""
    settings = spga.default_settings(unlike_queue(), iterations=1000, rollout=2000)
    source = Opaque(simulated_rounds(200_000))
    run = spga.search_policy(BY_HAND, source, settings, generator=np.random.default_rng(5))
    problem = reference_queue()
    found = run.policy(problem)
    assert measure_gap(problem, found) < 0.03
    assert evaluate_queue_policy(problem, found).learning_cost == pytest.approx(1.0, rel=0.05)
    with pytest.raises(AssertionError, match="looked at transition"):
        _ = source.transition


def test_policy_is_found_beside_a_running_federation() -> None:
    """An iteration after every fifty rounds, on the latest 2,000 that were told."""
    problem = reference_queue()
    settings = spga.default_settings(problem, iterations=800, rollout=2000, tracking=True)
    search = spga.SpgaSearch(BY_HAND, settings, generator=np.random.default_rng(5))
    feed, rounds = LiveFeed(2000), simulated_rounds(40_000)
    told = zip(rounds.oracle_state, rounds.arrival, rounds.success, strict=True)
    for number, (state, arrival, success) in enumerate(told, start=1):
        feed.observe(int(state), int(arrival), bool(success))
        if number % 50 == 0:
            search.iterate(feed, 1)
    assert search.iterations == 800
    found = search.result().policy(problem)
    assert measure_gap(problem, found) < 0.1
    assert evaluate_queue_policy(problem, found).learning_cost == pytest.approx(1.0, rel=0.3)
