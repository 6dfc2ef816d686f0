"""Oracle states, who takes part, and whether that is enough."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.errors import InvalidInput
from covertfl.runs.participation import (
    SimulatedParticipation,
    accepts_data,
    bound_batches,
    count_batches,
    count_examples,
    draw_attendance,
    draw_state,
    measure_success,
)
from covertfl.runs.settings import choose_participation
from tests.support.small_runs import DRAWN_QUEUE, make_run


def enumerate_success(sizes: list[int], count: int, batch_size: int, min_share: float) -> float:
    """g by counting: every choice of clients, every number of batches."""
    total, prob = sum(sizes), 0.0
    chosen = list(combinations(range(len(sizes)), count))
    for clients in chosen:
        most = [max(sizes[client] // batch_size, 1) if sizes[client] else 0 for client in clients]
        draws = list(product(*(range(each + 1) for each in most)))
        enough = 0
        for batches in draws:
            examples = sum(
                min(number * batch_size, sizes[client])
                for client, number in zip(clients, batches, strict=True)
            )
            enough += examples > 0 and examples / total >= min_share
        prob += enough / len(draws) / len(chosen)
    return prob


@pytest.mark.parametrize(
    ("sizes", "batch_size", "min_share"),
    [
        ([40, 40, 40, 40], 10, 0.25),
        ([45, 7, 0, 23, 31], 10, 0.3),
        ([3, 50, 12], 20, 0.07),
        ([20, 20, 20], 10, 0.0),
        ([20, 20, 20], 10, 1.0),
    ],
)
def test_measured_success_against_counting(
    sizes: list[int], batch_size: int, min_share: float
) -> None:
    participation = list(range(1, len(sizes) + 1))
    rounds = 40_000
    measured = measure_success(
        np.array(sizes),
        participation,
        batch_size,
        min_share,
        generator=np.random.default_rng(5),
        rounds=rounds,
    )
    expected = np.array(
        [enumerate_success(sizes, count, batch_size, min_share) for count in participation]
    )
    error = np.sqrt(expected * (1.0 - expected) / rounds)
    assert np.all(np.abs(measured - expected) <= 4.5 * error + 1e-12)


def reach_prob(count: int, threshold: Fraction) -> float:
    """Probability that `count` uniform shares sum to the threshold (Irwin and Hall)."""
    terms = (
        (-1) ** j * math.comb(count, j) * (threshold - j) ** count
        for j in range(math.floor(threshold) + 1)
    )
    return 1.0 - float(sum(terms, start=Fraction(0)) / math.factorial(count))


@given(prob=st.floats(0.02, 0.98), clients=st.integers(8, 60), min_share=st.floats(0.1, 0.3))
def test_chosen_participation_has_the_nearest_success(
    prob: float, clients: int, min_share: float
) -> None:
    (chosen,) = choose_participation(np.array([prob]), clients, min_share)
    threshold = Fraction(min_share) * clients
    misses = [abs(reach_prob(count, threshold) - prob) for count in range(1, clients + 1)]
    assert misses[chosen - 1] < min(misses) + 0.03  # the sum is only nearly normal


def test_chosen_participation_at_the_edges() -> None:
    assert choose_participation(np.array([0.0, 0.5, 0.2, 1.0]), 20, 0.25) == [3, 10, 10, 20]
    assert choose_participation(np.array([0.1, 0.9]), 20, 0.0) == [1, 1]
    assert choose_participation(np.array([0.1, 0.9]), 20, 1.0) == [20, 20]


def test_the_papers_success_needs_8_10_and_14_clients() -> None:
    """Printed are 0.1, 0.43 and 0.95, with 5, 10 and 20 clients (D19 of docs/deviations.md)."""
    assert choose_participation(np.array([0.1, 0.43, 0.95]), 20, 0.25) == [8, 10, 14]
    measured = measure_success(
        np.full(20, 1474), [8, 10, 14], 40, 0.25, generator=np.random.default_rng(0)
    )
    assert measured == pytest.approx([0.1, 0.43, 0.95], abs=0.02)


def test_the_papers_federation_has_success_of_about_0_one_half_1() -> None:
    sizes = np.full(20, 1420)
    measured = measure_success(sizes, [5, 10, 20], 40, 0.25, generator=np.random.default_rng(0))
    assert measured[0] < 0.005
    assert 0.44 < measured[1] < 0.51
    assert measured[2] > 0.999


def test_measuring_in_pieces_counts_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covertfl.runs.participation.DRAWS_AT_A_TIME", 7)
    measured = measure_success(
        np.array([20, 20]), [2], 10, 0.0, generator=np.random.default_rng(0), rounds=1000
    )
    assert 0.8 < measured[0] < 0.96  # 8/9: all but the round in which nobody has a batch


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8),
    batch_size=st.integers(1, 30),
    data=st.data(),
)
def test_attendance_is_a_set_of_clients_with_batches_they_have(
    sizes: list[int], batch_size: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(sizes)))
    generator = np.random.default_rng(data.draw(st.integers(0, 100)))
    array = np.array(sizes)
    drawn = draw_attendance(array, count, batch_size, generator=generator)
    clients = drawn.clients.tolist()
    assert len(set(clients)) == count
    assert clients == sorted(clients)
    most = count_batches(array[drawn.clients], batch_size)
    assert np.all((drawn.batches >= 0) & (drawn.batches <= most))
    examples = count_examples(drawn.batches, array[drawn.clients], batch_size)
    assert np.all(examples <= array[drawn.clients])


def test_clients_and_batches_are_uniform() -> None:
    generator = np.random.default_rng(1)
    sizes, draws = np.array([40, 40, 40, 40, 40]), 20_000
    seen, batches = np.zeros(5), np.zeros(5)
    for _ in range(draws):
        drawn = draw_attendance(sizes, 2, 10, generator=generator)
        seen[drawn.clients] += 1
        batches += np.bincount(drawn.batches, minlength=5)
    np.testing.assert_allclose(seen / draws, 2 / 5, atol=0.015)
    np.testing.assert_allclose(batches / (2 * draws), 1 / 5, atol=0.012)


def test_a_client_with_less_than_a_batch_has_one_short_batch() -> None:
    np.testing.assert_array_equal(
        count_batches(np.array([0, 1, 9, 10, 19, 20]), 10), [0, 1, 1, 1, 1, 2]
    )
    np.testing.assert_array_equal(
        count_examples(np.array([1, 1, 1, 2]), np.array([0, 7, 15, 20]), 10), [0, 7, 10, 20]
    )


def test_more_clients_than_there_are_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 2 clients, got 3"):
        draw_attendance(np.array([5, 5]), 3, 5, generator=np.random.default_rng(0))


@given(part=st.integers(1, 1000), total=st.integers(1, 1000))
def test_exactly_the_share_is_enough_and_one_less_is_not(part: int, total: int) -> None:
    part = min(part, total)
    assert accepts_data(part, total, part / total)
    assert not accepts_data(part - 1, total, part / total)


def test_shares_written_as_decimals_are_not_missed_by_rounding() -> None:
    assert all(accepts_data(percent, 100, percent / 100) for percent in range(1, 101))
    assert not accepts_data(0, 100, 0.0)  # nothing arrived


def test_the_mean_of_a_states_examples_is_met_as_far_as_clients_have_them() -> None:
    sizes, generator = np.array([40, 80, 200, 7]), np.random.default_rng(2)
    for mean in (0.0, 60.0, 150.0, 300.0, 1e9):
        low, high = bound_batches(sizes, 4, 10, mean)
        most = count_batches(sizes, 10)
        assert np.all((low >= 0) & (high <= most) & (low <= high))
        wanted = np.minimum(mean / 40, most)
        assert np.all(np.abs((low + high) / 2 - wanted) <= 0.25 + 1e-12)
        assert np.all((low == 0) | (high == most))
        drawn = [draw_attendance(sizes, 4, 10, generator=generator, mean=mean) for _ in range(400)]
        found = np.mean([each.batches for each in drawn], axis=0)
        assert np.all(np.abs(found - wanted) <= 0.25 + 4 * (high - low + 1) / np.sqrt(12 * 400))


def test_rounds_have_the_examples_of_their_state_on_average() -> None:
    states = {"column": "clients", "cuts": [3.0, 5.0], "examples": [60.0, 500.0, 300.0]}
    sizes = np.full(6, 100)
    world = SimulatedParticipation(make_run(states=states), sizes)
    for state, mean in enumerate((60.0, 400.0, 300.0)):  # the four clients of state 1 have 400
        drawn = [world.draw_clients(state, number) for number in range(400)]
        found = [count_examples(each.batches, sizes[each.clients], 20).sum() for each in drawn]
        assert np.mean(found) == pytest.approx(mean, abs=20)


def test_success_is_measured_with_the_mean_of_a_states_examples() -> None:
    """Two clients, each with 1 to 3 of its 3 batches where the mean is 40 examples."""
    measured = measure_success(
        np.array([30, 30]),
        [0, 2, 2],
        10,
        5 / 6,
        generator=np.random.default_rng(3),
        rounds=40_000,
        means=[9.0, 40.0, 60.0],
    )
    np.testing.assert_allclose(measured, [0.0, 1 / 3, 1.0], atol=0.012)


def test_the_oracle_is_the_chain_of_the_problem() -> None:
    oracle = make_run(DRAWN_QUEUE).problem.oracle
    moves, state = np.zeros((3, 3)), -1
    for number in range(1, 4001):
        after = draw_state(oracle, None, state, number, seed=3)
        if state >= 0:
            moves[state, after] += 1
        state = after
    for row, distribution in zip(moves, oracle.transition, strict=True):
        possible = distribution > 0
        assert row[~possible].sum() == 0
        assert stats.chisquare(row[possible], row.sum() * distribution[possible]).pvalue > 1e-3


def test_the_first_oracle_state_has_the_stationary_distribution() -> None:
    oracle = make_run(DRAWN_QUEUE).problem.oracle
    counts = np.zeros(3)
    for seed in range(1500):
        counts[draw_state(oracle, None, -1, 1, seed=seed)] += 1
    distribution = compute_stationary_distribution(oracle)
    assert stats.chisquare(counts, 1500 * distribution).pvalue > 1e-3
