"""Settings of the structured policy gradient: ablations and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.solvers.spga.search import solve_spga
from covertfl.solvers.spga.settings import ABLATIONS, default_settings, undo_change
from tests.support.paper_queues import reference_queue

SHORT: dict[str, Any] = {"iterations": 60, "rollout": 200}


@pytest.mark.parametrize("change", sorted(ABLATIONS))
def test_each_change_can_be_taken_back(change: str) -> None:
    problem = reference_queue()
    settings = undo_change(default_settings(problem, **SHORT), change)
    assert settings != default_settings(problem, **SHORT)
    run = solve_spga(problem, settings, seed=1)[0]
    largest = float(problem.learning_cost.at(np.array(problem.capacity)))
    assert 0.0 <= run.history.learning_cost.min() <= run.history.learning_cost.max() <= largest


def test_refusals_of_settings_name_what_came() -> None:
    problem = reference_queue()
    with pytest.raises(InvalidInput, match="rollout must be at least 1, got 0"):
        default_settings(problem, **SHORT | {"rollout": 0})
    for iterations in (0, 10**12):
        with pytest.raises(InvalidInput, match=rf"iterations must lie in 1..\d+, got {iterations}"):
            default_settings(problem, **SHORT | {"iterations": iterations})
    with pytest.raises(InvalidInput, match="change must be one of"):
        undo_change(default_settings(problem), "nothing")
