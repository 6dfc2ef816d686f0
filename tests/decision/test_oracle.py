"""The oracle: what it accepts, its stationary distribution, dominance (M1) and sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from covertfl.decision.oracle import (
    Oracle,
    compute_stationary_distribution,
    find_dominance_violation,
    find_reachable,
    require_irreducible,
    sample_path,
)
from covertfl.errors import InvalidInput
from tests.support.paper_queues import SEVEN_STATES, TEXT_ORACLE
from tests.support.strategies import oracles, ordered_oracles


def test_numbers_are_copied_and_cannot_be_changed() -> None:
    given_rows = np.array([[0.5, 0.5], [0.25, 0.75]])
    oracle = Oracle(given_rows, np.array([0.1, 0.9]))
    given_rows[0, 0] = 7.0
    assert oracle.transition[0, 0] == 0.5
    assert oracle.num_states == 2
    with pytest.raises(ValueError, match="read-only"):
        oracle.transition[0, 0] = 0.0
    with pytest.raises(ValueError, match="read-only"):
        oracle.success[0] = 0.0


def test_rows_written_with_ten_digits_are_rescaled_to_1() -> None:
    oracle = Oracle(np.array([[0.333333333] * 3] * 3), np.array([0.1, 0.5, 0.9]))
    np.testing.assert_allclose(oracle.transition.sum(axis=1), 1.0, rtol=0, atol=3e-16)


GOOD = [[0.5, 0.5], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("transition", "success", "sentence"),
    [
        ([[0.5, 0.5], [0.25, 0.74]], [0.1, 0.9], r"transition row 1 must sum to 1, got 0\.99$"),
        (
            [[0.5, 0.5], [1.25, -0.25]],
            [0.1, 0.9],
            r"transition row 1 must hold probabilities in \[0, 1\], got 1\.25 in column 0",
        ),
        ([[0.5, 0.5], [float("nan"), 1.0]], [0.1, 0.9], "row 1 .* got nan in column 0"),
        ([[0.5, 0.5]], [0.1, 0.9], "transition must be square, .* got 1 x 2"),
        ([0.5, 0.5], [0.1, 0.9], "transition must be square, .* got 2"),
        (1.0, [0.1], "transition must be square, .* got a single number"),
        ([], [], "transition must be square, .* got 0"),
        ([[0.5, 0.5], [1.0]], [0.1, 0.9], "transition must be numbers in rows of one length"),
        ([["a", "b"], ["c", "d"]], [0.1, 0.9], "transition must be numbers"),
        (GOOD, [0.1, 0.5, 0.9], "success must have one probability for each of the 2 .* got 3"),
        (GOOD, [0.1, 1.5], r"success\[1\] must lie in \[0, 1\], got 1\.5"),
        (GOOD, [-0.1, 0.5], r"success\[0\] must lie in \[0, 1\], got -0\.1"),
        (GOOD, [0.1, float("nan")], r"success\[1\] must lie in \[0, 1\], got nan"),
        (GOOD, ["often", "seldom"], "success must be numbers"),
    ],
)
def test_bad_numbers_are_named(transition: Any, success: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Oracle(transition, success)


# --- stationary distribution --------------------------------------------------------------------


def test_stationary_law_of_the_text() -> None:
    # Detailed balance: 0.2 pi_0 = 0.3 pi_1 and 0.2 pi_1 = 0.2 pi_2.
    np.testing.assert_allclose(
        compute_stationary_distribution(TEXT_ORACLE), np.array([3.0, 2.0, 2.0]) / 7.0, rtol=1e-15
    )


@given(oracles(max_states=6))
def test_stationary_law_is_the_left_eigenvector(oracle: Oracle) -> None:
    eigenvalues, vectors = np.linalg.eig(oracle.transition.T)
    vector = vectors[:, np.argmin(np.abs(eigenvalues - 1.0))].real
    distribution = compute_stationary_distribution(oracle)
    np.testing.assert_allclose(distribution, vector / vector.sum(), atol=1e-10)
    assert distribution.sum() == pytest.approx(1.0, abs=1e-15)


def test_stationary_law_keeps_all_digits_of_a_rare_state() -> None:
    rare = 1e-13
    oracle = Oracle(np.array([[1.0 - rare, rare], [0.5, 0.5]]), np.array([0.5, 0.5]))
    expected = rare / (rare + 0.5)
    assert compute_stationary_distribution(oracle)[1] == pytest.approx(expected, rel=1e-14)


def test_a_reducible_oracle_has_no_single_law() -> None:
    absorbing = Oracle(np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]), np.zeros(3))
    sentence = "state 2 cannot be reached from state 0"
    with pytest.raises(InvalidInput, match=sentence):
        require_irreducible(absorbing)
    with pytest.raises(InvalidInput, match=sentence):
        compute_stationary_distribution(absorbing)
    assert find_reachable(absorbing.transition, 0).tolist() == [True, True, False]
    assert find_reachable(absorbing.transition, 2).tolist() == [True, True, True]


# --- dominance ----------------------------------------------------------------------------------


def dominates_literally(transition: np.ndarray[Any, Any]) -> bool:
    """M1 word for word: for i > j every tail sum of row i is at least that of row j."""
    W = len(transition)
    return all(
        sum(transition[i][k:]) >= sum(transition[j][k:]) - 1e-12
        for i in range(W)
        for j in range(i)
        for k in range(W)
    )


@given(oracles(max_states=4))
def test_dominance_between_neighbours_is_dominance_between_all(oracle: Oracle) -> None:
    assert (find_dominance_violation(oracle) is None) == dominates_literally(oracle.transition)


@given(ordered_oracles(max_states=4))
def test_ordered_oracles_have_no_violation(oracle: Oracle) -> None:
    assert find_dominance_violation(oracle) is None


def test_the_texts_matrix_is_ordered() -> None:
    assert find_dominance_violation(TEXT_ORACLE) is None


def test_the_first_violated_pair_of_the_seven_states_is_named() -> None:
    violation = find_dominance_violation(Oracle(SEVEN_STATES, np.linspace(0.1, 0.9, 7)))
    assert violation is not None
    # Rows 0, 1 and 2 are in order; state 6 is reached from state 2 with 0.03, from 3 with 0.025.
    assert (violation.worse, violation.better, violation.tail_from) == (2, 3, 6)
    assert violation.tail_of_worse == pytest.approx(0.03)
    assert violation.tail_of_better == pytest.approx(0.025)
    assert str(violation) == (
        "rows 2 and 3: the probability of state 6 or better is 0.03 after state 2 "
        "but only 0.025 after state 3"
    )


# --- sampling -----------------------------------------------------------------------------------


def test_frequencies_of_a_long_path() -> None:
    rounds = 40_000
    states, successes = sample_path(TEXT_ORACLE, rounds, generator=np.random.default_rng(5))
    for state in range(3):
        here = states[:-1] == state
        visits = int(here.sum())
        shares = np.bincount(states[1:][here], minlength=3) / visits
        row = TEXT_ORACLE.transition[state]
        assert np.all(np.abs(shares - row) <= 4.5 * np.sqrt(row * (1.0 - row) / visits))
        prob = TEXT_ORACLE.success[state]
        spread = np.sqrt(prob * (1.0 - prob) / (states == state).sum())
        assert abs(successes[states == state].mean() - prob) <= 4.5 * spread
    # The autocorrelation of a state's indicator is below 0.9 to the lag, hence the factor.
    distribution = compute_stationary_distribution(TEXT_ORACLE)
    shares = np.bincount(states, minlength=3) / rounds
    assert np.all(
        np.abs(shares - distribution)
        <= 4.5 * np.sqrt(19.0 * distribution * (1.0 - distribution) / rounds)
    )


def test_the_first_state_is_stationary_unless_given() -> None:
    generator = np.random.default_rng(1)
    firsts = [int(sample_path(TEXT_ORACLE, 1, generator=generator)[0][0]) for _ in range(2000)]
    distribution = compute_stationary_distribution(TEXT_ORACLE)
    shares = np.bincount(firsts, minlength=3) / len(firsts)
    assert np.all(
        np.abs(shares - distribution)
        <= 4.5 * np.sqrt(distribution * (1.0 - distribution) / len(firsts))
    )
    for first in range(3):
        assert sample_path(TEXT_ORACLE, 3, generator=generator, first=first)[0][0] == first


@given(st.integers(0, 2**32 - 1))
def test_the_same_seed_gives_the_same_path(seed: int) -> None:
    once, again = (
        sample_path(TEXT_ORACLE, 50, generator=np.random.default_rng(seed)) for _ in range(2)
    )
    np.testing.assert_array_equal(once[0], again[0])
    np.testing.assert_array_equal(once[1], again[1])


def test_other_seeds_give_other_paths() -> None:
    paths = {
        tuple(sample_path(TEXT_ORACLE, 50, generator=np.random.default_rng(seed))[0])
        for seed in range(20)
    }
    assert len(paths) == 20


def test_impossible_moves_and_successes_never_happen() -> None:
    circle = Oracle(np.roll(np.eye(4), 1, axis=1), np.array([0.0, 1.0, 0.0, 1.0]))
    states, successes = sample_path(circle, 100, generator=np.random.default_rng(0), first=2)
    np.testing.assert_array_equal(states, (np.arange(100) + 2) % 4)
    np.testing.assert_array_equal(successes, states % 2 == 1)


@pytest.mark.parametrize(
    ("rounds", "first", "sentence"),
    [
        (0, None, "rounds must be at least 1, got 0"),
        (5, 3, r"first must be a state 0\.\.2, got 3"),
        (5, -1, r"first must be a state 0\.\.2, got -1"),
    ],
)
def test_bad_paths_are_refused(rounds: int, first: int | None, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        sample_path(TEXT_ORACLE, rounds, generator=np.random.default_rng(0), first=first)
