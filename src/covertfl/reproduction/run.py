"""Running experiments by name, and the files that come out of it.

Each experiment gives one JSON file with its result, settings, date, machine, command and versions;
its tables and pictures are made from that file alone.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import platform
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from covertfl.reproduction.page import (
    RESULT_SUFFIX,
    draw_pictures,
    load_results,
    render_section,
    write_page,
)
from covertfl.runs.build import require_torch
from covertfl.runs.run_file import list_versions

ALL, PAGE = "all", "page"
CELLS = "cells"  # sub-folder of finished parts
CODE = "paper-code"  # sub-folder of results in that reading, for the page
NUMBER_WORDS = {1: "one core", 2: "two cores", 4: "four cores", 8: "eight cores"}


def choose_names(name: str) -> list[str]:
    """The experiments that a name stands for."""
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
    """Run experiments one after the other; parts that are there already are not computed again.

    Where some train on a GPU, those that do not are run beside them by another process.

    Parameters
    ----------
    out : folder of result files and pictures
    tell : told of progress in words, and of the share of the experiment that is done
    told : called with each result as soon as it is known
    """
    _check_folder(out)
    for name in names:
        EXPERIMENTS[name].check()
    if request.device != "cpu":
        require_torch()
        from covertfl.kernels.choose import check_device

        check_device(request.device)
    apart = choose_apart(names, request)
    found: dict[str, dict[str, Any]] = {}
    with _work_beside(apart, request, out) as others:
        for name in names:
            if name not in apart:
                found[name] = _run_one(name, request, out, on_progress)
                if on_result is not None:
                    on_result(found[name])
        if apart and on_progress is not None:
            on_progress(f"{', '.join(apart)}: on the processor", 0.0)
        for result in others():
            found[result["experiment"]] = result
            if on_result is not None:
                on_result(result)
    return [found[name] for name in names]


def choose_apart(names: Sequence[str], request: Request) -> list[str]:
    """Experiments that need no GPU, where others keep one busy."""
    apart = [name for name in names if not EXPERIMENTS[name].uses_gpu]
    return apart if request.device != "cpu" and len(apart) < len(names) else []


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
    write_result(result, out)
    draw_pictures([result], out)
    return result


@contextmanager
def _work_beside(
    names: Sequence[str], request: Request, out: Path
) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Have experiments run by a process of its own, which ends with the block; gives results."""
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
    """Run experiments and send their results, or why there are none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the owner to act on
    try:
        writer.send([_run_one(name, request, out) for name in names])
    except CovertflError as error:
        writer.send(error)


def _check_folder(out: Path) -> None:
    """Refuse a place that results cannot be written to, before anything is computed."""
    for place in (out, out / CELLS):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{place} cannot be made: {error.strerror}") from error


def write_result(result: dict[str, Any], out: Path) -> Path:
    """Write one result file."""
    path = out / f"{result['experiment']}{RESULT_SUFFIX}"
    write_atomically(path, format_result(result))
    return path


def format_result(result: dict[str, Any]) -> str:
    """The text of a result file: one line for each entry of a list, so that changes are legible."""
    lines = []
    for key, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            entries = ",\n  ".join(json.dumps(entry, allow_nan=False) for entry in value)
            lines.append(f'"{key}": [\n  {entries}\n ]')
        else:
            lines.append(f'"{key}": {json.dumps(value, allow_nan=False)}')
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def describe_making(name: str, request: Request, seconds: float, wall: float) -> dict[str, Any]:
    """Date, machine, command and versions behind a result.

    Parameters
    ----------
    seconds : that went into its parts, whenever they were computed
    wall : from the beginning to the result; less where parts were there already
    """
    return {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "machine": describe_machine(request.device),
        "command": format_command(name, request),
        "reading": request.reading,
        "quick": request.quick,
        "seconds": round(seconds, 1),
        "wall_seconds": round(wall, 1),
        "versions": list_versions(),
    }


def format_command(name: str, request: Request) -> str:
    """The command that makes a result again."""
    words = ["covertfl", "reproduce", name]
    if request.reading != Request().reading:
        words += ["--preset", request.reading]
    if request.seeds is not None:
        words += ["--seeds", str(request.seeds)]
    if request.quick:
        words.append("--quick")
    if request.device != Request().device:
        words += ["--device", request.device]
    return shlex.join(words)


def describe_machine(device: str) -> str:
    """The class of a machine in general words."""
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    cores = os.cpu_count() or 1
    architecture = platform.machine().replace("_", "-")
    return f"{NUMBER_WORDS.get(cores, f'{cores} cores')}, {architecture}"


def rebuild_page(results: Path, page: Path) -> int:
    """Write the page about all results of a folder, with their pictures; gives their number."""
    found = load_results(results, list(EXPERIMENTS))
    code = load_results(results / CODE, list(EXPERIMENTS))
    if not found:
        raise InvalidInput(f"{results} holds no results: run covertfl reproduce before")
    for folder, some in ((results, found), (results / CODE, code)):
        for result in some:
            _check_result(folder, result)
    write_page(found, page, code)
    return len(found)


def _check_result(folder: Path, result: Mapping[str, Any]) -> None:
    """Refuse a file that a section cannot be made of, as one of another version."""
    try:
        render_section(result)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        path = folder / f"{result['experiment']}{RESULT_SUFFIX}"
        raise InvalidInput(
            f"{path} is not a result of this version: {type(error).__name__} {error}"
        ) from error
