"""The shipped problems, by kind."""

from __future__ import annotations

from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import read_preset


def horizon_preset(name: str) -> FiniteHorizon:
    """Return a shipped horizon."""
    problem = read_preset(name).problem
    assert isinstance(problem, FiniteHorizon)
    return problem


def queue_preset(name: str) -> QueueProblem:
    """Return a shipped queue."""
    problem = read_preset(name).problem
    assert isinstance(problem, QueueProblem)
    return problem
