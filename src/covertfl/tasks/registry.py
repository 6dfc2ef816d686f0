"""The tasks by name.

To add one, write a function from `DataSettings` to a `TrainingTask` and enter it in `TASKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from covertfl.errors import InvalidInput
from covertfl.tasks.digits import make_digits_task
from covertfl.tasks.embeddings import make_embeddings_task
from covertfl.tasks.function import FunctionTask, make_function_task
from covertfl.tasks.mnist import make_mnist_task
from covertfl.tasks.task import DataSettings, TrainingTask
from covertfl.tasks.toxicity import make_toxicity_task

__all__ = ["TASKS", "DataSettings", "make_task"]

TASKS: Mapping[str, Callable[[DataSettings], TrainingTask | FunctionTask]] = {
    "toxicity": make_toxicity_task,
    "embeddings": make_embeddings_task,
    "digits": make_digits_task,
    "mnist": make_mnist_task,
    "function": make_function_task,
}


def make_task(settings: DataSettings) -> TrainingTask | FunctionTask:
    """Make the task that the settings name.

    Raises
    ------
    InvalidInput
        if the name is unknown or a setting does not fit the task
    Missing
        if its data or a dependency is not available
    """
    if settings.task not in TASKS:
        raise InvalidInput(f"task must be {', '.join(TASKS)}, got {settings.task}")
    return TASKS[settings.task](settings)
