"""The task of a run, made from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.runs.settings import RunSections, RunSettings
from covertfl.tasks.public_map import PublicMap, compute_public_map
from covertfl.tasks.registry import OWN, TASKS, make_task
from covertfl.tasks.task import DataSettings, TrainingTask


@contextlib.contextmanager
def naming_run_file(settings: RunSettings) -> Iterator[None]:
    """Add the name of the run file to the message of an InvalidInput."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name}: {error}") from error


def find_task(settings: RunSettings) -> TrainingTask:
    """Return the task of a run, with the public map if its settings have one."""
    task = _make_task(settings)
    if settings.sections.data.map == "public" and task.public_map is None:
        with naming_run_file(settings):
            task = add_public_map(task)
    return task


def is_built_in(sections: RunSections) -> bool:
    """Return whether the task of a run comes with the package."""
    return sections.task in TASKS


def make_named_task(name: str, settings: RunSettings | None = None) -> TrainingTask:
    """Return the task that a name stands for, for the data of a run if there is one.

    Raises
    ------
    InvalidInput
        if there is no such task
    """
    data = DataSettings(task=name) if settings is None else _describe_data(settings)
    return make_task(data.model_copy(update={"task": name}))


def _make_task(settings: RunSettings) -> TrainingTask:
    if settings.sections.task != OWN:
        with naming_run_file(settings):
            task = make_task(_describe_data(settings))
        if not is_built_in(settings.sections):
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
        **data.model_dump(exclude={"seed"}),
        task=sections.task,
        seed=sections.seed if data.seed is None else data.seed,
        clients=sections.federation.clients,
        # What the eavesdropper holds must not change what clients hold.
        same_clients=True,
    )


def add_public_map(task: TrainingTask) -> TrainingTask:
    """Return the task with all of its inputs mapped by the map of its public set."""
    found = compute_public_map(task.public, task.loss)
    key = _MapKey(found.fingerprint, found)
    train, public, validation = (
        _map_examples(part, key) if len(part) else part
        for part in (task.train, task.public, task.validation)
    )
    return replace(task, train=train, public=public, validation=validation, public_map=found)


@dataclass(frozen=True)
class _MapKey:
    """A map, the same as another if it was computed from the same public set."""

    fingerprint: str
    public_map: PublicMap = field(compare=False)


@lru_cache(maxsize=16)
def _map_examples(examples: Examples, key: _MapKey) -> Examples:
    """Return the examples mapped, once for all runs that share them."""
    return Examples(key.public_map.apply(examples.features), examples.labels)
