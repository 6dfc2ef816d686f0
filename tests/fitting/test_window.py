"""Problems fitted to rounds of a run, against closed forms, SciPy and where they came from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

import covertfl as cf
from covertfl.fitting.window import count_outdated, estimate_error, fit_window, measure_deviance
from covertfl.solvers.spga.experience import Experience, SimulatedSource
from tests.support.paper_queues import (
    TEXT_ORACLE,
    reference_queue,
    sound_queue,
    tracking_queue,
    unlike_queue,
)


def draw(problem: cf.QueueProblem, rounds: int, seed: int) -> Experience:
    generator = np.random.default_rng(seed)
    probs, sizes = problem.arrival_probs[1:], problem.arrival_support[1:]
    return SimulatedSource(problem.oracle, probs, sizes, generator=generator).next_rounds(rounds)


def join(first: Experience, second: Experience) -> Experience:
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return Experience(*(np.concatenate(pair) for pair in pairs))


def make_experience(states: list[int], arrivals: list[int], successes: list[int]) -> Experience:
    return Experience(np.array(states), np.array(arrivals), np.array(successes, dtype=bool))


def fit_queue(problem: cf.QueueProblem, seen: Experience) -> cf.QueueProblem:
    return cast(cf.QueueProblem, fit_window(problem, seen))


def test_shares_are_those_counted_by_hand() -> None:
    seen = make_experience([0, 1, 1, 2, 1, 0], [0, 4, 0, 0, 5, 0], [0, 1, 0, 1, 1, 0])
    fitted = fit_queue(reference_queue(), seen)
    expected = [[0.5 / 2.5, 1.5 / 2.5, 0.5 / 2.5], [1.5, 1.5, 1.5], [0.2, 0.6, 0.2]]
    expected[1] = [share / 4.5 for share in expected[1]]
    np.testing.assert_allclose(fitted.oracle.transition, expected)
    np.testing.assert_allclose(fitted.oracle.success, [0.5 / 3.0, 2.5 / 4.0, 1.5 / 2.0])
    assert fitted.largest_arrival == 5  # 4.5, rounded up, with the load of the rounds
    assert fitted.load == pytest.approx(9.0 / 6.0)


def test_sizes_keep_the_arrival_indices_of_the_problem() -> None:
    """Sizes 1 to 3 share the index of 3, and a size that never came stays."""
    problem = replace(
        reference_queue(),
        arrival_prob=None,
        arrival_size=None,
        arrival_sizes={3: 0.1, 4: 0.1, 9: 0.1},
    )
    arrival = np.array([0, 1, 0, 3, 2, 0, 4, 4, 0, 0])
    seen = Experience(np.arange(10) % 3, arrival, np.ones(10, dtype=bool))
    fitted = fit_window(problem, seen)
    assert isinstance(fitted, cf.QueueProblem)
    assert fitted.arrival_support.tolist() == [0, 2, 4, 9]
    assert fitted.arrival_probs[1:3] == pytest.approx([0.3, 0.2])
    assert 0.0 < fitted.arrival_probs[3] < 1e-9
    assert fitted.load == pytest.approx(arrival.mean())


def test_the_problem_of_many_rounds_is_found_again_from_costs_alone() -> None:
    seen = draw(reference_queue(), 100_000, 1)
    fitted, other = fit_queue(reference_queue(), seen), fit_queue(unlike_queue(), seen)
    np.testing.assert_allclose(fitted.oracle.transition, TEXT_ORACLE.transition, atol=0.01)
    np.testing.assert_allclose(fitted.oracle.success, TEXT_ORACLE.success, atol=0.01)
    assert fitted.arrival_probs[1] == pytest.approx(0.1, abs=0.005)
    assert fitted.arrival_support.tolist() == [0, 4]
    assert other.oracle.transition.tobytes() == fitted.oracle.transition.tobytes()
    assert other.oracle.success.tobytes() == fitted.oracle.success.tobytes()
    assert (other.arrival_sizes, other.limit) == (fitted.arrival_sizes, 1.0)


def test_an_unbounded_queue_is_given_a_higher_load() -> None:
    unbounded, bounded = sound_queue(arrival_prob=0.05), reference_queue()
    seen = draw(unbounded, 2500, 2)
    error = estimate_error(seen)
    assert fit_queue(bounded, seen).load == pytest.approx(seen.arrival.mean())
    assert fit_queue(unbounded, seen).load == pytest.approx(seen.arrival.mean() + error)


def test_the_standard_error_is_that_of_many_windows() -> None:
    problem, rounds = sound_queue(), 2500
    drawn = draw(problem, 200 * rounds, 3)
    windows = [
        Experience(*(column[at : at + rounds] for column in vars(drawn).values()))
        for at in range(0, len(drawn), rounds)
    ]
    drifts = [float((window.arrival - window.success).mean()) for window in windows]
    found = math.sqrt(np.mean([estimate_error(window) ** 2 for window in windows]))
    assert found == pytest.approx(np.std(drifts), rel=0.15)
    assert math.isinf(estimate_error(make_experience([0] * 3, [0] * 3, [1] * 3)))


@pytest.mark.parametrize("arrivals", [[0] * 40, [1] * 40])
def test_without_arrivals_or_with_too_many_there_is_no_queue(arrivals: list[int]) -> None:
    seen = make_experience([0, 1, 2, 2] * 10, arrivals, [0, 0, 1, 1] * 10)
    assert fit_window(sound_queue(), seen) is None
    bounded = fit_window(reference_queue(), seen)
    assert (bounded is None) == (not any(arrivals))  # a full queue loses the rest


def test_a_horizon_keeps_its_rounds_and_updates() -> None:
    problem = cf.FiniteHorizon(TEXT_ORACLE, [1.8, 0.8, 0.3], cf.LearningCost("quadratic"), 45, 16)
    fitted = fit_window(problem, draw(reference_queue(), 100, 4))
    assert isinstance(fitted, cf.FiniteHorizon)
    assert (fitted.rounds, fitted.updates) == (45, 16)
    assert fitted.oracle.transition[0, 2] > 0.0  # never seen, and yet possible


def test_the_deviance_is_that_of_scipy() -> None:
    from scipy.stats import chi2_contingency

    generator = np.random.default_rng(5)
    before, after = generator.integers(1, 50, size=(2, 3, 4)).astype(float)
    expected = [
        chi2_contingency(table, lambda_="log-likelihood").statistic
        for table in np.stack([before, after], axis=1)
    ]
    assert measure_deviance(before, after) == pytest.approx(sum(expected))
    assert measure_deviance(before, 2.0 * before) == pytest.approx(0.0, abs=1e-9)


def test_rounds_of_one_system_are_all_kept() -> None:
    for seed in range(20):
        assert count_outdated(draw(tracking_queue(0.03, 10), 2000, seed), 3) == 0
    assert count_outdated(draw(reference_queue(), 150, 0), 3) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"arrival_prob": 0.3},
        {"arrival_size": 10},
        {"oracle": cf.Oracle(TEXT_ORACLE.transition, np.array([0.1, 0.9, 0.95]))},
        {
            "oracle": cf.Oracle(
                TEXT_ORACLE.transition[::-1, ::-1] @ TEXT_ORACLE.transition, [0.1, 0.43, 0.95]
            )
        },
    ],
)
def test_rounds_before_a_change_are_out_of_date(changes: dict[str, Any]) -> None:
    before = reference_queue()
    after = replace(before, **changes)
    seen = join(draw(before, 1600, 1), draw(after, 400, 2))
    assert count_outdated(seen, 3) == 1600
