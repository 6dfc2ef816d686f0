"""Running experiments by name.

Each experiment yields one JSON file with its result, settings, date, machine, command and versions;
its tables and pictures are made from that file alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.runs.train import require_torch
from paper import (
    figure_cost,
    figure_spga,
    figure_tracking,
    mnist_learners,
    partial_oracle,
    random_policy,
    table_fedsgd,
    table_main,
    table_mnist,
    table_states,
    theory,
)
from paper.cells import CellStore, open_pool
from paper.experiment import Experiment, Request
from paper.page import draw_pictures, render_section, write_page
from paper.results import (
    RESULT_SUFFIX,
    StoredResult,
    describe_making,
    format_result,
    load_results,
    make_folder,
)

# In the order of the page.
EXPERIMENTS: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        table_main.TABLE,
        table_main.FIGURE,
        figure_spga.FIGURE,
        figure_tracking.FIGURE,
        figure_cost.FIGURE,
        theory.THEORY,
        partial_oracle.PRICE,
        table_mnist.TABLE_20,
        table_mnist.TABLE_50,
        table_fedsgd.TABLE,
        table_states.TABLE,
        random_policy.COMPARISON,
        mnist_learners.LEARNERS,
    )
}
ALL, PAGE = "all", "page"
CELLS = "cells"  # sub-folder of computed parts
OTHER_READINGS = ("paper-text", "paper-code")  # each is a sub-folder of the results


def choose_names(asked: Sequence[str]) -> list[str]:
    """Return the experiments that names, or `all`, stand for, each once."""
    for name in asked:
        if name not in (*EXPERIMENTS, ALL):
            raise InvalidInput(
                f"an experiment must be {', '.join((*EXPERIMENTS, ALL, PAGE))}, got {name!r}"
            )
    return list(EXPERIMENTS) if ALL in asked else list(dict.fromkeys(asked))


def reproduce(
    names: Sequence[str],
    request: Request,
    out: Path,
    *,
    on_progress: Callable[[str, float], None] | None = None,
    on_result: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run experiments; stored parts are not computed again.

    Parameters
    ----------
    on_progress : called with a description and the share that is done: of the experiment
    on_result : called with each result as soon as it is known
    """
    _check_seeds(names, request)
    for folder in (out, out / CELLS):  # before any computation
        make_folder(folder)
    _check_needs(names, request.device)
    found = []
    with open_pool() as pool:
        for name in names:
            result = _run_one(name, request, out, on_progress, pool)
            write_atomically(out / f"{name}{RESULT_SUFFIX}", format_result(result))
            draw_pictures([result], out)
            if on_result is not None:
                on_result(result)
            found.append(result)
    return found


def _check_seeds(names: Sequence[str], request: Request) -> None:
    """Raise `InvalidInput` if the first seed is chosen for an experiment without numbered seeds."""
    other = [name for name in names if EXPERIMENTS[name].seeds is None]
    if request.first_seed != Request().first_seed and other:
        known = [name for name, one in EXPERIMENTS.items() if one.seeds is not None]
        raise InvalidInput(f"first_seed is only for {', '.join(known)}, got {', '.join(other)}")


def _check_needs(names: Sequence[str], device: str) -> None:
    """Load what experiments need; raise `Missing` or `InvalidInput` if something is not there."""
    if device != "cpu":
        require_torch()
        from covertfl.kernels.choose import check_device

        check_device(device)
    for name in names:
        if (check := EXPERIMENTS[name].check) is not None:
            check()


def _run_one(
    name: str,
    request: Request,
    out: Path,
    on_progress: Callable[[str, float], None] | None,
    pool: ProcessPoolExecutor | None,
) -> dict[str, Any]:
    """Run one experiment; one that does not use the GPU always uses the CPU."""
    experiment = EXPERIMENTS[name]

    def report(detail: str, share: float) -> None:
        if on_progress is not None:
            on_progress(f"{name}: {detail}", share)

    started = time.perf_counter()
    store = CellStore(out / CELLS, report, pool)
    report("preparing", 0.0)
    own = request if experiment.uses_gpu else replace(request, device="cpu")
    content = experiment.run(own, store)
    wall = time.perf_counter() - started
    return {
        "experiment": name,
        "title": experiment.title,
        "paper_place": experiment.paper,
        "made": describe_making(name, request, store.seconds, wall),
        **content,
    }


def rebuild_page(results: Path, page: Path) -> None:
    """Write the page about all results of a folder and its sub-folders, with pictures."""
    found = _load_checked(results)
    if not found:
        raise InvalidInput(f"{results} holds no results: run python -m paper first")
    others = {reading: _load_checked(results / reading) for reading in OTHER_READINGS}
    write_page(found, page, others)


def _load_checked(folder: Path) -> list[StoredResult]:
    """Read results; raise `InvalidInput` if one, as of another version, yields no section."""
    results = load_results(folder, list(EXPERIMENTS))
    for result in results:
        try:
            render_section(result)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            path = folder / f"{result['experiment']}{RESULT_SUFFIX}"
            raise InvalidInput(
                f"{path} is not a result of this version: {type(error).__name__} {error}"
            ) from error
    return results
