"""Sources of experience: simulated, replayed and live."""

from __future__ import annotations

import math

import numpy as np
import pytest

from covertfl.decision.oracle import Oracle, compute_stationary_distribution
from covertfl.errors import InvalidInput
from covertfl.solvers.spga.experience import Experience, ReplayedLog, SimulatedSource
from tests.support.paper_queues import TEXT_ORACLE


def numbered(count: int) -> Experience:
    """Rounds that tell their number: state n, arrival 10 n, success where n is odd."""
    numbers = np.arange(count)
    return Experience(numbers, 10 * numbers, numbers % 2 == 1)


def within(share: float, prob: float, count: int) -> bool:
    """Whether an observed share lies within five standard errors of its probability."""
    return abs(share - prob) <= 5.0 * math.sqrt(prob * (1.0 - prob) / count)


# --- simulator --------------------------------------------------------------------------------


def test_simulated_rounds_have_the_probabilities_of_the_oracle() -> None:
    source = SimulatedSource(TEXT_ORACLE, 0.1, 4, generator=np.random.default_rng(1))
    rounds = source.next_rounds(200_000)
    before, after = rounds.oracle_state[:-1], rounds.oracle_state[1:]
    for state in range(3):
        here = rounds.oracle_state == state
        leaving = before == state
        assert within(
            rounds.success[here].mean(), float(TEXT_ORACLE.success[state]), int(here.sum())
        )
        for following in range(3):
            share = float((after[leaving] == following).mean())
            prob = float(TEXT_ORACLE.transition[state, following])
            assert within(share, prob, int(leaving.sum()))
    assert set(np.unique(rounds.arrival)) == {0, 4}
    assert within(float((rounds.arrival == 4).mean()), 0.1, len(rounds))


def test_arrivals_and_successes_are_drawn_apart() -> None:
    rounds = SimulatedSource(TEXT_ORACLE, 0.5, 1, generator=np.random.default_rng(2)).next_rounds(
        100_000
    )
    arrived = rounds.arrival > 0
    both = float((arrived & rounds.success).mean())
    assert within(both, 0.5 * float(rounds.success.mean()), len(rounds))


def test_simulation_goes_on_where_it_stopped() -> None:
    """State 2 is never followed by state 0, at the seams of two calls neither."""
    source = SimulatedSource(TEXT_ORACLE, generator=np.random.default_rng(3))
    path = np.concatenate([source.next_rounds(7).oracle_state for _ in range(2_000)])
    pairs = set(zip(path[:-1].tolist(), path[1:].tolist(), strict=True))
    assert pairs == {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)}


def test_first_state_is_stationary_or_given() -> None:
    generator = np.random.default_rng(4)
    count = 20_000
    source = SimulatedSource(TEXT_ORACLE, generator=generator, episode=1)
    states = source.next_rounds(count).oracle_state
    for state, prob in enumerate(compute_stationary_distribution(TEXT_ORACLE)):
        assert within(float((states == state).mean()), float(prob), count)
    given = SimulatedSource(TEXT_ORACLE, generator=generator, first=1, episode=1)
    assert np.all(given.next_rounds(100).oracle_state == 1)


def test_impossible_moves_and_successes_never_happen() -> None:
    circle = Oracle(np.roll(np.eye(4), 1, axis=1), np.array([0.0, 1.0, 0.0, 1.0]))
    source = SimulatedSource(circle, generator=np.random.default_rng(0), first=2)
    rounds = source.next_rounds(100)
    np.testing.assert_array_equal(rounds.oracle_state, (np.arange(100) + 2) % 4)
    np.testing.assert_array_equal(rounds.success, rounds.oracle_state % 2 == 1)


def test_a_path_depends_on_the_seed_alone() -> None:
    def sample(seed: int) -> tuple[int, ...]:
        source = SimulatedSource(TEXT_ORACLE, generator=np.random.default_rng(seed))
        return tuple(source.next_rounds(50).oracle_state.tolist())

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in range(20)}) == 20


def test_episodes_begin_again_also_between_calls() -> None:
    source = SimulatedSource(TEXT_ORACLE, generator=np.random.default_rng(5), first=2, episode=5)
    path = np.concatenate([source.next_rounds(count).oracle_state for count in (3, 4, 13, 180)])
    assert np.all(path[::5] == 2)
    assert len(np.unique(path[4::5])) == 3


# --- log and feed -----------------------------------------------------------------------------


def test_replayed_log_begins_again_at_its_end() -> None:
    log = ReplayedLog(numbered(5))
    assert log.next_rounds(3).oracle_state.tolist() == [0, 1, 2]
    wrapped = log.next_rounds(9)
    assert wrapped.oracle_state.tolist() == [3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert wrapped.arrival.tolist() == [30, 40, 0, 10, 20, 30, 40, 0, 10]
    assert wrapped.success.tolist() == [True, False, False, True, False, True, False, False, True]
    assert log.next_rounds(1).oracle_state.tolist() == [2]


def test_refusals_name_what_came() -> None:
    with pytest.raises(InvalidInput, match="at least one round"):
        ReplayedLog(numbered(0))
