"""The oracle fitted to a log: counts, intervals, states, draws, and the example log."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import covertfl as cf
from covertfl.fitting.oracle import FittedOracle, sample_oracles
from covertfl.intervals import wilson_interval
from tests import ROOT
from tests.support.participation import EXAMPLE_LOG, PAPER, draw_rounds, fit_log


def fit(options: dict[str, Any] | None = None, **columns: Iterable[float]) -> FittedOracle:
    return fit_log(options, **columns).details


# --- fitting by hand -----------------------------------------------------------------------------


SMALL: dict[str, list[float]] = {
    "clients": [3, 8, 15, 14, 8, 2, 3, 20],
    "examples": [10, 50, 90, 49, 60, 5, 50, 80],
    "success": [0, 0, 1, 1, 1, 0, 0, 1],
    "arrival": [0, 4, 0, 0, 0, 4, 0, 0],
}


def test_a_small_log_by_hand() -> None:
    # States 0 1 2 1 1 0 0 2: a value equal to a cut belongs to the better state.
    fitted = fit({"cuts": (8, 15)}, **SMALL)
    assert (fitted.cuts, fitted.column, fitted.num_rounds) == ((8.0, 15.0), "clients", 8)
    assert fitted.min_examples is None
    assert fitted.visits.tolist() == [3, 3, 2]
    assert fitted.transition_counts.tolist() == [[1, 1, 1], [1, 1, 1], [0, 1, 0]]
    assert fitted.success_counts.tolist() == [[0, 3], [2, 3], [2, 2]]
    np.testing.assert_allclose(
        fitted.oracle.transition, [[1 / 3] * 3, [1 / 3] * 3, [0.0, 1.0, 0.0]]
    )
    np.testing.assert_allclose(fitted.oracle.success, [0, 2 / 3, 1])
    z2 = 1.959963984540054**2
    # No success in n trials: the upper end solves p / (1 - p) = z^2 / n.
    np.testing.assert_allclose(fitted.success_interval[0], [0.0, z2 / (3 + z2)])
    np.testing.assert_allclose(fitted.success_interval[2], [2 / (2 + z2), 1.0])
    np.testing.assert_allclose(fitted.transition_interval[2, 0], [0.0, z2 / (1 + z2)])
    arrival = fitted.arrival
    assert arrival is not None and arrival.arrival_prob == 0.25
    np.testing.assert_allclose(arrival.interval, wilson_interval(2, 8))
    assert (arrival.arrival_size, arrival.sizes_vary, arrival.num_arrivals) == (4, False, 2)


def test_min_examples_goes_before_the_success_column() -> None:
    fitted = fit({"cuts": (8, 15), "min_examples": 50}, **SMALL)
    assert fitted.min_examples == 50
    assert fitted.success_counts.tolist() == [[1, 3], [2, 3], [2, 2]]


@pytest.mark.parametrize(
    ("arrivals", "size", "varies"),
    [([2, 3, 0], 2.5, True), ([1, 1, 0], 1, False), ([1, 1, 2], 4 / 3, True)],
)
def test_arrival_sizes_are_averaged_over_arrivals(
    arrivals: list[int], size: float, varies: bool
) -> None:
    arrival = fit({"states": 2}, clients=[1, 2, 1], success=[0, 1, 0], arrival=arrivals).arrival
    assert arrival is not None
    assert (arrival.arrival_size, arrival.sizes_vary) == (size, varies)


def test_each_size_has_its_share_of_rounds() -> None:
    arrival = fit(
        {"states": 2}, clients=[1, 2] * 4, success=[0, 1] * 4, arrival=[0, 4, 0, 1, 0, 4, 0, 0]
    ).arrival
    assert arrival is not None
    assert (arrival.sizes, arrival.size_probs) == ((1, 4), (0.125, 0.25))
    for interval, count in zip(arrival.size_intervals, (1, 2), strict=True):
        assert interval == pytest.approx(tuple(float(end) for end in wilson_interval(count, 8)))


def test_no_arrivals_no_estimate() -> None:
    columns: dict[str, list[float]] = {"clients": [1, 2, 1], "success": [0, 1, 0]}
    assert fit({"states": 2}, **columns).arrival is None
    assert fit({"states": 2}, **columns, arrival=[0, 0, 0]).arrival is None


def test_a_dominance_violation_of_the_estimate_is_reported() -> None:
    # After the better state the better one never follows, after the worse one it always does.
    fitted = fit({"states": 2}, clients=[1, 2, 1, 2, 1], success=[0, 1, 0, 1, 0])
    assert fitted.dominance_violation is not None
    assert "rows 0 and 1" in str(fitted.dominance_violation)


def test_any_numeric_column_can_form_the_states() -> None:
    columns: dict[str, list[float]] = {
        "quality": [-0.5, 0.5, -0.2, 0.9, -1.0],
        "success": [0, 1, 0, 1, 0],
    }
    fitted = fit({"column": "quality", "cuts": (0.0,)}, **columns)
    assert fitted.visits.tolist() == [3, 2]
    assert fitted.column == "quality"


def test_three_states_without_a_word() -> None:
    assert fit(clients=[1, 2, 3] * 4 + [1], success=[0] * 13).cuts == (2.0, 3.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"column": "quality"}, ["past.csv", "quality", "clients"]),
        ({"column": "round"}, ["past.csv", "round"]),
        ({"states": 2, "cuts": (8,)}, ["states", "cuts"]),
        ({"states": 1}, ["states", "at least 2", "got 1"]),
        ({"states": -3}, ["states", "got -3"]),
        ({"states": 9}, ["past.csv", "clients", "at most 6 states", "9"]),
        ({"cuts": ()}, ["cuts", "at least one"]),
        ({"cuts": (8, 8)}, ["cuts", "increase", "8, 8"]),
        ({"cuts": (15, 8)}, ["cuts", "increase", "15, 8"]),
        ({"cuts": (float("nan"),)}, ["cuts", "finite", "nan"]),
        ({"cuts": (99,)}, ["past.csv", "99", "every round", "state 0 (clients < 99)"]),
        ({"cuts": (0, 1)}, ["past.csv", "0, 1", "every round", "state 2 (1 <= clients)"]),
        ({"cuts": (8, 30)}, ["past.csv", "state 2 (30 <= clients)", "3 to 20"]),
        ({"cuts": (9, 10, 14)}, ["past.csv", "state 1 (9 <= clients < 10)", "3 to 20"]),
        ({"cuts": (1, 8)}, ["past.csv", "state 0 (clients < 1)", "3 to 20"]),
        ({"cuts": (8, 16)}, ["past.csv", "state 2 (16 <= clients)", "last round", "round 7"]),
        ({"cuts": (8,), "min_examples": 0}, ["min_examples (--min-examples)", "got 0"]),
        ({"cuts": (8,), "min_examples": float("inf")}, ["min_examples", "got inf"]),
        *(({"min_examples": wrong}, ["min_examples", "number"]) for wrong in ("x", [1], {1}, True)),
        *(({"states": wrong}, ["states", "whole number"]) for wrong in ("3", [3], 2.5, True)),
        *(({"cuts": wrong}, ["cuts must be"]) for wrong in (1, "a", float("nan"), ["a"], [[1.0]])),
        *(({"column": wrong}, ["column must be of type str"]) for wrong in (["a"], {1: 1}, None)),
    ],
)
def test_what_a_log_cannot_tell_gets_one_sentence(
    options: dict[str, object], said: list[str]
) -> None:
    clients = [3, 8, 15, 14, 8, 4, 20]
    with pytest.raises(cf.InvalidInput) as caught:
        fit(options, clients=clients, examples=[100] * 7, success=[1] * 7)
    assert all(part in str(caught.value) for part in said), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "columns", "said"),
    [
        ({}, {"clients": [5, 5, 5], "success": [0, 1, 1]}, "clients is 5 in every round"),
        ({}, {"clients": [5], "success": [1]}, "past.csv"),
        (
            {"states": 2},
            {"clients": [1, 2, 1], "examples": [10, 20, 10]},
            "past.csv has no column success: give min_ex",
        ),
        (
            {"states": 2, "min_examples": 15},
            {"clients": [1, 2, 1], "success": [0, 1, 0]},
            "past.csv has no column examples",
        ),
    ],
)
def test_columns_that_make_no_oracle(
    options: dict[str, Any], columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(cf.InvalidInput) as caught:
        fit(options, **columns)
    assert said in str(caught.value)


def test_examples_from_which_a_round_is_a_success() -> None:
    columns = {"clients": [1, 2, 1], "examples": [10, 20, 10]}
    assert fit({"states": 2, "min_examples": 15}, **columns).oracle.success.tolist() == [0.0, 1.0]


# --- properties ----------------------------------------------------------------------------------


@settings(deadline=None)
@given(data=st.data(), num_states=st.integers(2, 5))
def test_quantile_cuts_fill_the_states_as_evenly_as_any_cuts(
    data: st.DataObject, num_states: int
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=num_states, max_size=9))
    values = np.repeat(np.arange(len(sizes)), sizes)
    # Every value comes back at the end, so that each state is followed by another round.
    columns = {"clients": [*values, 0], "success": [0] * (len(values) + 1)}
    visits = fit({"states": num_states}, **columns).visits

    def spread(cuts: Sequence[int]) -> int:
        states = np.searchsorted(cuts, [*values, 0], side="right")
        return int((np.bincount(states, minlength=num_states) ** 2).sum())

    every_choice = itertools.combinations(range(1, len(sizes)), num_states - 1)
    assert len(visits) == num_states
    assert visits.min() > 0
    assert (visits**2).sum() == min(map(spread, every_choice))


def test_quantile_cuts_of_distinct_values_are_the_quantiles() -> None:
    quality = np.random.default_rng(5).permutation(3000) / 7.0
    columns = {"quality": quality.tolist(), "success": [0] * 3000}
    fitted = fit({"column": "quality", "states": 4}, **columns)
    assert fitted.cuts == (750 / 7.0, 1500 / 7.0, 2250 / 7.0)
    assert fitted.visits.tolist() == [750] * 4


@settings(deadline=None)
@given(
    clients=st.lists(st.integers(0, 6), min_size=3, max_size=60),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=3, unique=True).map(sorted),
    seed=st.integers(0, 99),
)
def test_counting_agrees_with_a_literal_loop(
    clients: list[int], cuts: list[int], seed: int
) -> None:
    success = np.random.default_rng(seed).integers(0, 2, len(clients)).tolist()
    states = [sum(cut <= value for cut in cuts) for value in clients]
    if set(states[:-1]) != set(range(len(cuts) + 1)):
        with pytest.raises(cf.InvalidInput):
            fit({"cuts": cuts}, clients=clients, success=success)
        return
    fitted = fit({"cuts": cuts}, clients=clients, success=success)
    assert fitted.transition_counts.sum() == len(clients) - 1
    assert fitted.visits.sum() == fitted.success_counts[:, 1].sum() == len(clients)
    for here in range(len(cuts) + 1):
        for there in range(len(cuts) + 1):
            moves = sum(pair == (here, there) for pair in itertools.pairwise(states))
            assert fitted.transition_counts[here, there] == moves
        wins = sum(won for state, won in zip(states, success, strict=True) if state == here)
        assert fitted.success_counts[here, 0] == wins
    low, high = np.moveaxis(fitted.transition_interval, -1, 0)
    assert np.all((low <= fitted.oracle.transition) & (fitted.oracle.transition <= high))
    assert np.all((low >= 0.0) & (high <= 1.0))


def fit_simulated(rounds: int, seed: int) -> FittedOracle:
    generator = np.random.default_rng(seed)
    states, success = draw_rounds(PAPER, rounds, generator)
    clients = np.array([3, 8, 15])[states] + generator.integers(0, 5, rounds)
    return fit({"cuts": (8, 15)}, clients=clients.tolist(), success=success.astype(int).tolist())


def test_a_long_log_recovers_the_oracle() -> None:
    fitted = fit_simulated(40_000, seed=1)
    np.testing.assert_allclose(fitted.oracle.transition, PAPER.transition, atol=0.02)
    np.testing.assert_allclose(fitted.oracle.success, PAPER.success, atol=0.02)
    assert fitted.dominance_violation is None


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    fits = [fit_simulated(800, seed) for seed in range(200)]
    interval = np.stack([fitted.transition_interval for fitted in fits])
    moves = (interval[..., 0] <= PAPER.transition) & (PAPER.transition <= interval[..., 1])
    interval = np.stack([fitted.success_interval for fitted in fits])
    success = (interval[..., 0] <= PAPER.success) & (PAPER.success <= interval[..., 1])
    # Binomial(200, 0.95) has mean 190 and standard deviation 3.1.
    assert np.all(moves.sum(axis=0)[PAPER.transition > 0.0] >= 176)
    assert np.all(success.sum(axis=0) >= 176)
    assert np.all(moves.sum(axis=0)[PAPER.transition == 0.0] == 200)
    # Neither are they wide for no reason: over all cells some truths lie outside.
    assert 0.92 < moves[:, PAPER.transition > 0.0].mean() < 0.975
    assert 0.92 < success.mean() < 0.98


# --- posterior draws -----------------------------------------------------------------------------

MOVES = np.array([[40, 10, 0], [15, 25, 10], [0, 9, 30]])
OUTCOMES = np.array([[5, 50], [20, 50], [38, 39]])


def test_draws_have_the_moments_of_the_posterior() -> None:
    drawn = sample_oracles(MOVES, OUTCOMES, 4000, generator=np.random.default_rng(2))
    weight = MOVES + 0.5
    total = weight.sum(axis=1, keepdims=True)
    mean = weight / total
    rows = np.stack([oracle.transition for oracle in drawn])
    variance = mean * (1.0 - mean) / (total + 1.0)
    np.testing.assert_array_less(abs(rows.mean(axis=0) - mean), 4.5 * np.sqrt(variance / 4000))
    np.testing.assert_allclose(rows.var(axis=0), variance, rtol=0.25)
    won, lost = OUTCOMES[:, 0] + 0.5, OUTCOMES[:, 1] - OUTCOMES[:, 0] + 0.5
    probs = np.stack([oracle.success for oracle in drawn])
    variance = won * lost / ((won + lost) ** 2 * (won + lost + 1.0))
    np.testing.assert_array_less(
        abs(probs.mean(axis=0) - won / (won + lost)), 4.5 * np.sqrt(variance / 4000)
    )
    np.testing.assert_allclose(probs.var(axis=0), variance, rtol=0.25)
    # Cells of a row pull against each other as a Dirichlet's do; rows do not know each other.
    pull = -mean[1, 0] * mean[1, 1] / (total[1, 0] + 1.0)
    assert np.cov(rows[:, 1, 0], rows[:, 1, 1])[0, 1] == pytest.approx(pull, rel=0.15)
    assert abs(np.corrcoef(rows[:, 0, 0], rows[:, 1, 1])[0, 1]) < 0.08


def test_draws_repeat_with_the_seed_and_leave_the_counts_alone() -> None:
    before = MOVES.copy()
    first = sample_oracles(MOVES, OUTCOMES, 3, generator=np.random.default_rng(9))
    second = sample_oracles(MOVES, OUTCOMES, 3, generator=np.random.default_rng(9))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.transition, other.transition)
        assert np.array_equal(one.success, other.success)
    assert not np.array_equal(first[0].transition, first[1].transition)
    assert np.array_equal(MOVES, before)


def test_draws_close_in_on_the_estimate_as_counts_grow() -> None:
    (drawn,) = sample_oracles(
        MOVES * 10**8, OUTCOMES * 10**8, 1, generator=np.random.default_rng(0)
    )
    np.testing.assert_allclose(drawn.transition, MOVES / MOVES.sum(axis=1)[:, None], atol=1e-4)
    np.testing.assert_allclose(drawn.success, OUTCOMES[:, 0] / OUTCOMES[:, 1], atol=1e-4)


# --- the example log -----------------------------------------------------------------------------

EXAMPLES = ROOT / "examples"
QUARTER_OF_ALL_EXAMPLES = 20 * 34 * 40 / 4


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    path = EXAMPLES / "make_participation_log.py"
    spec = importlib.util.spec_from_file_location("make_participation_log", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_script_makes_the_example_log_byte_for_byte(maker: ModuleType) -> None:
    made = maker.make_log(generator=np.random.Generator(np.random.PCG64(maker.SEED)))
    assert made.encode("ascii") == maker.EXAMPLE_LOG.read_bytes()


def test_the_example_log_gives_back_the_matrix_it_was_made_with() -> None:
    fitted = cf.fit(EXAMPLE_LOG, cuts=(8, 15), min_examples=QUARTER_OF_ALL_EXAMPLES).details
    low, high = np.moveaxis(fitted.transition_interval, -1, 0)
    assert np.all((low <= PAPER.transition) & (PAPER.transition <= high))
    assert fitted.num_rounds == 600
    assert fitted.dominance_violation is None
    assert fitted.arrival is not None
    assert fitted.arrival.arrival_size == 4
    assert fitted.arrival.interval[0] <= 0.05 <= fitted.arrival.interval[1]
    worst, middle, best = fitted.oracle.success
    assert 0.0 < worst < 0.2 < middle < 0.8 < best < 1.0
