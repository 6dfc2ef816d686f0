"""Policies: look-ups, the forms (13) and (14), random placement, and tables that are refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from covertfl.decision.policy import (
    GreedyPolicy,
    HorizonTable,
    Observation,
    QueueTable,
    RandomPlacement,
    build_horizon_threshold_table,
    build_mixture_table,
    build_sigmoid_table,
    build_threshold_table,
    tabulate_for_queue,
)
from covertfl.decision.problem import FiniteHorizon, LearningCost
from covertfl.errors import InvalidInput
from tests.support.paper_queues import FALLING_COST, TEXT_ORACLE, reference_queue

QUEUE = reference_queue(capacity=6)  # 3 oracle states, 2 arrival states, backlogs 0..6
HORIZON = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 3, 4)


# --- greedy -------------------------------------------------------------------------------------


def test_greedy_learns_while_something_is_owed() -> None:
    policy = GreedyPolicy()
    assert policy.learn_prob(Observation(0, 0)) == 0.0
    assert policy.learn_prob(Observation(2, 5, 1)) == 1.0
    many = policy.learn_prob(Observation(np.array([0, 1, 2]), np.array([3, 0, 1])))
    assert many.tolist() == [1.0, 0.0, 1.0]
    table = tabulate_for_queue(policy, QUEUE).table
    assert np.all(table[:, :, 0] == 0.0) and np.all(table[:, :, 1:] == 1.0)


# --- random placement ---------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "queries"), [(1, 0), (1, 1), (5, 2), (6, 3), (6, 6), (7, 1)])
def test_every_placement_is_equally_likely(rounds: int, queries: int) -> None:
    policy = RandomPlacement(queries)
    probs = {}
    for placement in itertools.product((0, 1), repeat=rounds):
        prob, placed = 1.0, 0
        for step, learns in enumerate(placement):
            p = float(
                policy.learn_prob(
                    Observation(0, 9, rounds_left=rounds - step, learning_queries=placed)
                )
            )
            prob *= p if learns else 1.0 - p
            placed += learns
        probs[placement] = prob
    possible = [placement for placement, prob in probs.items() if prob > 0.0]
    assert {sum(placement) for placement in possible} == {queries}
    np.testing.assert_allclose([probs[p] for p in possible], 1.0 / len(possible), rtol=1e-12)
    assert sum(probs.values()) == pytest.approx(1.0)


def test_random_placement_ignores_the_backlog_and_broadcasts() -> None:
    policy = RandomPlacement(2)
    prob = policy.learn_prob(
        Observation(np.zeros(3, dtype=np.int64), np.array([0, 1, 9]), rounds_left=4)
    )
    assert prob.tolist() == [0.5, 0.5, 0.5]
    assert policy.learn_prob(Observation(0, 1, rounds_left=3, learning_queries=5)) == 0.0
    with pytest.raises(InvalidInput, match="needs a horizon: rounds_left must be at least 1"):
        policy.learn_prob(Observation(0, 1))


# --- tables -------------------------------------------------------------------------------------


def make_queue_table() -> QueueTable:
    table = np.linspace(0.0, 1.0, 3 * 2 * 7).reshape(3, 2, 7)
    table[:, :, 0] = 0.0
    return QueueTable(table)


def test_queue_table_look_ups() -> None:
    policy = make_queue_table()
    for o, e, y in np.ndindex(3, 2, 7):
        assert policy.learn_prob(Observation(o, y, e)) == policy.table[o, e, y]
    oracle, backlog, arrival = np.array([0, 2]), np.array([3, 6]), np.array([1, 0])
    expected = [policy.table[0, 1, 3], policy.table[2, 0, 6]]
    assert policy.learn_prob(Observation(oracle, backlog, arrival)).tolist() == expected
    assert policy.learn_prob(Observation(1, 99, 1)) == policy.table[1, 1, 6]
    np.testing.assert_array_equal(tabulate_for_queue(policy, QUEUE).table, policy.table)


def test_horizon_table_look_ups() -> None:
    table = np.linspace(0.0, 1.0, 3 * 3 * 5).reshape(3, 3, 5)
    table[:, :, 0] = 0.0
    policy = HorizonTable(table)
    for n, o, y in np.ndindex(3, 3, 5):
        assert policy.learn_prob(Observation(o, y, rounds_left=n + 1)) == table[n, o, y]
    assert policy.learn_prob(Observation(2, 3, rounds_left=50)) == table[2, 2, 3]
    with pytest.raises(InvalidInput, match="rounds_left of at least 1"):
        policy.learn_prob(Observation(2, 3))


@pytest.mark.parametrize(
    "fields", [(7, 1), (0, 1, 2), (np.array([0, 7]), 1), (np.array([0, 3]), np.array([1, 1]))]
)
def test_observations_beyond_a_table_are_refused(fields: Any) -> None:
    with pytest.raises(InvalidInput, match="must cover every oracle state and backlog"):
        make_queue_table().learn_prob(Observation(*fields))


@pytest.mark.parametrize("wrong", [-1, "a", None, 1.0, True, np.array([0, -1]), np.zeros(2)])
def test_observations_are_whole_numbers(wrong: Any) -> None:
    for name in ("oracle_state", "backlog", "arrival", "rounds_left", "learning_queries"):
        with pytest.raises(InvalidInput, match=f"{name} must be"):
            Observation(**{"oracle_state": 0, "backlog": 0, name: wrong})
    with pytest.raises(InvalidInput, match="arrays must broadcast"):
        Observation(np.arange(3), np.arange(2))


@pytest.mark.parametrize("wrong", [("a",), -1, 1.5, True, None])
def test_random_placement_needs_a_count(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="learning_queries must be a whole number"):
        RandomPlacement(wrong)


def test_tables_are_copies_that_cannot_be_changed() -> None:
    source = np.zeros((3, 2, 7))
    policy = QueueTable(source)
    source[0, 0, 1] = 1.0
    assert policy.table[0, 0, 1] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        policy.table[0, 0, 1] = 1.0


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (np.zeros((3, 0, 4)), "learn_prob must have"),
        ([[["no", "yes"]] * 2], "learn_prob must be numbers"),
        ([[[0.0, np.inf], [0.0, 1.0]]], r"learn_prob\[0\]\[0\]\[1\] must lie in \[0, 1\], got inf"),
    ],
)
def test_bad_tables_are_refused(table: Any, sentence: str) -> None:
    """What files cannot hold; the table of bad policy files has the rest."""
    for kind in (QueueTable, HorizonTable):
        with pytest.raises(InvalidInput, match=sentence):
            kind(table)


# --- thresholds, (13) and (14) ------------------------------------------------------------------


def test_thresholds_by_hand() -> None:
    table = build_threshold_table(QUEUE, [[3, 7], [1, 2], [0, 6]]).table
    for (o, e), first in np.ndenumerate(np.array([[3, 7], [1, 2], [0, 6]])):
        expected = [1.0 if y >= max(first, 1) else 0.0 for y in range(7)]
        assert table[o, e].tolist() == expected
    np.testing.assert_array_equal(
        build_threshold_table(QUEUE, 2).table,
        build_threshold_table(QUEUE, np.full((3, 2), 2)).table,
    )


def test_mixture_by_hand() -> None:
    first, certain = np.full((3, 2), 2), np.full((3, 2), 4)
    between = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]
    table = build_mixture_table(QUEUE, first, certain, between).table
    for (o, e), p in np.ndenumerate(np.array(between)):
        assert table[o, e].tolist() == [0.0, 0.0, p, p, 1.0, 1.0, 1.0]


@given(
    st.lists(st.integers(0, 7), min_size=12, max_size=12),
    st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
)
def test_the_sigmoid_tends_to_the_mixture(thresholds: list[int], probs: list[float]) -> None:
    low, high = np.sort(np.array(thresholds).reshape(2, 3, 2), axis=0)
    h = np.array(probs).reshape(3, 2)
    mixture = build_mixture_table(QUEUE, low, high, h).table
    # Thresholds half a step below, so that no backlog sits on the edge of a sigmoid.
    parameters = np.stack([low - 0.5, high - 0.5, h])
    distances = [
        np.abs(build_sigmoid_table(QUEUE, parameters, temperature).table - mixture).max()
        for temperature in (0.5, 0.1, 0.02, 1e-6)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[1] <= 0.01
    assert distances[-1] <= 1e-15


def test_sigmoid_by_hand() -> None:
    table = build_sigmoid_table(QUEUE, np.array([2.0, 4.0, 0.25])[:, None, None], 0.5).table
    for y in range(1, 7):
        expected = 0.25 / (1 + np.exp(-(y - 2.0) / 0.5)) + 0.75 / (1 + np.exp(-(y - 4.0) / 0.5))
        np.testing.assert_allclose(table[:, :, y], expected, rtol=1e-14)
    assert np.all(table[:, :, 0] == 0.0)


@given(st.floats(-50.0, 50.0), st.floats(-50.0, 50.0), st.floats(0.0, 1.0), st.floats(1e-9, 1e9))
def test_the_sigmoid_never_learns_with_nothing_owed(
    theta1: float, theta2: float, h: float, temperature: float
) -> None:
    parameters = np.array([theta1, theta2, h])[:, None, None]
    table = build_sigmoid_table(QUEUE, parameters, temperature).table
    assert np.all(table[:, :, 0] == 0.0)
    assert np.all((table >= 0.0) & (table <= 1.0))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), "1", None])
def test_the_temperature_is_positive(temperature: Any) -> None:
    with pytest.raises(InvalidInput, match="temperature must be a"):
        build_sigmoid_table(QUEUE, np.zeros((3, 3, 2)), temperature)


def test_parameters_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidInput, match="first must be 3 x 2 numbers, got 4"):
        build_threshold_table(QUEUE, [1, 2, 3, 4])
    with pytest.raises(InvalidInput, match="parameters must be 3 x 3 x 2 numbers, got 5"):
        build_sigmoid_table(QUEUE, np.zeros(5), 1.0)
    with pytest.raises(InvalidInput, match="first must be numbers, got nan"):
        build_threshold_table(QUEUE, float("nan"))
    with pytest.raises(InvalidInput, match="must not be below the first one"):
        build_mixture_table(QUEUE, 3, 2, 0.5)
    with pytest.raises(InvalidInput, match=r"learn_prob\[0\]\[0\]\[1\] must lie in \[0, 1\]"):
        build_mixture_table(QUEUE, 1, 2, 1.5)


@pytest.mark.parametrize("problem", [None, "sound/queue", np.zeros(3)])
def test_tables_are_built_of_problems_only(problem: Any) -> None:
    for build, arguments in (
        (build_threshold_table, (1,)),
        (build_mixture_table, (1, 2, 0.5)),
        (build_sigmoid_table, (np.zeros((3, 3, 2)), 1.0)),
        (build_horizon_threshold_table, (1,)),
    ):
        with pytest.raises(InvalidInput, match="problem must be of type"):
            build(problem, *arguments)


def test_horizon_thresholds_by_hand() -> None:
    thresholds = [[5, 2, 1], [3, 2, 1], [4, 0, 1]]  # by rounds left - 1 and oracle state
    table = build_horizon_threshold_table(HORIZON, thresholds).table
    for n, o in np.ndindex(3, 3):
        expected = [float(y >= max(thresholds[n][o], 1)) for y in range(5)]
        assert table[n, o].tolist() == expected
    stationary = build_horizon_threshold_table(HORIZON, [3, 2, 1]).table
    assert all(np.array_equal(row, stationary[0]) for row in stationary)
