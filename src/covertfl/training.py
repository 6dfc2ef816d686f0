"""Training runs from settings to finished folders: one seed or many, new or resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from covertfl.engines.simulated import run_together
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.toml import read_text
from covertfl.kernels.weights import Layout, serialise
from covertfl.runs.build import (
    KernelCache,
    OnRound,
    PreparedRun,
    check_place,
    prepare_run,
    require_torch,
    watch_run,
)
from covertfl.runs.run_file import LARGEST_SEED, RunSettings
from covertfl.runs.transcript import SUMMARY, read_checkpoint


def train(
    settings: RunSettings,
    out: Path,
    *,
    seeds: int | None = None,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
) -> list[dict[str, Any]]:
    """Train one run into `out`, or several seeds into `out`/seed-0, seed-1 ...; gives summaries.

    Parameters
    ----------
    seeds : how many, counted from the run file's seed; None for one run in `out` itself
    resume : go on with runs that are there; those that have ended are left as they are
    force : replace them
    """
    require_torch()
    places = [(settings, out)]
    if seeds is not None:
        if seeds < 1 or settings.seed + seeds - 1 > LARGEST_SEED:
            raise InvalidInput(
                f"seeds must be at least 1 and end at {LARGEST_SEED} or before, got {seeds} "
                f"from {settings.seed} on"
            )
        numbers = range(settings.seed, settings.seed + seeds)
        places = [
            (settings.with_seed(seed), out / f"seed-{number}")
            for number, seed in enumerate(numbers)
        ]
    return train_all(places, resume=resume, force=force, on_round=on_round)


def train_all(
    places: Sequence[tuple[RunSettings, Path]],
    *,
    resume: bool = False,
    force: bool = False,
    on_round: OnRound | None = None,
) -> list[dict[str, Any]]:
    """Train runs side by side, each into its own folder; gives their summaries in order.

    Runs on Flower are carried out one after the other.
    """
    require_torch()
    for settings, path in places:
        check_place(settings, path, resume=resume, force=force)
    todo = [place for place in places if not (resume and is_finished(*place))]
    simulated = [place for place in todo if place[0].sections.engine.kind == "simulated"]
    _train_simulated(simulated, resume=resume, force=force, on_round=on_round)
    for place in todo:
        if place not in simulated:
            _train_on_flower(*place, resume=resume, force=force, on_round=on_round)
    return [read_summary(path) for _, path in places]


def _train_simulated(
    places: Sequence[tuple[RunSettings, Path]],
    *,
    resume: bool,
    force: bool,
    on_round: OnRound | None,
) -> None:
    """Train runs of the simulated engine together."""
    started = time.perf_counter()
    prepared: list[PreparedRun] = []
    kernels = KernelCache()
    try:
        for settings, path in places:
            prepared.append(prepare_run(settings, path, kernels, resume=resume, force=force))
        _drive(prepared, on_round, started)
    finally:
        for run in prepared:
            run.folder.close()


def _train_on_flower(
    settings: RunSettings, path: Path, *, resume: bool, force: bool, on_round: OnRound | None
) -> None:
    """Train a run on Flower, in the way that its run file says."""
    mode = settings.sections.engine.mode
    if mode == "in-process":
        from covertfl.engines.flower.server_app import run_in_process as run_it
    elif mode == "simulation":
        from covertfl.engines.flower.simulation import run_simulation as run_it
    else:
        from covertfl.engines.flower.deployment.run import deploy as run_it
    run_it(settings, path, resume=resume, force=force, on_round=on_round)


def _drive(runs: Sequence[PreparedRun], on_round: OnRound | None, started: float) -> None:
    rounds = [(run.federation, watch_run(run, on_round, started)) for run in runs]
    run_together(rounds)


# --- finished runs ----------------------------------------------------------------------------


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a finished run."""
    text = read_text(path / SUMMARY, "the folder of a finished run")
    try:
        summary = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{path / SUMMARY} is not JSON: {error}") from error
    if not (isinstance(summary, dict) and isinstance(summary.get("rounds"), int)):
        raise InvalidInput(f"{path / SUMMARY} is not the summary of a run")
    return summary


def is_finished(settings: RunSettings, path: Path) -> bool:
    """Whether a folder holds a run that has done all its rounds."""
    if not (path / SUMMARY).exists():
        return False
    return int(read_summary(path)["rounds"]) >= settings.rounds


def export_model(path: Path, output: Path) -> dict[str, Any]:
    """Write the true weights of a run as a safetensors file; gives what is said about it.

    They come from the checkpoint, never from what clients were sent.
    """
    checkpoint = read_checkpoint(path)
    if checkpoint is None:
        raise InvalidInput(f"{path} holds no run with a finished round")
    parameters = checkpoint.facts["parameters"]
    layout = Layout(
        tuple(name for name, _ in parameters), tuple(tuple(shape) for _, shape in parameters)
    )
    write_atomically(output, serialise(layout, checkpoint.arrays["true"]), mode=0o600)
    return {
        "output": str(output),
        "rounds": checkpoint.round,
        "updates_done": checkpoint.facts["updates"],
    }
