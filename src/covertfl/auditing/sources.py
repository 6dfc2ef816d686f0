"""What an audit is made from: a run's settings with its task, or a public folder alone."""

from __future__ import annotations

from pathlib import Path

from covertfl.auditing.means import add_task
from covertfl.auditing.overheard import Queries, overhear
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.errors import InvalidInput
from covertfl.kernels.choose import choose_kernel
from covertfl.kernels.job import LocalOptimizer
from covertfl.runs.files import SETTINGS
from covertfl.runs.run_file import read_run
from covertfl.runs.settings import RunSettings
from covertfl.runs.task import make_named_task
from covertfl.tasks.task import TrainingTask


def find_own_task(run: Path, task: TrainingTask | str | None) -> TrainingTask | None:
    """Return a task, or the one that a name stands for, made for the data of a run.

    Raises
    ------
    InvalidInput
        if the name stands for no task, or the run is not one of a task made in Python
    """
    if task is None:
        return None
    settings = read_run(run / SETTINGS) if (run / SETTINGS).exists() else None
    if settings is not None and settings.sections.task != "own":
        raise InvalidInput(
            f"{settings.name}: task = {settings.sections.task} is known from the run file; a task "
            "is given for runs whose task was made in Python, and for public folders"
        )
    return make_named_task(task, settings) if isinstance(task, str) else task


def read_settings(path: Path, task: TrainingTask | None) -> RunSettings:
    """Return the settings of a run's folder, with the task that was made in Python, if given."""
    settings = read_run(path / SETTINGS)
    return settings if task is None else settings.with_task(task)


def overhear_alone(
    path: Path, *, trajectories: int | None, task: TrainingTask | None
) -> tuple[Queries, Means]:
    """Return the queries of a folder without settings, and what eavesdroppers have besides.

    Parameters
    ----------
    trajectories : number of trajectories, None if unknown
    task : whose model, public set and data of one client they have; None for nothing

    Raises
    ------
    InvalidInput
        if the folder holds no queries, or those of another model
    """
    public = path / "public" if (path / "public").is_dir() else path
    if not (public / "rounds.jsonl").exists():
        raise InvalidInput(
            f"{public} is neither the folder of a run nor a public folder: "
            "run.toml or rounds.jsonl is needed"
        )
    if task is None:
        return overhear(public, trajectories=trajectories), Means()
    kernel = choose_kernel(task.make_model, task.loss, LocalOptimizer())
    queries = overhear(public, kernel.layout, trajectories=trajectories)
    return queries, add_task(Means(), task, kernel)
