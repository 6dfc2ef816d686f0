"""Running experiments by name.

Each experiment yields one JSON file with its result, settings, date, machine, command and versions;
its tables and pictures are made from that file alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.runs.build import require_torch
from paper.experiment import Request
from paper.page.markdown import StoredResult
from paper.page.page import draw_pictures, make_folder, render_section, write_page
from paper.page.results import RESULT_SUFFIX, describe_making, format_result, load_results
from paper.page.workers import Task, plan_tasks, run_tasks
from paper.registry import EXPERIMENTS
from paper.trials.cells import CellStore

ALL, PAGE = "all", "page"
MEMORY = 10e9  # bytes on the GPU, more than a process takes for the largest stack of networks
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

    With a GPU, several run at the same time, in several processes (`workers`).

    Parameters
    ----------
    on_progress : called with a description and the share that is done: of the experiment, or of
        all parts of experiments if there are several processes
    on_result : called with each result as soon as it is known
    """
    _check_seeds(names, request)
    for folder in (out, out / CELLS):  # before any computation
        make_folder(folder)
    check = partial(_check_needs, names, request.device)
    found: dict[str, dict[str, Any]] = {}

    def add(result: dict[str, Any], seconds: float | None = None) -> None:
        if seconds is not None:
            result["made"]["wall_seconds"] = round(seconds, 1)
        found[result["experiment"]] = result
        write_atomically(out / f"{result['experiment']}{RESULT_SUFFIX}", format_result(result))
        draw_pictures([result], out)
        if on_result is not None:
            on_result(result)

    report = on_progress or (lambda detail, share: None)
    if request.device == "cpu":
        check()
        for name in names:
            add(_run_one(name, request, out, report))
    else:
        tasks = plan_tasks([EXPERIMENTS[name] for name in names], request)
        run_tasks(
            tasks,
            partial(_run_task, out),
            check=check,
            prepare=partial(check, may_download=False),
            count_room=partial(_count_room, request.device),
            on_progress=report,
            on_result=add,
        )
    return [found[name] for name in names]


def _check_seeds(names: Sequence[str], request: Request) -> None:
    """Raise `InvalidInput` if the first seed is chosen for an experiment without numbered seeds."""
    other = [name for name in names if EXPERIMENTS[name].seeds is None]
    if request.first_seed != Request().first_seed and other:
        known = [name for name, one in EXPERIMENTS.items() if one.seeds is not None]
        raise InvalidInput(f"first_seed is only for {', '.join(known)}, got {', '.join(other)}")


def _check_needs(names: Sequence[str], device: str, *, may_download: bool = True) -> None:
    """Load what experiments need; raise `Missing` or `InvalidInput` if something is not there."""
    if device != "cpu":
        require_torch()
        from covertfl.kernels.choose import check_device

        check_device(device)
    for name in names:
        if (check := EXPERIMENTS[name].check) is not None:
            check(may_download)


def _count_room(device: str) -> int:
    """Return the number of processes that a GPU has memory for, at least 1."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return max(int(free // MEMORY), 1)


def _run_task(out: Path, task: Task) -> dict[str, Any] | None:
    """Run an experiment, or a part of it, in one of several processes."""
    request = task.request if task.uses_gpu else replace(task.request, device="cpu")
    experiment, store = EXPERIMENTS[task.name], CellStore(out / CELLS)
    if task.part is None:
        return _run_one(task.name, request, out, lambda detail, share: None)
    if experiment.run_part is not None:
        experiment.run_part(request, store, task.part)
    else:
        experiment.run(request, store)
    return None


def _run_one(
    name: str, request: Request, out: Path, on_progress: Callable[[str, float], None]
) -> dict[str, Any]:
    """Run one experiment."""
    experiment = EXPERIMENTS[name]

    def report(detail: str, share: float) -> None:
        on_progress(f"{name}: {detail}", share)

    started = time.perf_counter()
    store = CellStore(out / CELLS, report)
    report("preparing", 0.0)
    content = experiment.run(request, store)
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
