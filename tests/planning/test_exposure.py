"""The setting that leads to an exposure: it does, and what cannot be reached is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import covertfl as cf
from covertfl.planning.exposure import find_limit_for_exposure, find_scale_for_exposure
from tests.support.presets import horizon_preset, queue_preset

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param("sound/queue", 0.8, marks=pytest.mark.slow),
        ("paper-code/queue", 0.6),
        ("sound/tracking-before", 0.4),
        ("sound/tracking-after", 0.3),
    ],
)
def test_the_limit_found_gives_the_exposure(name: str, target: float) -> None:
    problem = queue_preset(name)
    answer = find_limit_for_exposure(problem, target)
    assert (answer.target, answer.setting) == (target, "learning_limit")
    again = cf.solve(problem.with_limit(answer.value))
    assert again.learn_fraction == pytest.approx(target, abs=1e-5)
    assert answer.exposure == pytest.approx(again.learn_fraction, abs=1e-9)
    assert answer.privacy_cost == pytest.approx(again.privacy_cost, rel=1e-9)


def test_the_privacy_limit_found_gives_the_exposure() -> None:
    problem = replace(queue_preset("sound/queue"), objective="learning", limit=0.77)
    answer = find_limit_for_exposure(problem, 0.75)
    assert answer.setting == "privacy_limit"
    again = cf.solve(problem.with_limit(answer.value))
    assert again.learn_fraction == pytest.approx(0.75, abs=1e-5)


def test_a_light_queue_down_to_its_least_exposure() -> None:
    """The best state alone keeps up: loosening the limit stops at 4/19 of the queries."""
    problem = replace(queue_preset("sound/queue"), arrival_prob=0.05, limit=3.0)
    answer = find_limit_for_exposure(problem, 0.212)
    assert answer.exposure == pytest.approx(0.212, abs=1e-5)
    with pytest.raises(cf.NoSolution, match=r"no learning_limit .* 20\.0%: .* more than 21\.1%"):
        find_limit_for_exposure(problem, 0.20)


def test_exposures_that_no_limit_gives() -> None:
    problem = queue_preset("sound/queue")
    with pytest.raises(
        cf.NoSolution, match=r"62\.0%: a queue that keeps up sends more than 62\.9%"
    ):
        find_limit_for_exposure(problem, 0.62)
    with pytest.raises(cf.NoSolution, match=r"99\.9%: the optimal policies .* from .* to 9\d\.\d%"):
        find_limit_for_exposure(problem, 0.999)
    # A buffer that may lose work has no such floor, but a queue that is never full has a ceiling.
    with pytest.raises(cf.NoSolution, match=r"no learning_limit leads to an exposure of 95\.0%"):
        find_limit_for_exposure(queue_preset("sound/tracking-before"), 0.95)


def test_a_queue_that_cannot_be_kept_up_with_has_no_limit() -> None:
    with pytest.raises(cf.NoSolution, match="more updates arrive than can be done"):
        find_limit_for_exposure(replace(queue_preset("sound/queue"), arrival_prob=0.2), 0.9)


def test_where_bad_rounds_are_cheap_a_looser_limit_means_more_true_queries() -> None:
    problem = replace(
        queue_preset("paper-code/queue"), privacy_cost=np.array([0.01, 0.8, 2.0]), arrival_prob=0.02
    )
    shares = [cf.solve(problem.with_limit(limit)).learn_fraction for limit in (0.05, 0.4)]
    assert shares[0] < shares[1]
    target = 0.5 * (shares[0] + shares[1])
    for limit in (0.05, 0.4):
        answer = find_limit_for_exposure(problem.with_limit(limit), target)
        assert answer.exposure == pytest.approx(target, abs=1e-5)


@pytest.mark.parametrize("target", [0.1, 0.25, 0.4, 0.6])
def test_the_scale_found_is_the_last_before_the_target(target: float) -> None:
    problem = horizon_preset("sound/main")
    answer = find_scale_for_exposure(problem, target)
    assert (answer.target, answer.setting) == (target, "scale")

    def exposure_at(scale: float) -> float:
        rescaled = replace(problem, learning_cost=replace(problem.learning_cost, scale=scale))
        return cf.evaluate_horizon_policy(rescaled, cf.solve(rescaled).policy).exposure

    assert answer.exposure == exposure_at(answer.value) <= target
    assert exposure_at(answer.value * (1.0 + 1e-9)) > target


def test_a_table_is_scaled_as_a_whole() -> None:
    problem = replace(
        horizon_preset("sound/main"),
        learning_cost=cf.LearningCost("table", values=tuple(0.6 * y * y for y in range(17))),
    )
    factor = find_scale_for_exposure(problem, 0.4)
    scale = find_scale_for_exposure(horizon_preset("sound/main"), 0.4)
    assert 0.6 * factor.value == pytest.approx(scale.value, rel=1e-6)
    assert factor.exposure == pytest.approx(scale.exposure, abs=1e-9)


def test_exposures_that_no_scale_gives() -> None:
    with pytest.raises(cf.NoSolution, match=r"no scale .* 95\.0%: however much .* sends 7\d\.\d%"):
        find_scale_for_exposure(horizon_preset("sound/main"), 0.95)


@pytest.mark.parametrize("target", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_shares_that_are_none(target: float) -> None:
    with pytest.raises(cf.InvalidInput, match="exposure must lie strictly between 0 and 1, got"):
        find_limit_for_exposure(queue_preset("sound/queue"), target)
    with pytest.raises(cf.InvalidInput, match="exposure must lie strictly between 0 and 1, got"):
        find_scale_for_exposure(horizon_preset("sound/main"), target)
