"""Settings of the structured policy gradient: ablations and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covertfl.decision.problem import LearningCost
from covertfl.errors import InvalidInput
from covertfl.solvers.spga.search import simulate_source, solve_spga
from covertfl.solvers.spga.settings import default_settings, printed_settings
from tests.support.paper_queues import reference_queue

SHORT: dict[str, Any] = {"iterations": 60, "rollout": 200}


@pytest.mark.parametrize(
    "undo",
    [
        {"rademacher": False},
        {"common_numbers": False},
        {"carries_over": False, "start_backlog": 40},
        {"normalises": False},
        {"averages_from": 1.0},
        {"rollout": 100},
        {"last_temperature": 5.0},
    ],
    ids=lambda undo: next(iter(undo)),
)
def test_each_change_can_be_taken_back(undo: dict[str, Any]) -> None:
    problem = reference_queue()
    default = default_settings(problem, **SHORT)
    settings = replace(default, **undo)
    assert settings != default
    run = solve_spga(problem, settings, seed=1)[0]
    largest = float(problem.learning_cost.at(np.array(problem.capacity)))
    assert 0.0 <= run.history.learning_cost.min() <= run.history.learning_cost.max() <= largest


@pytest.mark.parametrize(("capacity", "start"), [(None, 40), (1836, 40), (40, 40), (25, 25)])
def test_printed_algorithm_starts_as_the_paper_does(capacity: int | None, start: int) -> None:
    """From backlog 40 in the best oracle state, however long the queue is (Appendix A)."""
    endless = replace(reference_queue(), capacity=capacity)
    settings = printed_settings(endless)
    assert (settings.start_backlog, settings.first_threshold) == (start, start / 2)
    assert settings.largest_threshold == start
    assert not settings.carries_over
    source = simulate_source(endless, settings, generator=np.random.default_rng(0))
    states = source.next_rounds(30 * settings.rollout).oracle_state
    assert set(states[:: settings.rollout]) == {2}
    assert set(states) == {0, 1, 2}


def test_refusals_of_settings_name_what_came() -> None:
    problem = reference_queue()
    with pytest.raises(InvalidInput, match="rollout must be a whole number of at least 1, got 0"):
        default_settings(problem, **SHORT | {"rollout": 0})
    assert default_settings(problem, **SHORT | {"iterations": 10**7}).iterations == 10**7
    for iterations in (0, 10**7 + 1):
        with pytest.raises(InvalidInput, match=rf"iterations must lie in 1..\d+, got {iterations}"):
            default_settings(problem, **SHORT | {"iterations": iterations})


def test_defaults_follow_the_scale_of_thresholds_down_to_a_least_value() -> None:
    """The scale of a queue that holds 40 updates is 40, of one that holds three it is 3."""
    large, small = reference_queue(), replace(reference_queue(), capacity=3)
    for problem, scale, perturbation, temperature in ((large, 40, 2.0, 2.0), (small, 3, 0.5, 0.3)):
        found = default_settings(problem, **SHORT)
        assert (found.perturbation, found.first_temperature) == (perturbation, temperature)
        assert (found.step, found.first_threshold) == (scale / 130, scale / 4)
        price = float(np.mean(problem.privacy_cost)) / problem.limit
        assert found.first_multiplier == pytest.approx(price)
        assert found.multiplier_step == pytest.approx(0.02 * price / problem.limit)
        assert found.penalty == pytest.approx(0.3 * price / problem.limit)


def test_each_cost_is_recorded_as_what_it_is() -> None:
    """A query costs at most the largest privacy cost, a waiting update a hundred."""
    cost = LearningCost("linear", 100.0, "always")
    problem = replace(reference_queue(), learning_cost=cost, limit=2000.0)
    history = solve_spga(problem, default_settings(problem, **SHORT), seed=1)[0].history
    assert 0.0 < history.privacy_cost.max() <= problem.privacy_cost.max()
    assert history.learning_cost.max() > 10.0 * problem.privacy_cost.max()
