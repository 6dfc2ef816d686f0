"""Running experiments by name.

Each experiment yields one JSON file with its result, settings, date, machine, command and versions;
its tables and pictures are made from that file alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from covertfl.errors import CovertflError, InvalidInput
from covertfl.experiments.experiment import Request
from covertfl.experiments.registry import EXPERIMENTS
from covertfl.experiments.trials.cells import CellStore
from covertfl.files.atomic import write_atomically
from covertfl.reproduction.markdown import StoredResult
from covertfl.reproduction.page import draw_pictures, make_folder, render_section, write_page
from covertfl.reproduction.results import (
    RESULT_SUFFIX,
    describe_making,
    format_result,
    load_results,
)
from covertfl.runs.build import require_torch

ALL, PAGE = "all", "page"
CELLS = "cells"  # sub-folder of computed parts
OTHER_READINGS = ("paper-text", "paper-code")  # each is a sub-folder of the results


def choose_names(name: str) -> list[str]:
    """Return the experiments that a name stands for."""
    if name == ALL:
        return list(EXPERIMENTS)
    if name not in EXPERIMENTS:
        raise InvalidInput(
            f"an experiment must be {', '.join((*EXPERIMENTS, ALL, PAGE))}, got {name!r}"
        )
    return [name]


def reproduce(
    names: Sequence[str],
    request: Request,
    out: Path,
    *,
    on_progress: Callable[[str, float], None] | None = None,
    on_result: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Run experiments one after the other; stored parts are not computed again.

    If some train on a GPU, the others run at the same time in another process.

    Parameters
    ----------
    on_progress : called with a description and the share of the experiment that is done
    on_result : called with each result as soon as it is known
    """
    _check_seeds(names, request)
    for folder in (out, out / CELLS):  # before any computation
        make_folder(folder)
    for name in names:
        if (check := EXPERIMENTS[name].check) is not None:
            check()
    if request.device != "cpu":
        require_torch()
        from covertfl.kernels.choose import check_device

        check_device(request.device)
    # Those that need no GPU, if others use one.
    apart = [name for name in names if not EXPERIMENTS[name].uses_gpu]
    if request.device == "cpu" or len(apart) == len(names):
        apart = []
    found: dict[str, dict[str, Any]] = {}

    def add(result: dict[str, Any]) -> None:
        found[result["experiment"]] = result
        if on_result is not None:
            on_result(result)

    with _work_beside(apart, request, out) as others:
        for name in names:
            if name not in apart:
                add(_run_one(name, request, out, on_progress))
        if apart and on_progress is not None:
            on_progress(f"{', '.join(apart)}: on the processor", 0.0)
        for result in others():
            add(result)
    return [found[name] for name in names]


def _check_seeds(names: Sequence[str], request: Request) -> None:
    """Raise `InvalidInput` if the first seed is chosen for an experiment without numbered seeds."""
    other = [name for name in names if not EXPERIMENTS[name].numbers_seeds]
    if request.first_seed != Request().first_seed and other:
        known = [name for name, one in EXPERIMENTS.items() if one.numbers_seeds]
        raise InvalidInput(f"first_seed is only for {', '.join(known)}, got {', '.join(other)}")


def _run_one(
    name: str, request: Request, out: Path, on_progress: Callable[[str, float], None] | None = None
) -> dict[str, Any]:
    """Run one experiment and write its result and picture."""
    experiment = EXPERIMENTS[name]
    if not experiment.uses_gpu:
        request = replace(request, device="cpu")

    def report(detail: str, share: float) -> None:
        if on_progress is not None:
            on_progress(f"{name}: {detail}", share)

    started = time.perf_counter()
    store = CellStore(out / CELLS, report)
    report("preparing", 0.0)
    content = experiment.run(request, store)
    wall = time.perf_counter() - started
    result = {
        "experiment": name,
        "title": experiment.title,
        "paper_place": experiment.paper,
        "made": describe_making(name, request, store.seconds, wall),
        **content,
    }
    write_atomically(out / f"{name}{RESULT_SUFFIX}", format_result(result))
    draw_pictures([result], out)
    return result


@contextmanager
def _work_beside(
    names: Sequence[str], request: Request, out: Path
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Run experiments in another process, which ends with the block; yield a function to wait."""
    if not names:
        yield list
        return
    # A new process, not a copy of this one: it must not inherit a GPU.
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run_for, args=(writer, list(names), request, out))
    process.start()
    writer.close()

    def wait() -> list[dict[str, Any]]:
        try:
            results = reader.recv()
        except EOFError:
            process.join()
            raise CovertflError(
                f"the process for {', '.join(names)} ended with status {process.exitcode}"
            ) from None
        if isinstance(results, CovertflError):
            raise results
        found: list[dict[str, Any]] = results
        return found

    try:
        yield wait
    finally:
        process.terminate()
        process.join()


def _run_for(writer: Connection, names: Sequence[str], request: Request, out: Path) -> None:
    """Run experiments and send their results, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles an interrupt
    try:
        writer.send([_run_one(name, request, out) for name in names])
    except CovertflError as error:
        writer.send(error)


def rebuild_page(results: Path, page: Path) -> None:
    """Write the page about all results of a folder and its sub-folders, with pictures."""
    found = _load_checked(results)
    if not found:
        raise InvalidInput(f"{results} holds no results: run covertfl reproduce first")
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
