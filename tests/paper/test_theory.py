"""The theorems hold in the experiments, and the experiments could show it if they did not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from paper import theory_queues, theory_structure, theory_updates
from paper.noisy_function import NoisyFunction, make_function

from covertfl.decision.oracle import Oracle, find_dominance_violation
from covertfl.decision.problem_file import read_preset
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.structure import check_assumptions


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_drawn_rows_are_ordered(states: int, seed: int) -> None:
    rows = theory_structure.sample_dominated_rows(states, generator=np.random.default_rng(seed))
    assert rows.min() > 0.0
    assert find_dominance_violation(Oracle(rows, np.full(states, 0.5))) is None


def test_models_keep_the_assumptions() -> None:
    generator = np.random.default_rng(0)
    for is_convex in (True, False):
        for _ in range(30):
            model = theory_structure.sample_model(is_convex=is_convex, generator=generator)
            holds = {item.name: item.holds for item in check_assumptions(model)}
            assert holds["M1"] and holds["M2"] and holds["M5"]
            assert holds["M3"] or not is_convex


def test_structure_holds_with_convexity_and_not_without() -> None:
    found = theory_structure.examine_models(150)
    promised = dict(found["convex"])
    promised.pop("threshold_falls_with_oracle")  # by no theorem
    assert set(promised.values()) == {150}
    assert found["not_convex"]["threshold_in_backlog"] < 150


def test_measured_norms_keep_to_the_bound() -> None:
    found = theory_updates.measure_norms((5, 20), runs=4)
    assert all(row["largest"] <= row["bound"] for row in found["rows"])
    assert [goal["constant_bound"] for goal in found["goals"]] == sorted(
        goal["constant_bound"] for goal in found["goals"]
    )


def test_norms_are_those_of_the_queried_points() -> None:
    """A plain loop: norm m is taken at x_m, before the m-th step."""
    task = replace(make_function(2, 3), radius=4.0)
    steps, start = 1.0 / np.arange(1, 9), task.first_weights(7).astype(np.float64)
    oracle = read_preset(theory_updates.PRESET).problem.oracle
    generator, state = np.random.default_rng([5, 1]), 2
    points = [start.astype(np.float32)]
    for step in steps:
        sigma = np.inf
        while sigma > task.response_limit:
            response, sigma = task.respond(points[-1], state, generator=generator)
            state = int(generator.choice(3, p=oracle.transition[state]))
        moved = points[-1] - step * response.astype(np.float64)
        points.append((moved * min(1.0, 4.0 / np.linalg.norm(moved))).astype(np.float32))
    expected = [np.sum(task.gradient(point) ** 2) for point in points[:-1]]
    found = theory_updates.walk(task, steps, 5, start)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found[0] == pytest.approx(np.sum(task.gradient(start) ** 2), rel=1e-5)


def test_theorem_1_is_attained_by_a_quadratic() -> None:
    """With curvature L everywhere and |r|^2 = s^2 on average, only the last gap is lost.

    For f(x) = L x^2 / 2 the mean square follows E x'^2 = (1 - 2 mu L) E x^2 + mu^2 s^2, and
    sum(mu E|grad|^2) + E f(x_{M+1}) = D + L s^2 sum(mu^2) / 2 exactly.
    """
    task = make_function(0)
    L, s2, gap = task.smoothness, task.response_limit**2, 5.0
    for kind, least in (("decreasing", 0.97), ("constant", 0.99)):
        steps = theory_updates.choose_steps(task, gap, 20_000, kind)
        square, total = 2.0 * gap / L, 0.0
        for step in steps:
            total += step * L**2 * square
            square = (1.0 - 2.0 * step * L) * square + step**2 * s2
        bound = theory_updates.bound_norm(task, gap, steps)
        assert total + L * square / 2.0 == pytest.approx(bound * steps.sum(), rel=1e-10)
        assert least < total / steps.sum() / bound < 1.0


def test_theorem_1_is_nearly_attained_by_the_function() -> None:
    """Noise far above the gradients and points where the curvature is nearly L.

    What is lost of the bound: 5% of s^2 bounds gradients that are small here, 3% of the curvature,
    and 3% is the gap of the last point.
    """
    size = 300
    noise = 4.0 * np.sqrt(size)
    task = NoisyFunction((0.0,) * size, noise_limit=noise, success=(1.0,) * 3, spread=1e-6)
    variance = 0.05**2  # of a coordinate, about the minimum
    step = 2.0 * task.smoothness * variance * size / task.response_limit**2
    steps = np.full(int(15.0 / (task.smoothness * step)), step)
    found = theory_updates.walk(task, steps, 0, np.zeros(size))
    ratio = steps @ found / steps.sum() / theory_updates.bound_norm(task, 0.0, steps)
    assert 0.84 < ratio <= 1.0


def test_bound_of_decreasing_steps_is_below_f1s() -> None:
    """The sum with its true steps is at most what F1 replaces it by."""
    task = make_function(0)
    steps = theory_updates.choose_steps(task, 5.0, 50, "decreasing")
    noise = task.smoothness * task.response_limit**2
    simple = (5.0 + np.pi**2 * noise / 12.0) / np.log(51)
    assert theory_updates.bound_norm(task, 5.0, steps) <= simple


def test_constant_step_is_the_best_constant() -> None:
    task = make_function(0)
    best = theory_updates.choose_steps(task, 5.0, 50, "constant")
    bounds = [theory_updates.bound_norm(task, 5.0, factor * best) for factor in (0.9, 1.0, 1.1)]
    assert bounds[1] == min(bounds)


def test_mixture_of_the_reference_queue() -> None:
    """D8: alpha is 0.579, the probability that meets the limit 0.515."""
    found = theory_queues.compare_mixing(solve_queue(theory_queues.make_reference()))
    assert found is not None
    assert found["alpha"] == pytest.approx(0.579, abs=5e-4)
    assert found["p"] == pytest.approx(0.515, abs=5e-4)
    assert abs(found["corrected_miss"]) < 1e-9 < abs(found["printed_miss"])


def test_random_queues_mix_in_one_state() -> None:
    found = theory_queues.examine_mixtures(12)
    assert found["most_states_mixed"] == 1
    assert found["corrected_largest_miss"] < 1e-9
    assert found["printed_largest_miss"] > 1e-3


@pytest.mark.slow
def test_queues_on_each_side_of_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory_queues, "ROUNDS", 1000)
    monkeypatch.setattr(theory_queues, "RUNS", 100)
    found = theory_queues.examine_stability()
    assert found["printed"]["left"] > found["printed"]["right"]  # it fails on the paper's queue
    assert found["printed"]["load"] < found["printed"]["capacity"]  # which can be kept stable
    growth = {row["share"]: row["growth"]["mean"] for row in found["loads"]}
    assert growth[1.2] > 0.04 > growth[0.8]
    low, high = found["loads"][-1]["growth"]["interval"]
    assert low - 0.02 < found["loads"][-1]["drift"] < high + 0.02
    assert high - low < 0.05
    lazy = {row["share"]: row for row in found["limits"]}
    assert lazy[0.5]["always_stable"] and not lazy[2.0]["always_stable"]
    assert lazy[2.0]["growth"]["mean"] > 0.05 > lazy[0.5]["growth"]["mean"]
