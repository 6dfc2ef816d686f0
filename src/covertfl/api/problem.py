"""A problem in every form in which it may be given: an object, a preset's name or a file."""

from __future__ import annotations

import os
from typing import Any

from covertfl.decision.arguments import Source, read_path
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.decision.problem_file import LoadedProblem, list_presets, read_preset, read_problem
from covertfl.errors import InvalidInput

ProblemSource = FiniteHorizon | QueueProblem | LoadedProblem | Source


def load_problem(source: Source) -> Problem:
    """Return the problem of a shipped preset, such as "sound/queue", or of a problem file.

    A file that has the name of a preset is reached as "./sound/queue".  Raise `InvalidInput` in
    one sentence that names file, key, what is allowed and what came.
    """
    return resolve_problem(source).problem


def resolve_problem(source: ProblemSource) -> LoadedProblem:
    """Return a problem with its name in messages and the evidence behind its oracle."""
    if isinstance(source, LoadedProblem):
        return source
    if isinstance(source, FiniteHorizon | QueueProblem):
        return LoadedProblem("problem", source, None)
    if not isinstance(source, str | os.PathLike):
        raise InvalidInput(
            f"problem must be a problem, the name of a preset or a path, got {source!r}"
        )
    name = str(read_path(source, "problem"))
    return read_preset(name) if source in list_presets() else read_problem(name)


def describe_problem(problem: Problem) -> dict[str, Any]:
    """Return the sections of the problem file that describes a problem."""
    cost = problem.learning_cost
    learning: dict[str, Any] = {"shape": cost.shape, "scale": cost.scale}
    if cost.shape == "table":
        learning["values"] = list(cost.values)
    sections: dict[str, Any] = {
        "oracle": {
            "transition": problem.oracle.transition.tolist(),
            "success": problem.oracle.success.tolist(),
        },
        "cost": {"privacy": problem.privacy_cost.tolist(), "learning": learning},
    }
    if isinstance(problem, FiniteHorizon):
        return {**sections, "horizon": {"rounds": problem.rounds, "updates": problem.updates}}
    learning["charged"] = cost.charged
    if cost.by_state:
        learning["by_state"] = list(cost.by_state)
    return {**sections, "queue": _describe_queue(problem)}


def _describe_queue(problem: QueueProblem) -> dict[str, Any]:
    sizes = problem.arrival_sizes
    arrivals: dict[str, Any] = {
        "arrival_prob": problem.arrival_prob,
        "arrival_size": problem.arrival_size,
    }
    if sizes is not None:
        arrivals = {"arrival_sizes": {str(size): prob for size, prob in sizes.items()}}
    section = {
        **arrivals,
        problem.limit_name: problem.limit,
        "minimise": problem.objective,
        "capacity": "auto" if problem.capacity is None else problem.capacity,
        "full_cost": problem.full_cost,
    }
    if problem.overflow_cost is not None:
        section["overflow_cost"] = problem.overflow_cost
    return section
