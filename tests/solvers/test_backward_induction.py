"""Equation (7) against recursions in exact fractions and in numpy, Theorem 2 and deviation D5."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from covertfl.arrays import BoolArray, FloatArray
from covertfl.decision.oracle import Oracle
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.solvers import _induction
from covertfl.solvers.backward_induction import (
    compute_thresholds,
    find_backlog_reversal,
    find_oracle_reversal,
    find_rounds_reversal,
    has_convex_terminal_cost,
    solve_horizon,
)
from tests.support.paper_queues import FALLING_COST, TEXT_ORACLE


def make_oracle(transition: list[list[float]], success: list[float]) -> Oracle:
    return Oracle(np.array(transition), np.array(success))


FractionTable = list[list[Fraction]]
BoolTable = list[list[bool]]


@dataclass(frozen=True)
class ExactProblem:
    """A finite horizon in fractions, and the same one in floating point."""

    transition: FractionTable
    success: list[Fraction]
    privacy: list[Fraction]
    terminal: list[Fraction]
    rounds: int

    def to_floats(self) -> FiniteHorizon:
        oracle = Oracle(
            np.array([[float(p) for p in row] for row in self.transition]),
            np.array([float(g) for g in self.success]),
        )
        cost = LearningCost("table", values=tuple(float(value) for value in self.terminal))
        privacy = np.array([float(c) for c in self.privacy])
        return FiniteHorizon(oracle, privacy, cost, self.rounds, len(self.terminal) - 1)


def solve_literally(
    problem: ExactProblem,
) -> tuple[list[FractionTable], list[BoolTable], list[FractionTable]]:
    """Values, actions and relative gains of learning, by (7) word for word; ties obfuscate."""
    num_states, levels = len(problem.success), len(problem.terminal)
    value = [list(problem.terminal) for _ in range(num_states)]
    values, actions, gains = [value], [], []
    for _ in range(problem.rounds):
        new = [[Fraction(0)] * levels for _ in range(num_states)]
        act = [[False] * levels for _ in range(num_states)]
        gain = [[Fraction(0)] * levels for _ in range(num_states)]
        for o in range(num_states):
            for y in range(levels):
                obfuscate = sum(
                    (problem.transition[o][p] * value[p][y] for p in range(num_states)), Fraction(0)
                )
                new[o][y] = obfuscate
                if y == 0:
                    continue
                g = problem.success[o]
                learn = problem.privacy[o] + sum(
                    problem.transition[o][p] * (g * value[p][y - 1] + (1 - g) * value[p][y])
                    for p in range(num_states)
                )
                gain[o][y] = (obfuscate - learn) / obfuscate if obfuscate else Fraction(0)
                if learn < obfuscate:
                    new[o][y], act[o][y] = learn, True
        value = new
        values.append(value)
        actions.append(act)
        gains.append(gain)
    return values, actions, gains


@st.composite
def exact_problems(draw: st.DrawFn) -> ExactProblem:
    num_states, updates = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    weights = st.lists(st.integers(0, 3), min_size=num_states, max_size=num_states).filter(any)
    rows = [draw(weights) for _ in range(num_states)]
    tenths = st.integers(0, 10).map(lambda k: Fraction(k, 10))
    scale = Fraction(draw(st.integers(1, 20)), 10)
    shapes = {
        "constant": [scale * (y > 0) for y in range(updates + 1)],
        "linear": [scale * y for y in range(updates + 1)],
        "quadratic": [scale * y * y for y in range(updates + 1)],
        "table": [Fraction(draw(st.integers(0, 30)), 10) for _ in range(updates + 1)],
    }
    return ExactProblem(
        transition=[[Fraction(w, sum(row)) for w in row] for row in rows],
        success=[draw(tenths) for _ in range(num_states)],
        privacy=[draw(tenths) for _ in range(num_states)],
        terminal=shapes[draw(st.sampled_from(sorted(shapes)))],
        rounds=draw(st.integers(1, 5)),
    )


@pytest.mark.slow
@given(exact_problems())
@settings(max_examples=300, deadline=None)
def test_agrees_with_the_literal_recursion(exact: ExactProblem) -> None:
    values, actions, gains = solve_literally(exact)
    nearly_tied = any(
        0 < abs(gain) < Fraction(1, 10**11) for table in gains for row in table for gain in row
    )
    assume(not nearly_tied)
    solution = solve_horizon(exact.to_floats(), keep_values=True)
    assert solution.values is not None
    np.testing.assert_allclose(solution.values, np.array(values, dtype=float), rtol=1e-12)
    np.testing.assert_array_equal(solution.learn, np.array(actions))
    np.testing.assert_array_equal(solution.final_value, solution.values[-1])
    assert solution.expected_cost == pytest.approx([float(row[-1]) for row in values[-1]])


@st.composite
def convex_problems(draw: st.DrawFn) -> FiniteHorizon:
    num_states, updates = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    transition = generator.dirichlet(np.full(num_states, 0.5), size=num_states)
    slopes = np.sort(generator.uniform(-0.5, 3.0, updates))
    if draw(st.booleans()):
        slopes[:] = abs(slopes[0])  # linear: every second difference is zero but for rounding
    cost = np.concatenate([[0.0], np.cumsum(slopes)])
    cost -= min(cost.min(), 0.0)
    return FiniteHorizon(
        Oracle(transition / transition.sum(axis=1, keepdims=True), generator.random(num_states)),
        generator.uniform(0.0, 2.0, num_states),
        LearningCost("table", values=tuple(cost)),
        draw(st.integers(1, 30)),
        updates,
    )


# --- a second implementation ---------------------------------------------------------------------


def state_action_costs(problem: FiniteHorizon, value: FloatArray) -> FloatArray:
    """Costs Q(o, y, u), [action][oracle][backlog], given the cost to go; (7) by whole arrays."""
    g = problem.oracle.success[:, None]
    later = np.zeros_like(value)
    for following, probs in enumerate(problem.oracle.transition.T):
        later += probs[:, None] * value[following]
    learning = np.full_like(later, np.inf)
    learning[:, 1:] = problem.privacy_cost[:, None] + (g * later[:, :-1] + (1.0 - g) * later[:, 1:])
    return np.stack([later, learning])


def solve_with_arrays(problem: FiniteHorizon) -> tuple[FloatArray, BoolArray]:
    """Values V_0 .. V_N and actions, the rule for ties included."""
    num_states = problem.oracle.num_states
    values = [np.tile(problem.terminal_cost(), (num_states, 1))]
    actions = []
    for n in range(1, problem.rounds + 1):
        obfuscating, learning = state_action_costs(problem, values[-1])
        tie = max(1e-12, n * (num_states + 4) * 2.0**-52)
        learn = learning < (1.0 - tie) * obfuscating
        if has_convex_terminal_cost(problem):
            learn = np.logical_or.accumulate(learn, axis=1)
        actions.append(learn)
        values.append(np.minimum(obfuscating, learning))
    return np.array(values), np.array(actions)


@pytest.mark.parametrize("keep_values", [False, True])
@given(st.one_of(convex_problems(), exact_problems().map(ExactProblem.to_floats)))
@settings(max_examples=200, deadline=None)
def test_the_compiled_recursion_is_that_of_arrays_to_the_last_bit(
    keep_values: bool, problem: FiniteHorizon
) -> None:
    values, actions = solve_with_arrays(problem)
    solution = solve_horizon(problem, keep_values=keep_values)
    np.testing.assert_array_equal(solution.learn, actions)
    np.testing.assert_array_equal(solution.final_value, values[-1])
    assert (solution.values is not None) == keep_values
    if solution.values is not None:
        np.testing.assert_array_equal(solution.values, values)


@pytest.mark.parametrize("rounds", [1, 2, 3, 700])
def test_the_compiled_recursion_at_other_sizes(rounds: int) -> None:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), rounds, 130)
    values, actions = solve_with_arrays(problem)
    for solution in (solve_horizon(problem), solve_horizon(problem, keep_values=True)):
        np.testing.assert_array_equal(solution.learn, actions)
        np.testing.assert_array_equal(solution.final_value, values[-1])


@pytest.mark.parametrize(
    ("short", "message"),
    [
        (0, "transition must hold 9 numbers"),
        (1, "success must hold 3 numbers"),
        (2, "privacy must hold 3 numbers"),
        (3, "values must hold 24 numbers"),
        (4, "learn must hold 60 numbers"),
    ],
)
def test_the_compiled_recursion_refuses_arrays_of_other_sizes(short: int, message: str) -> None:
    sizes, learn = [9, 3, 3, 24], np.zeros(60 - (short == 4), dtype=np.bool_)
    floats = [np.zeros(size - (place == short)) for place, size in enumerate(sizes)]
    transition, success, privacy, values = floats
    with pytest.raises(ValueError, match=message):
        _induction.induct(
            transition, success, privacy, values, learn, 5, 3, 4, 2, 1e-12, 1e-15, True
        )


def test_the_compiled_recursion_needs_room_for_two_values() -> None:
    ones, learn = np.ones(1), np.zeros(2, dtype=np.bool_)
    with pytest.raises(ValueError, match="room for two values"):
        _induction.induct(ones, ones, ones, np.ones(2), learn, 1, 1, 2, 1, 1e-12, 1e-15, True)


# --- structure -----------------------------------------------------------------------------------


@given(convex_problems())
@settings(max_examples=200, deadline=None)
def test_convex_costs_give_thresholds_that_grow_with_the_rounds_left(
    problem: FiniteHorizon,
) -> None:
    solution = solve_horizon(problem, keep_values=True)
    assert has_convex_terminal_cost(problem)
    assert solution.thresholds is not None
    assert find_rounds_reversal(solution.thresholds) is None
    assert solution.values is not None
    for value in solution.values[:-1]:
        obfuscating, learning = state_action_costs(problem, value)[:, :, 1:]
        assert np.all(np.diff(learning - obfuscating, axis=1) <= 1e-11 * (1.0 + obfuscating.max()))


@given(convex_problems())
@settings(max_examples=100, deadline=None)
def test_thresholds_are_the_table(problem: FiniteHorizon) -> None:
    solution = solve_horizon(problem)
    assert solution.thresholds is not None
    levels = np.arange(problem.updates + 1)
    np.testing.assert_array_equal(solution.learn, levels >= solution.thresholds[:, :, None])
    np.testing.assert_array_equal(solution.policy.table, solution.learn)
    assert solution.values is None


def test_one_round_by_hand() -> None:
    # Learning in the only state pays where g (l(y) - l(y - 1)) = 0.5 (2 y - 1) exceeds 2: y >= 3.
    problem = FiniteHorizon(
        make_oracle([[1.0]], [0.5]), np.array([2.0]), LearningCost("quadratic", 1.0), 1, 4
    )
    solution = solve_horizon(problem)
    assert solution.thresholds is not None
    assert solution.thresholds.tolist() == [[3]]
    assert solution.expected_cost == [2.0 + 0.5 * 9.0 + 0.5 * 16.0]


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.6, 0.7])
@pytest.mark.parametrize("tenths", range(1, 10))
def test_exact_ties_obfuscate_whatever_the_rounding(scale: float, tenths: int) -> None:
    # With l = a y and c = a g learning never gains anything, in any round.
    cost = float(Fraction(str(scale)) * Fraction(tenths, 10))
    oracle = make_oracle([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]], [tenths / 10] * 3)
    problem = FiniteHorizon(oracle, np.full(3, cost), LearningCost("linear", scale), 2000, 5)
    solution = solve_horizon(problem)
    assert not solution.learn.any()
    assert np.all(solution.thresholds == 6)


@pytest.mark.parametrize("gain", [1e-10, 1e-11, 3e-12, -1e-11])
def test_a_nearly_tied_linear_cost_is_still_a_threshold_policy(gain: float) -> None:
    # The gain of learning is alike at every backlog, but a smaller part of a larger value.
    cost = LearningCost("linear", 0.6)
    problem = FiniteHorizon(
        make_oracle([[1.0]], [0.5]), np.array([0.3 * (1.0 - gain)]), cost, 1, 100
    )
    thresholds = solve_horizon(problem).thresholds
    assert thresholds is not None
    assert thresholds.tolist() == [[1 if gain > 0.0 else 101]]


def test_a_linear_cost_stays_a_threshold_policy_as_its_gain_fades() -> None:
    # The gain of the best state tends to 0 with the rounds left, alike at every backlog.
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("linear", 0.6), 1500, 60)
    solution = solve_horizon(problem)
    assert solution.thresholds is not None
    assert find_rounds_reversal(solution.thresholds) is None
    assert np.all(solution.thresholds[:, :2] == 61)
    assert np.all(solution.thresholds[:50, 2] == 1)


def test_the_policy_of_a_long_horizon_costs_what_is_said() -> None:
    problem = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 2000, 50)
    solution = solve_horizon(problem)
    value = np.tile(problem.terminal_cost(), (3, 1))
    for learn in solution.learn:
        obfuscating, learning = state_action_costs(problem, value)
        value = np.where(learn, learning, obfuscating)
    np.testing.assert_allclose(value, solution.final_value, rtol=1e-9)


def test_reversals_are_found_first_by_rounds_left() -> None:
    learn = np.zeros((3, 2, 4), dtype=bool)
    learn[1, 1] = [False, True, False, True]
    learn[2, 0] = [False, True, False, False]
    assert find_backlog_reversal(learn) == {
        "text": "with 2 rounds left in oracle state 1 the policy learns at backlog 1 but not at 2",
        "rounds_left": 2,
        "oracle_state": 1,
        "backlog": 1,
    }
    assert compute_thresholds(learn) is None
    thresholds = np.array([[2, 1], [2, 2], [3, 1]])
    assert find_rounds_reversal(thresholds) == {
        "text": "in oracle state 1 the threshold is 2 with 2 rounds left and 1 with one more",
        "rounds_left": 2,
        "oracle_state": 1,
        "threshold": 2,
        "threshold_with_one_more": 1,
    }
    assert find_oracle_reversal(thresholds) is None
    assert find_oracle_reversal(np.array([[2, 1], [1, 2]])) == {
        "text": "with 2 rounds left the threshold is 1 in oracle state 0 and 2 in the better "
        "state 1",
        "rounds_left": 2,
        "oracle_state": 0,
        "threshold": 1,
        "threshold_of_better": 2,
    }
