"""The oracle: what it accepts, its stationary distribution, dominance (M1) and sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from covertfl.decision.oracle import (
    Oracle,
    compute_stationary_distribution,
    find_dominance_violation,
    find_reachable,
    require_irreducible,
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
