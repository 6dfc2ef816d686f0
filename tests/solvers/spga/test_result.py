"""The policies that a search returns: sigmoid and rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from covertfl.decision.policy import build_mixture_table, build_sigmoid_table
from covertfl.solvers.spga.result import round_parameters
from covertfl.solvers.spga.search import solve_spga
from covertfl.solvers.spga.settings import default_settings
from tests.support.paper_queues import SIGMOID_PARAMETERS, reference_queue

SHORT: dict[str, Any] = {"iterations": 60, "rollout": 200}


def test_rounding_by_hand() -> None:
    """Columns: in order, in the other order, below 0, hardly any weight on one side."""
    parameters = np.array(
        [
            [[2.3, 7.0], [-1.0, 3.4], [5.1, 5.1]],
            [[6.0, 2.3], [0.2, 8.0], [9.9, 9.9]],
            [[0.25, 0.25], [0.5, 0.0], [1.0, 0.9995]],
        ]
    )
    first, certain, between = round_parameters(parameters)
    assert first.tolist() == [[3, 3], [1, 8], [6, 6]]
    assert certain.tolist() == [[6, 7], [1, 8], [6, 6]]
    assert between[0].tolist() == [0.25, 0.75]
    assert np.all(first <= certain)


def test_rounding_is_the_limit_of_low_temperature() -> None:
    problem = reference_queue()
    parameters = SIGMOID_PARAMETERS + 0.05  # at a whole number the limit would be one half
    rounded = build_mixture_table(problem, *round_parameters(parameters))
    cold = build_sigmoid_table(problem, parameters, 1e-4)
    assert cold.table == pytest.approx(rounded.table, abs=1e-9)


def test_run_makes_both_forms_of_its_policy() -> None:
    problem = reference_queue()
    run = solve_spga(problem, default_settings(problem, **SHORT), seed=1)[0]
    soft = run.policy(problem).table
    hard = build_mixture_table(problem, *round_parameters(run.parameters)).table
    assert soft.shape == hard.shape == problem.table_shape
    assert np.array_equal(soft, build_sigmoid_table(problem, run.parameters, 0.3).table)
    assert all(len(set(hard[o, e])) <= 3 for o in range(3) for e in (0, 1))
