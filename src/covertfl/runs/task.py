"""The task of a run: built from the run file's [data], or made in Python; and its decoys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from covertfl.decoys.decoy import Decoy
from covertfl.decoys.registry import make_decoy
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalOptimizer
from covertfl.runs.settings import DirichletSplit, RunSections, RunSettings
from covertfl.tasks.function import FunctionTask
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings, TrainingTask


@contextlib.contextmanager
def naming_run_file(settings: RunSettings) -> Iterator[None]:
    """Add the name of the run file to the message of an InvalidInput."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name}: {error}") from error


def find_task(settings: RunSettings) -> TrainingTask | FunctionTask:
    """Return the task of a run."""
    if settings.sections.task != "own":
        with naming_run_file(settings):
            return make_task(_describe_data(settings.sections))
    if settings.own_task is None:
        raise InvalidInput(
            f"{settings.name}: task = own is for tasks made in Python, see RunSettings.with_task"
        )
    return settings.own_task


def find_training_task(settings: RunSettings) -> TrainingTask:
    """Return the task of a run; raise InvalidInput if it has no clients."""
    task = find_task(settings)
    if isinstance(task, FunctionTask):
        raise InvalidInput(f"{settings.name}: task must have clients, got function")
    return task


def make_decoys(task: TrainingTask, sections: RunSections) -> tuple[Decoy, ...]:
    """Return the decoy of each decoy trajectory."""
    section = sections.federation
    decoy = make_decoy(
        sections.decoy.kind,
        task,
        batch_size=section.batch_size,
        algorithm=section.algorithm,
        optimizer=LocalOptimizer(**section.optimizer.model_dump()),
    )
    return (decoy,) * sections.decoy.count  # decoys have no state, so one serves all trajectories


def _describe_data(sections: RunSections) -> DataSettings:
    data = sections.data
    return DataSettings(
        task=sections.task,
        seed=sections.seed,
        clients=sections.federation.clients,
        split=data.split.dirichlet if isinstance(data.split, DirichletSplit) else "iid",
        public_size=data.public_size,
        public_positive_share=data.public_positive_share,
        public_classes=data.public_classes,
        public_class_share=data.public_class_share,
        path=data.path,
        model=data.model,
        # What the eavesdropper holds must not change what clients hold.
        same_clients=True,
    )
