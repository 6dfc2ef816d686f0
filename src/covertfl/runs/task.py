"""The task of a run, made from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.runs.settings import DirichletSplit, RunSections, RunSettings
from covertfl.tasks.function import FunctionTask
from covertfl.tasks.mapped import add_public_map
from covertfl.tasks.registry import OWN, TASKS, make_task
from covertfl.tasks.task import DataSettings, TrainingTask
from covertfl.tasks.wrong_labels import add_wrong_labels


def find_training_task(settings: RunSettings) -> TrainingTask:
    """Return the task of a run; raise InvalidInput if it has no clients."""
    task = find_task(settings)
    if isinstance(task, FunctionTask):
        raise InvalidInput(f"{settings.name}: task must have clients, got function")
    return task


@contextlib.contextmanager
def naming_run_file(settings: RunSettings) -> Iterator[None]:
    """Add the name of the run file to the message of an InvalidInput."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name}: {error}") from error


def find_task(settings: RunSettings) -> TrainingTask | FunctionTask:
    """Return the task of a run, with the public map and wrong labels if its settings have them."""
    task = _make_task(settings)
    if isinstance(task, FunctionTask):
        return task
    if settings.sections.data.map == "public" and task.public_map is None:
        with naming_run_file(settings):
            task = add_public_map(task)
    has_noise = settings.sections.federation.label_noise is not None
    return add_wrong_labels(task) if has_noise else task


def is_built_in(sections: RunSections) -> bool:
    """Return whether the task of a run comes with the package."""
    return sections.task in TASKS


def make_named_task(name: str, settings: RunSettings | None = None) -> TrainingTask:
    """Return the task that a name stands for, for the data of a run if there is one.

    Raises
    ------
    InvalidInput
        if there is no such task, or it has no clients
    """
    data = DataSettings(name) if settings is None else _describe_data(settings)
    task = make_task(replace(data, task=name))
    if isinstance(task, FunctionTask):
        raise InvalidInput("task must be one that trains a model, got function")
    return task


def _make_task(settings: RunSettings) -> TrainingTask | FunctionTask:
    if settings.sections.task != OWN:
        with naming_run_file(settings):
            task = make_task(_describe_data(settings))
        if not is_built_in(settings.sections) and isinstance(task, TrainingTask):
            settings.require_clients(task)
        return task
    if settings.own_task is None:
        raise InvalidInput(
            f"{settings.name}: task = own is for tasks made in Python: pass a TrainingTask to Run"
        )
    return settings.own_task


def _describe_data(settings: RunSettings) -> DataSettings:
    sections, data = settings.sections, settings.sections.data
    return DataSettings(
        task=sections.task,
        seed=sections.seed if data.seed is None else data.seed,
        clients=sections.federation.clients,
        split=data.split.dirichlet if isinstance(data.split, DirichletSplit) else "iid",
        **data.model_dump(exclude={"split", "seed", "map", "balance"}),
        # What the eavesdropper holds must not change what clients hold.
        same_clients=True,
        **(_describe_oracle(settings) if sections.task == "function" else {}),
    )


def _describe_oracle(settings: RunSettings) -> dict[str, Any]:
    """Return what the function task takes from the problem and the decoys."""
    success = tuple(settings.problem.oracle.success.tolist())
    return {"success": success, "decoys": settings.sections.decoy.count}
