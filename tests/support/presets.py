"""Presets by name, with their type checked."""

from __future__ import annotations

import covertfl as cf


def queue_preset(name: str) -> cf.QueueProblem:
    problem = cf.load_problem(name)
    assert isinstance(problem, cf.QueueProblem)
    return problem


def horizon_preset(name: str) -> cf.FiniteHorizon:
    problem = cf.load_problem(name)
    assert isinstance(problem, cf.FiniteHorizon)
    return problem
