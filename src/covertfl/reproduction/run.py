"""Running experiments by name.

Each experiment yields one JSON file with its result, settings, date, machine, command and versions;
its tables and pictures are made from that file alone.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
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
LANES = 2  # processes for experiments on a GPU, and for others beside them
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

    With a GPU, several run at the same time, in processes of their own (`list_lanes`).

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
    lanes, found, lock = list_lanes(names, request.device), dict[str, dict[str, Any]](), Lock()

    def add(result: dict[str, Any]) -> None:
        with lock:
            found[result["experiment"]] = result
            if on_result is not None:
                on_result(result)

    with ExitStack() as stack:
        others = [stack.enter_context(_work_beside(lane, request, out, add)) for lane in lanes[1:]]
        for name in lanes[0]:
            add(_run_one(name, request, out, on_progress))
        if others and on_progress is not None:
            left = [name for name in names if name not in found]
            on_progress(f"{', '.join(left)}: in other processes", 0.0)
        for wait in others:
            wait()
    return [found[name] for name in names]


def list_lanes(names: Sequence[str], device: str) -> list[list[str]]:
    """Return the experiments that run one after the other in each process, the first in this one.

    While one prepares its work, a GPU trains for another; those that need no GPU have processes of
    their own.  An experiment that shares parts with an earlier one follows it.
    """
    if device == "cpu":
        return [list(names)]
    lanes: list[list[str]] = []
    for uses_gpu in (True, False):
        own: list[list[str]] = [[] for _ in range(LANES)]
        for name in names:
            if EXPERIMENTS[name].uses_gpu == uses_gpu:
                shared = [lane for lane in own if EXPERIMENTS[name].after in lane]
                (shared or [min(own, key=len)])[0].append(name)
        lanes += [lane for lane in own if lane]
    return lanes


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
    names: Sequence[str], request: Request, out: Path, on_result: Callable[[dict[str, Any]], None]
) -> Iterator[Callable[[], None]]:
    """Run experiments in another process, which ends with the block; yield a function to wait."""
    # A new process, not a copy of this one: it must not inherit a GPU.
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run_for, args=(writer, list(names), request, out))
    process.start()
    writer.close()

    def receive() -> None:
        left = list(names)
        while left:
            try:
                result = reader.recv()
            except EOFError:
                process.join()
                raise CovertflError(
                    f"the process for {', '.join(left)} ended with status {process.exitcode}"
                ) from None
            if isinstance(result, CovertflError):
                raise result
            on_result(result)
            left.remove(result["experiment"])

    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive)
        try:
            yield received.result
        finally:
            process.terminate()
            process.join()


def _run_for(writer: Connection, names: Sequence[str], request: Request, out: Path) -> None:
    """Run experiments and send each result, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles an interrupt
    try:
        for name in names:
            writer.send(_run_one(name, request, out))
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
