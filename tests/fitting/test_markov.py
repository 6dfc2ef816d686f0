"""The test of the Markov property: its statistic, size and power."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from covertfl.arrays import FloatArray, IntArray
from covertfl.fitting.markov import LEAST_EXPECTED, MarkovTest, check_markov, pool_sparse

TEXT = np.array([[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]])
LINES = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])


def walk(probs: FloatArray, rounds: int, seeds: int) -> IntArray:
    """Sample chains of second order, (seeds, rounds); `probs` is [before last][last][next]."""
    generator = np.random.default_rng(5)
    ends, states = np.cumsum(probs, axis=2), np.zeros((seeds, rounds), dtype=np.int64)
    for t in range(2, rounds):
        draws = generator.random((seeds, 1))
        states[:, t] = (ends[states[:, t - 2], states[:, t - 1]] <= draws).sum(axis=1)
    return np.minimum(states, len(probs) - 1)


def of_first_order(matrix: FloatArray) -> FloatArray:
    return np.broadcast_to(matrix, (len(matrix), *matrix.shape))


@pytest.mark.parametrize("matrix", [TEXT, LINES], ids=["text", "lines"])
@pytest.mark.parametrize("rounds", [150, 1000])
def test_one_chain_in_twenty_is_rejected_by_mistake(matrix: FloatArray, rounds: int) -> None:
    tests = [check_markov(states, 3) for states in walk(of_first_order(matrix), rounds, 600)]
    p_values = np.array([test.p_value for test in tests if test.p_value is not None])
    assert len(p_values) > 500
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.025)
    assert stats.kstest(p_values, "uniform").pvalue > 0.001


def test_a_chain_of_second_order_is_found() -> None:
    """Two bad rounds in a row are rarely followed by a third."""
    probs = np.array(of_first_order(LINES))
    probs[0, 0] = [0.2, 0.4, 0.4]
    tests = [check_markov(states, 3) for states in walk(probs, 1000, 100)]
    assert np.mean([test.is_rejected for test in tests]) > 0.95
    sentence = next(test.sentence for test in tests if test.is_rejected)
    assert sentence is not None
    assert all(word in sentence for word in ("degrees of freedom", "--cuts", "--policy"))


def test_statistic_against_scipy() -> None:
    states = walk(of_first_order(LINES), 2000, 1)[0]
    statistic, degrees = 0.0, 0
    for middle in range(3):
        table = np.zeros((3, 3))
        for before, now, after in zip(states, states[1:], states[2:], strict=False):
            table[before, after] += now == middle
        found = stats.chi2_contingency(table, correction=False)
        statistic, degrees = statistic + found.statistic, degrees + found.dof
    test = check_markov(states, 3)
    assert (test.degrees, test.pooled) == (degrees, False) == (12, False)
    assert test.statistic == pytest.approx(statistic, rel=1e-12)
    assert test.p_value == pytest.approx(stats.chi2.sf(statistic, degrees), rel=1e-9)


def test_states_that_never_follow_take_no_degrees() -> None:
    """In the text's matrix the worst and the best state never follow each other."""
    test = check_markov(walk(of_first_order(TEXT), 20_000, 1)[0], 3)
    # The worst state is reached from two states and left to two, the best too; the middle to three.
    assert test.degrees == 1 + 4 + 1


@given(st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=4, max_size=4))
def test_pooling_keeps_all_counts_and_ends_with_enough(rows: list[list[int]]) -> None:
    table = np.array(rows, dtype=float)
    pooled = pool_sparse(table)
    assert pooled.sum() == table.sum()
    if pooled.size and min(pooled.shape) > 1:
        expected = np.outer(pooled.sum(axis=1), pooled.sum(axis=0)) / pooled.sum()
        assert expected.min() >= LEAST_EXPECTED - 1e-12
    test = check_markov(np.random.default_rng(len(rows)).integers(0, 4, size=60), 4)
    assert test.pooled and test.degrees > 0


def test_pooling_by_hand() -> None:
    """The rare middle row joins the rarer of its neighbours, the last."""
    table = np.array([[30.0, 30.0], [1.0, 2.0], [20.0, 25.0]])
    assert pool_sparse(table).tolist() == [[30.0, 30.0], [21.0, 27.0]]
    assert pool_sparse(np.array([[2.0, 1.0], [1.0, 2.0]])).tolist() == [[3.0, 3.0]]


def test_too_few_rounds_are_not_tested() -> None:
    assert check_markov(np.array([0, 1, 0, 1, 1]), 2) == MarkovTest(0.0, 0, None, pooled=False)
    assert check_markov(np.array([0, 1]), 2).p_value is None
    assert check_markov(np.array([0, 1]), 2).sentence is None


def test_a_state_without_rounds_around_it_takes_no_degrees() -> None:
    states = walk(of_first_order(np.array([[0.7, 0.3], [0.4, 0.6]])), 500, 1)[0]
    two, more = check_markov(states, 2), check_markov(states, 4)
    assert (two.degrees, more.degrees) == (2, 2)
    assert two == more
