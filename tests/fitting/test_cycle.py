"""Cycles in a log: shuffled paths are uniform, false alarms are rare, real cycles are found."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from covertfl.arrays import IntArray
from covertfl.fitting.cycle import LEVEL, CycleTest, check_cycle, shuffle_moves

SLOW = np.array([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.15, 0.85]])


def count_moves(path: IntArray) -> dict[tuple[int, int], int]:
    return Counter(zip(path[:-1].tolist(), path[1:].tolist(), strict=True))


def walk(rounds: int, transition: np.ndarray, generator: np.random.Generator) -> IntArray:
    """Draw a path of a Markov chain from state 0."""
    reached, draws = np.cumsum(transition, axis=1), generator.random(rounds)
    path = [0]
    for draw in draws[1:]:
        path.append(int(np.searchsorted(reached[path[-1]], draw)))
    return np.array(path)


@pytest.mark.parametrize(
    "path", [[0, 1, 2, 1, 1, 0, 0, 2], [0, 0, 1, 0, 2, 2, 0, 1, 1], [2, 0, 2, 1, 0, 1], [1, 1]]
)
def test_shuffled_paths_are_uniform_among_all_with_the_same_moves(path: list[int]) -> None:
    states = np.array(path)
    possible = [
        (path[0], *rest)
        for rest in product(range(max(path) + 1), repeat=len(path) - 1)
        if count_moves(np.array((path[0], *rest))) == count_moves(states)
    ]
    drawn = shuffle_moves(states, 4000, generator=np.random.default_rng(1))
    seen = Counter(map(tuple, drawn.tolist()))
    assert set(seen) == set(possible)
    expected = len(drawn) / len(possible)
    statistic = sum((seen[each] - expected) ** 2 / expected for each in possible)
    freedom = len(possible) - 1
    assert statistic <= freedom + 4.0 * np.sqrt(2.0 * freedom)  # 4 standard deviations


def simulate_p_values(
    runs: int, rounds: int, hours: np.ndarray | None, *, missing: float = 0.0
) -> np.ndarray:
    """Return p-values of logs of Markov chains, with a share of rounds missing."""
    found = []
    for seed in range(runs):
        generator = np.random.default_rng([7, seed])
        path = walk(rounds, SLOW, generator)
        kept = np.flatnonzero(generator.random(rounds) >= missing)
        times = None if hours is None else hours[kept]
        test = check_cycle(path[kept], kept, times, generator=generator, num_shuffles=99)
        found.append(test.p_value)
    return np.array(found)


def test_few_false_alarms_in_short_logs() -> None:
    # Binomial(100, 1%) exceeds 5, and Binomial(100, 20%) exceeds 33, with probability 0.1%.
    found = simulate_p_values(100, 60, None)
    assert np.count_nonzero(found <= LEVEL) <= 5
    assert np.count_nonzero(found <= 0.2) <= 33


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rounds", "hours", "gaps"])
def test_the_false_alarm_rate_is_the_level(kind: str) -> None:
    hours = 3.0 * np.arange(250) if kind == "hours" else None
    found = simulate_p_values(250, 250, hours, missing=0.02 * (kind == "gaps"))
    # The 99.9% quantile of Binomial(250, 1%) is 9, of Binomial(250, 10%) 41.
    assert np.count_nonzero(found <= LEVEL) <= 9
    assert np.count_nonzero(found <= 0.1) <= 41


def draw_cycle(rounds: int, period: float, generator: np.random.Generator) -> IntArray:
    """Return states that follow a sine, with noise."""
    level = np.sin(2.0 * np.pi * np.arange(rounds) / period) + generator.normal(size=rounds)
    return np.asarray(np.digitize(level, [-0.5, 0.5]))


@pytest.mark.parametrize("period", [7, 24])
def test_a_cycle_in_rounds_is_found(period: int) -> None:
    generator = np.random.default_rng(period)
    states = draw_cycle(300, period, generator)
    found = check_cycle(states, np.arange(300), None, generator=generator)
    assert found.is_found and found.unit == "rounds"
    assert found.period == pytest.approx(period, rel=0.05)
    assert f"a cycle of about {found.period:.3g} rounds" in str(found.sentence)


@pytest.mark.parametrize(("step", "cycle", "name"), [(2, 24, "daily"), (24, 168, "weekly")])
def test_a_cycle_in_time_is_named(step: int, cycle: int, name: str) -> None:
    generator = np.random.default_rng(cycle)
    states = draw_cycle(300, cycle / step, generator)
    kept = np.flatnonzero(generator.random(300) > 0.05)
    found = check_cycle(states[kept], kept, step * kept.astype(float), generator=generator)
    assert found.is_found and found.period == cycle
    assert f"shows a {name} cycle" in str(found.sentence)


@pytest.mark.parametrize(
    ("states", "hours"),
    [
        ([0, 1] * 5, None),  # too few rounds
        ([0] * 100, None),  # one state
        ([0, 1, 1] * 30, np.arange(90) / 60.0),  # an hour and a half
        ([0, 1, 1] * 9, 24.0 * np.arange(27) + 12.0),  # always at noon, for less than four weeks
    ],
)
def test_a_log_in_which_no_cycle_can_be_seen(states: list[int], hours: np.ndarray | None) -> None:
    rounds = np.arange(len(states))
    found = check_cycle(np.array(states), rounds, hours, generator=np.random.default_rng(0))
    assert found == CycleTest(None, "rounds" if hours is None else "hours", None)
    assert found.sentence is None and found.to_dict()["found"] is False
