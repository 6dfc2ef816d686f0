"""The function with noisy gradients: calculus, the oracle's distribution, Theorem 1."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from paper.noisy_function import SUCCESS, NoisyFunction, make_function

from covertfl.errors import InvalidInput
from covertfl.planning.updates import updates_needed_constant_step, updates_needed_decreasing_step

SMALL = NoisyFunction((0.5, -1.0, 0.0))
points = st.lists(st.floats(-5.0, 5.0), min_size=3, max_size=3).map(np.array)


@given(point=points)
def test_gradient_is_the_slope_of_the_value(point: np.ndarray) -> None:
    width = 1e-5
    slopes = [
        (SMALL.value(point + width * axis) - SMALL.value(point - width * axis)) / (2 * width)
        for axis in np.eye(3)
    ]
    np.testing.assert_allclose(SMALL.gradient(point), slopes, atol=1e-7)


@given(first=points, second=points)
def test_constants_bound_value_and_gradient(first: np.ndarray, second: np.ndarray) -> None:
    change = np.linalg.norm(SMALL.gradient(first) - SMALL.gradient(second))
    assert change <= SMALL.smoothness * np.linalg.norm(first - second) + 1e-9
    assert np.linalg.norm(SMALL.gradient(first)) <= SMALL.gradient_bound
    assert SMALL.value(first) >= 0.0


def test_lipschitz_constant_is_attained_at_the_minimum() -> None:
    minimum = np.array(SMALL.minimum)
    assert SMALL.value(minimum) == 0.0
    assert np.all(SMALL.gradient(minimum) == 0.0)
    near = minimum + np.array([1e-4, 0.0, 0.0])
    slope = np.linalg.norm(SMALL.gradient(near)) / 1e-4
    assert slope == pytest.approx(SMALL.smoothness, rel=1e-4)


def test_function_is_not_convex() -> None:
    line = np.array(SMALL.minimum) + np.outer(np.linspace(-3, 3, 601), np.eye(3)[0])
    bend = np.diff([SMALL.value(point) for point in line], 2)
    assert bend.min() < 0.0 < bend.max()
    slopes = [SMALL.gradient(point)[0] for point in line]
    assert np.count_nonzero(np.diff(np.sign(slopes)) > 0) > 1  # more than one local minimum


def test_responses_are_unbiased_and_within_their_bound() -> None:
    point = np.array([1.0, 0.3, -0.7], dtype=np.float32)
    generator = np.random.default_rng(0)
    answers = [SMALL.respond(point, 2, generator=generator) for _ in range(20_000)]
    responses = np.array([response for response, _ in answers], dtype=np.float64)
    sigma2 = np.array([sigma**2 for _, sigma in answers])
    noise = responses - SMALL.gradient(point)
    error = noise.std(axis=0) / math.sqrt(len(noise))
    assert np.all(np.abs(noise.mean(axis=0)) < 4 * error)
    # The variance of the noise is the part of sigma^2 above G^2, and (A2) holds on average.
    tau2 = sigma2 - SMALL.gradient_bound**2
    assert (noise**2).sum(axis=1).mean() == pytest.approx(tau2.mean(), rel=0.05)
    assert (responses**2).sum(axis=1).mean() <= sigma2.mean()
    # noise of loud answers is loud: the ratio is one within any band of tau
    loud = tau2 > np.median(tau2)
    for band in (loud, ~loud):
        assert (noise[band] ** 2).sum(axis=1).mean() == pytest.approx(tau2[band].mean(), rel=0.05)


@pytest.mark.parametrize("state", range(3))
def test_acceptance_follows_the_oracle_state(state: int) -> None:
    generator = np.random.default_rng(state)
    point = SMALL.first_weights(0)
    accepted = [
        SMALL.accepts(SMALL.respond(point, state, generator=generator)[1]) for _ in range(4000)
    ]
    assert np.mean(accepted) == pytest.approx(SUCCESS[state], abs=0.03)


def test_sure_chances_are_kept() -> None:
    task = NoisyFunction((0.0,), success=(0.0, 1.0))
    generator = np.random.default_rng(0)
    point = np.zeros(1, dtype=np.float32)
    for state, expected in ((0, False), (1, True)):
        for _ in range(500):
            response, sigma = task.respond(point, state, generator=generator)
            assert np.isfinite(response).all()
            assert task.accepts(sigma) is expected


def test_update_by_hand() -> None:
    start = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    response = np.array([4.0, -4.0, 1.0], dtype=np.float32)
    assert SMALL.step(start, response, 0.25).tolist() == [0.0, 3.0, 2.75]
    assert start.tolist() == [1.0, 2.0, 3.0]


@given(point=points, radius=st.floats(3.5, 6.0))
def test_steps_stay_in_the_domain(point: np.ndarray, radius: float) -> None:
    """The projection is the nearest point of the ball: no point of a fine grid is nearer."""
    task = replace(SMALL, radius=radius)
    moved = task.step(np.zeros(3, dtype=np.float32), (-point).astype(np.float32), 1.0)
    assert np.linalg.norm(moved) <= radius * (1 + 1e-6)
    if np.linalg.norm(point) <= radius:
        np.testing.assert_array_equal(moved, point.astype(np.float32))
    directions = np.random.default_rng(0).normal(size=(500, 3))
    others = radius * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    nearest = np.linalg.norm(others - point, axis=1).min()
    assert np.linalg.norm(moved - point) <= nearest + 1e-5


def _mean_square_gradient(
    task: NoisyFunction, steps: list[float], seeds: int
) -> tuple[float, float]:
    """E|grad f|^2 of the randomised estimate over the seeds, and the mean gap D."""
    total, gap = 0.0, 0.0
    weights = np.array(steps) / sum(steps)
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        point = task.first_weights(seed).astype(np.float64)
        gap += task.value(point) / seeds
        for step, weight in zip(steps, weights, strict=True):
            total += weight * float(np.sum(task.gradient(point) ** 2)) / seeds
            while True:  # only successful updates count
                response, sigma = task.respond(point.astype(np.float32), 1, generator=generator)
                if task.accepts(sigma):
                    break
            point = point - step * response
    return total, gap


def test_theorem_1_holds_with_steps_1_over_m() -> None:
    """After the number of updates of formula F1 the goal is met on average."""
    task = NoisyFunction((0.3,), noise_limit=0.5)
    smoothness_noise = task.smoothness * task.response_limit**2
    gap = np.mean([task.value(task.first_weights(seed)) for seed in range(40)])
    epsilon = 0.9
    updates = updates_needed_decreasing_step(float(gap), smoothness_noise, epsilon)
    assert 10 < updates < 2000
    steps = [1.0 / m for m in range(1, updates + 1)]
    reached, _ = _mean_square_gradient(task, steps, 40)
    assert 0.0 < reached <= epsilon


def test_theorem_1_holds_with_the_constant_step() -> None:
    """The same with formula F2 and the step sqrt(2 D / (L s^2 M))."""
    task = NoisyFunction((0.3,), noise_limit=0.5)
    smoothness_noise = task.smoothness * task.response_limit**2
    gap = float(np.mean([task.value(task.first_weights(seed)) for seed in range(40)]))
    epsilon = 0.25
    updates = updates_needed_constant_step(gap, smoothness_noise, epsilon)
    step = math.sqrt(2.0 * gap / (smoothness_noise * updates))
    reached, _ = _mean_square_gradient(task, [step] * updates, 40)
    assert 0.0 < reached <= epsilon


def test_start_depends_on_the_seed_alone() -> None:
    task = make_function(3)
    np.testing.assert_array_equal(task.first_weights(1), task.first_weights(1))
    assert task.first_weights(1).tolist() != task.first_weights(2).tolist()
    assert task.first_weights(1).dtype == np.float32
    assert task == make_function(3) != make_function(4)
    assert task.radius == pytest.approx(6.0 * math.sqrt(10.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_limit": 0.0}, "noise_limit must be a positive number, got 0"),
        ({"success": (0.5, 1.5)}, r"success must be probabilities in \[0, 1\]"),
        ({"radius": 1.0}, "radius must be at least 1.73205, .* from the origin, got 1"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"minimum": (1.0,) * 3, **change}
    with pytest.raises(InvalidInput, match=message):
        NoisyFunction(**arguments)  # type: ignore[arg-type]


def test_bad_queries_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"a point must have 3 coordinates, got shape \(2,\)"):
        SMALL.value(np.zeros(2))
    with pytest.raises(InvalidInput, match=r"oracle_state must lie in 0\.\.2, got 3"):
        SMALL.draw_deviation(3, generator=np.random.default_rng(0))
