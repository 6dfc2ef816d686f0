"""The tasks by name: those built in, and plug-ins.

To add one, write a function from `DataSettings` to a `TrainingTask` and enter it in `TASKS`.  That
of a plug-in may also have no parameters (docs/extending.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.plugins import PlugIns, explaining
from covertfl.tasks.digits import make_digits_task
from covertfl.tasks.embeddings import make_embeddings_task
from covertfl.tasks.mnist import make_mnist_task
from covertfl.tasks.task import DataSettings, TrainingTask
from covertfl.tasks.toxicity import make_toxicity_task

__all__ = ["OWN", "TASKS", "TASK_PLUG_INS", "DataSettings", "make_task"]

TASKS: Mapping[str, Callable[[DataSettings], TrainingTask]] = {
    "toxicity": make_toxicity_task,
    "embeddings": make_embeddings_task,
    "digits": make_digits_task,
    "mnist": make_mnist_task,
}

OWN = "own"  # of runs whose task is passed in Python
TASK_PLUG_INS = PlugIns("task", "covertfl.tasks", TASKS, reserved=(OWN,))


def make_task(settings: DataSettings) -> TrainingTask:
    """Make the task that the settings name.

    Raises
    ------
    InvalidInput
        if the name is unknown or a setting does not fit the task; if a plug-in cannot be imported
        or makes no task
    Missing
        if its data or a dependency is not available
    """
    make = TASK_PLUG_INS.find(settings.task, "task")
    return make(settings) if settings.task in TASKS else _make_plugged(make, settings)


def _make_plugged(make: Any, settings: DataSettings) -> TrainingTask:
    name = settings.task
    if not callable(make):
        raise InvalidInput(f"task {name} must be a function, got {type(make).__name__}")
    with explaining(f"task {name} cannot be made"):
        made = make(settings) if _has_parameters(make) else make()
    if not isinstance(made, TrainingTask):
        raise InvalidInput(f"task {name} must return a TrainingTask, got {type(made).__name__}")
    return made


def _has_parameters(make: Callable[..., Any]) -> bool:
    """Return whether a function cannot be called without an argument."""
    parameters = inspect.signature(make).parameters.values()
    needed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.kind in needed and each.default is each.empty for each in parameters)
