"""Tasks whose inputs have passed the public map."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from covertfl.kernels.job import Examples
from covertfl.tasks.public_map import PublicMap, compute_public_map
from covertfl.tasks.task import TrainingTask


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
