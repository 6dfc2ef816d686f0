"""Training runs from settings to finished folders: one seed or many, new or resumed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.runs.files import SETTINGS, SUMMARY, RunSummary, read_summary
from covertfl.runs.settings import RunSettings
from covertfl.runs.simulated import run_together
from covertfl.runs.train import (
    KernelCache,
    OnRound,
    PreparedRun,
    check_folder,
    prepare_run,
    require_no_service,
    require_torch,
    watch_run,
)
from covertfl.seeding import LARGEST_SEED


def train(
    settings: RunSettings,
    out: str | os.PathLike[str],
    *,
    seeds: int | None = None,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
) -> list[RunSummary]:
    """Train one run into `out`, or several seeds into `out`/seed-0, ...; return their summaries.

    Parameters
    ----------
    out : folder of the run, or of the folders of all seeds
    seeds : number of seeds, counted from the run file's; None for one run in `out` itself
    resume : continue existing runs; finished ones are left as they are
    force : replace existing runs
    on_round : called with the progress after every round
    """
    require_torch()
    if seeds is None:
        return train_all([(settings, out)], resume=resume, force=force, on_round=on_round)
    if (Path(out) / SETTINGS).exists():
        raise InvalidInput(
            f"{out} is the folder of a single run, and seeds (--seeds) go into folders of their "
            "own: choose another folder, or train one run without seeds"
        )
    first = settings.seed
    if seeds < 1 or first + seeds - 1 > LARGEST_SEED:
        raise InvalidInput(
            f"seeds must be at least 1, and the last seed at most {LARGEST_SEED}, "
            f"got {seeds} seeds from {first}"
        )
    runs = [(settings.with_seed(first + n), Path(out) / f"seed-{n}") for n in range(seeds)]
    return train_all(runs, resume=resume, force=force, on_round=on_round)


def train_all(
    runs: Sequence[tuple[RunSettings, str | os.PathLike[str]]],
    *,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
) -> list[RunSummary]:
    """Train runs side by side, each into its own folder, and return their summaries in order.

    Runs on Flower are carried out one after the other.  `resume`, `force` and `on_round` are as in
    `train`.
    """
    require_torch()
    for settings, _ in runs:
        require_no_service(settings)
    places = [(settings, Path(path)) for settings, path in runs]
    for settings, path in places:
        check_folder(settings, path, resume=resume, force=force)
    todo = [place for place in places if not (resume and is_finished(*place))]
    simulated = [place for place in todo if place[0].sections.engine.kind == "simulated"]
    _train_simulated(simulated, resume=resume, force=force, on_round=on_round)
    for place in todo:
        if place not in simulated:
            _train_on_flower(*place, resume=resume, force=force, on_round=on_round)
    return [read_summary(path) for _, path in places]


def _train_simulated(
    runs: Sequence[tuple[RunSettings, Path]], *, resume: bool, force: bool, on_round: OnRound | None
) -> None:
    """Train runs on the simulated engine, which batches their jobs."""
    started = time.perf_counter()
    prepared: list[PreparedRun] = []
    kernels = KernelCache()
    try:
        for settings, path in runs:
            prepared.append(prepare_run(settings, path, kernels, resume=resume, force=force))
        run_together([(run.federation, watch_run(run, on_round, started)) for run in prepared])
    finally:
        for run in prepared:
            run.folder.close()


def _train_on_flower(
    settings: RunSettings, path: Path, *, resume: bool, force: bool, on_round: OnRound | None
) -> None:
    """Train a run on Flower, in the mode that its run file sets."""
    mode = settings.sections.engine.mode
    run_it: Callable[..., None]
    if mode == "in-process":
        from covertfl.engines.flower.server_app import run_in_process

        run_it = run_in_process
    elif mode == "simulation":
        from covertfl.engines.flower.simulation import run_simulation

        run_it = run_simulation
    else:
        from covertfl.engines.flower.deployment.run import deploy

        run_it = deploy
    run_it(settings, path, resume=resume, force=force, on_round=on_round)


def is_finished(settings: RunSettings, path: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds a run that has done all its rounds."""
    folder = Path(path)
    return (folder / SUMMARY).exists() and read_summary(folder).rounds >= settings.rounds
