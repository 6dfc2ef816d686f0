"""Settings of the structured policy gradient: ablations and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.solvers.spga.search import solve_spga
from covertfl.solvers.spga.settings import default_settings
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


def test_refusals_of_settings_name_what_came() -> None:
    problem = reference_queue()
    with pytest.raises(InvalidInput, match="rollout must be a whole number of at least 1, got 0"):
        default_settings(problem, **SHORT | {"rollout": 0})
    for iterations in (0, 10**12):
        with pytest.raises(InvalidInput, match=rf"iterations must lie in 1..\d+, got {iterations}"):
            default_settings(problem, **SHORT | {"iterations": iterations})
