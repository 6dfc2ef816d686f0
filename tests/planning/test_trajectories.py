"""Prices of exchangeable trajectories: published numbers, second methods, what is out of reach."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import covertfl as cf
from covertfl.arrays import FloatArray
from covertfl.planning.trajectories import accepted_by_rounds, find_rounds_for_accepted
from tests.support.presets import queue_preset

COMPLETION_PROBS = (0.9, 0.95, 0.99)
SECRECY = (
    "2 replicas: an eavesdropper who knows the scheme but has no data is right half the time; "
)
TINY = cf.Oracle([[0.7, 0.3], [0.4, 0.6]], [0.0, 0.8])


@cache
def price_main() -> Any:
    return cf.plan("sound/main").details.exchangeable


def price_one_state(success: float, updates: int) -> Any:
    oracle, cost = cf.Oracle([[1.0]], [success]), cf.LearningCost("quadratic", 2.0)
    problem = cf.FiniteHorizon(oracle, np.ones(1), cost, 9, updates)
    return cf.plan(problem).details.exchangeable


def find_stationary(oracle: cf.Oracle) -> FloatArray:
    return np.asarray(np.linalg.matrix_power(oracle.transition, 200)[0])


# --- a horizon ----------------------------------------------------------------------------------


def test_rounds_needed_in_the_main_experiment() -> None:
    prices = price_main().prices
    assert [price.trajectories for price in prices] == [1, 2, 4, 8]
    assert [price.rounds_needed[0.95] for price in prices] == [68, 115, 204, 371]
    assert [price.median_rounds for price in prices] == [37, 73, 147, 293]
    assert price_main().advice == SECRECY + ("16 updates with 95% take 115 rounds instead of 68.")


def test_prices_of_the_main_experiment() -> None:
    """The minority policy takes 79 rounds; 64 and 128 rounds do not fit into 45."""
    found = price_main()
    alone, pair, four, eight = found.prices
    assert found.against_no_secrecy(alone) == dict.fromkeys(COMPLETION_PROBS, 1.0)
    assert found.against_no_secrecy(pair)[0.95] == pytest.approx(115 / 68)
    assert found.against_minority(pair)[0.95] == pytest.approx(115 / 79)
    assert alone.completion > pair.completion > 0.0
    assert four.completion == eight.completion == 0.0


def enumerate_accepted(oracle: cf.Oracle, accepted: int, rounds: int) -> float:
    """Sum the probabilities of all paths of states and outcomes with enough accepted rounds."""
    total = 0.0
    first = find_stationary(oracle)
    for states in itertools.product(range(oracle.num_states), repeat=rounds):
        path = first[states[0]] * np.prod(oracle.transition[states[:-1], states[1:]])
        for outcomes in itertools.product((0, 1), repeat=rounds):
            if sum(outcomes) >= accepted:
                success = oracle.success[list(states)]
                total += path * np.prod(np.where(outcomes, success, 1.0 - success))
    return float(total)


@pytest.mark.parametrize("accepted", [1, 2, 4])
def test_every_path_of_a_tiny_oracle(accepted: int) -> None:
    expected = [0.0, *(enumerate_accepted(TINY, accepted, rounds) for rounds in range(1, 7))]
    assert accepted_by_rounds(TINY, accepted, 6) == pytest.approx(expected, abs=1e-12)


def test_one_state_is_a_binomial() -> None:
    """At least 2 of n with probability 1/2 each: 1 - (1 + n) / 2^n."""
    rounds = np.arange(13)
    expected = np.where(rounds < 2, 0.0, 1.0 - (1.0 + rounds) / 2.0**rounds)
    found = accepted_by_rounds(cf.Oracle([[1.0]], [0.5]), 2, 12)
    assert found == pytest.approx(expected, abs=1e-14)


def test_simulated_rounds_agree() -> None:
    """20,000 runs of 115 rounds, K = 2: a deviation of 0.0015 at 95%."""
    oracle, generator = cf.load_problem("sound/main").oracle, np.random.default_rng(1)
    runs = 20_000
    states = generator.choice(3, size=runs, p=find_stationary(oracle))
    steps = np.cumsum(oracle.transition, axis=1)
    accepted = np.zeros(runs, dtype=np.int64)
    for _ in range(115):
        accepted += generator.random(runs) < oracle.success[states]
        states = (generator.random(runs)[:, None] > steps[states]).sum(axis=1).clip(max=2)
    assert np.mean(accepted >= 32) == pytest.approx(
        accepted_by_rounds(oracle, 32, 115)[-1], abs=0.006
    )


def test_rounds_needed_are_the_first_that_suffice() -> None:
    probs = (0.5, 0.9, 0.95, 0.99)
    needed = find_rounds_for_accepted(TINY, 9, probs)
    curve = accepted_by_rounds(TINY, 9, 200)
    for prob in probs:
        rounds = needed[prob]
        assert rounds is not None
        assert curve[rounds] >= prob > curve[rounds - 1]


chances = st.floats(0.05, 0.95)


@settings(max_examples=50, deadline=None)
@given(chances, chances, st.tuples(chances, chances), st.integers(1, 6))
def test_more_trajectories_and_more_certainty_take_more_rounds(
    stay: float, back: float, success: tuple[float, float], updates: int
) -> None:
    oracle = cf.Oracle([[stay, 1.0 - stay], [back, 1.0 - back]], success)
    before = dict.fromkeys(COMPLETION_PROBS, 0)
    for number in (1, 2, 4, 8):
        needed = find_rounds_for_accepted(oracle, number * updates, COMPLETION_PROBS)
        rounds = [needed[prob] or 20_001 for prob in COMPLETION_PROBS]
        assert rounds == sorted(rounds)
        assert rounds[0] >= number * updates
        assert all(n > before[prob] for n, prob in zip(rounds, COMPLETION_PROBS, strict=True))
        before = dict(zip(COMPLETION_PROBS, rounds, strict=True))


# --- out of reach -------------------------------------------------------------------------------


def test_no_success_is_out_of_reach() -> None:
    found = price_one_state(0.0, updates=4)
    for price in found.prices:
        assert (price.completion, price.median_rounds) == (0.0, None)
        assert price.rounds_needed == dict.fromkeys(COMPLETION_PROBS)
        assert found.against_no_secrecy(price) == dict.fromkeys(COMPLETION_PROBS)
    assert found.advice == SECRECY + "4 updates with 95% are out of reach."


def test_a_search_that_is_too_long_is_out_of_reach() -> None:
    """With g = 2e-4 one accepted round takes log(1 - p) / log(1 - g) rounds; binomial for two."""
    found = price_one_state(2e-4, updates=1)
    alone, pair = (price.rounds_needed for price in found.prices[:2])
    assert alone == {0.9: 11512, 0.95: 14978, 0.99: None}
    assert pair == {0.9: 19448, 0.95: None, 0.99: None}
    assert found.advice == SECRECY + (
        "1 update with 95% is out of reach; without secrecy 14978 rounds are enough."
    )
    assert find_rounds_for_accepted(TINY, 10**9, (0.5,)) == {0.5: None}


def test_a_state_that_never_succeeds_is_waited_out() -> None:
    found = find_rounds_for_accepted(cf.Oracle([[0.0, 1.0], [1.0, 0.0]], [0.0, 1.0]), 5, (0.9,))
    assert found == {0.9: 10}  # every second round succeeds, the first or the second half the time


def test_bad_input_is_refused() -> None:
    with pytest.raises(cf.InvalidInput, match="accepted must be a whole number of at least 1"):
        accepted_by_rounds(TINY, 0, 5)
    with pytest.raises(cf.InvalidInput, match="cannot be reached"):
        accepted_by_rounds(cf.Oracle(np.eye(2), np.ones(2)), 1, 5)


# --- a queue ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrival_prob", "most", "sentence"),
    [
        (
            0.2,
            None,
            "1.6 accepted rounds are needed in a round instead of 0.8, not below the capacity of "
            "0.437: the queue is not stable even without secrecy.",
        ),
        (
            0.1,
            1,
            "0.8 accepted rounds are needed in a round instead of 0.4, not below the capacity of "
            "0.437: the queue is stable only without secrecy.",
        ),
        (
            0.025,
            4,
            "0.2 accepted rounds are needed in a round instead of 0.1, below the capacity of "
            "0.437: the queue is stable with up to 4 replicas.",
        ),
    ],
)
def test_a_queue_takes_k_times_its_load(
    arrival_prob: float, most: int | None, sentence: str
) -> None:
    problem = replace(queue_preset("sound/queue"), arrival_prob=arrival_prob)
    found: Any = cf.plan(problem).details.exchangeable
    assert found.service_capacity == pytest.approx(0.437, abs=5e-4)
    assert found.most_trajectories == most
    load = found.prices[0].load
    assert [price.load for price in found.prices] == [load, 2 * load, 4 * load, 8 * load]
    for price in found.prices:
        assert price.stable == (price.load < found.service_capacity)
    assert found.advice == SECRECY + sentence
