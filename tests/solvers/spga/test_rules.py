"""What the search knows of a problem, and what it never sees."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.decision.problem import FiniteHorizon, LearningCost, QueueProblem
from covertfl.solvers.spga.rules import Rules, extract_rules
from covertfl.solvers.spga.settings import default_settings, printed_settings
from tests.support.paper_queues import (
    FALLING_COST,
    REFERENCE_RULES,
    TEXT_ORACLE,
    reference_queue,
    unlike_queue,
)


def test_horizon_of_rules_and_unlimited_queue() -> None:
    endless = QueueProblem(TEXT_ORACLE, FALLING_COST, LearningCost("linear", 0.6), 0.1, 4, 25.0)
    rules = extract_rules(endless)
    assert rules.rounds == 0 and rules.learning_cost.shape == (3, 2, rules.capacity + 1)
    assert rules.learning_cost[0, 0, -1] > 50 * endless.limit
    horizon = FiniteHorizon(TEXT_ORACLE, FALLING_COST, LearningCost("quadratic", 0.6), 12, 5)
    rules = extract_rules(horizon)
    assert (rules.rounds, rules.capacity) == (12, 5)
    assert rules.end_cost == pytest.approx(0.6 * np.arange(6) ** 2)


def test_rules_and_settings_are_blind_to_the_probabilities() -> None:
    known, unlike = (extract_rules(p) for p in (reference_queue(), unlike_queue()))
    for name in Rules._fields:
        ours = getattr(known, name)
        assert np.array_equal(ours, getattr(unlike, name)), name
        assert ours == pytest.approx(getattr(REFERENCE_RULES, name)), name
    assert default_settings(reference_queue()) == default_settings(unlike_queue())
    assert printed_settings(reference_queue()) == printed_settings(unlike_queue())
    assert all(np.shape(part) != (3, 3) for part in known)
