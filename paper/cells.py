"""Finished parts of experiments, one small file each, so that no part is computed twice.

A cell is found by the settings that determine it.  Experiments that need the same part share it.
Parts that are missing are computed side by side, in as many processes as there are cores.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import covertfl
from covertfl.errors import CovertflError, InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.text import read_object
from covertfl.kernels.job import count_cores

Key = Mapping[str, Any]
Compute = Callable[[], Mapping[str, Any]]  # can be sent to another process
Result = TypeVar("Result")


class CellStore:
    """Cells in a folder, which is created if necessary, and the progress of the work on them.

    Parameters
    ----------
    on_progress : called with a description and the share of the work that is done
    pool : processes that compute several parts side by side, None to compute them here
    """

    def __init__(
        self,
        folder: Path,
        on_progress: Callable[[str, float], None] | None = None,
        pool: ProcessPoolExecutor | None = None,
    ) -> None:
        self.folder = folder
        self._on_progress, self._pool = on_progress, pool
        self._started = time.perf_counter()
        self._used: dict[Path, float] = {}

    def find(self, key: Key) -> dict[str, Any] | None:
        """Return the content of a finished cell, None if there is none."""
        path = self._place(key)
        wrong = f"{path} is not a finished cell, remove it"
        if not path.exists():
            return None
        try:
            kept = read_object(path, "a finished cell")
        except InvalidInput as error:
            raise InvalidInput(f"{wrong}: {error}") from error
        # Readers rely on the form of the content, which is right if the same key was written here.
        if kept.get("key") != json.loads(json.dumps(dict(key))):
            raise InvalidInput(f"{wrong}: it has another key")
        seconds, content = kept.get("seconds"), kept.get("content")
        if not isinstance(seconds, int | float) or not isinstance(content, dict) or not content:
            raise InvalidInput(f"{wrong}: it has no content")
        self._used[path] = float(seconds)
        return content

    def keep(self, key: Key, content: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Write a finished cell and return its content as it will be read."""
        path = self._place(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path.parent} cannot be made: {error.strerror}") from error
        text = json.dumps({"key": dict(key), "seconds": seconds, "content": dict(content)})
        write_atomically(path, text + "\n")
        self._used[path] = seconds
        found: dict[str, Any] = json.loads(text)["content"]
        return found

    def work_out(self, parts: Mapping[str, tuple[Key, Compute]]) -> dict[str, dict[str, Any]]:
        """Return the contents of cells by name; compute those that are not there."""
        found = {name: self.find(key) for name, (key, _) in parts.items()}
        missing = [name for name, content in found.items() if content is None]
        for name, content, seconds in self.compute({name: parts[name][1] for name in missing}):
            found[name] = self.keep(parts[name][0], content, seconds)
        return {name: content for name, content in found.items() if content is not None}

    def compute(
        self, work: Mapping[str, Callable[[], Result]]
    ) -> Iterator[tuple[str, Result, float]]:
        """Yield the name, the result and the seconds of each call as it ends, and report it."""
        for done, (name, (result, seconds)) in enumerate(self._call(work), start=1):
            yield name, result, seconds
            self.report(name, done / len(work))

    def _call(
        self, work: Mapping[str, Callable[[], Result]]
    ) -> Iterator[tuple[str, tuple[Result, float]]]:
        if self._pool is None or len(work) < 2:
            yield from ((name, _time(call)) for name, call in work.items())
            return
        asked = {self._pool.submit(_time, call): name for name, call in work.items()}
        try:
            for future in as_completed(asked):
                yield asked[future], future.result()
        except BrokenProcessPool as error:
            raise CovertflError(
                "a process that computed parts was ended from outside; finished parts are kept: "
                "the same command continues"
            ) from error
        finally:
            for future in asked:
                future.cancel()

    def report(self, what: str, share: float) -> None:
        """Report how much of the work is done."""
        if self._on_progress is not None:
            spent = time.perf_counter() - self._started
            left = spent * (1.0 - share) / share if share > 0.0 else 0.0
            duration = f"{left:.0f} s" if left < 100.0 else f"{left / 60.0:.0f} min"
            self._on_progress(f"{what}, about {duration} left", share)

    def _place(self, key: Key) -> Path:
        described = json.dumps({**key, "version": covertfl.__version__}, sort_keys=True)
        digest = hashlib.sha256(described.encode()).hexdigest()[:20]
        return self.folder / f"{key['part']}-{digest}.json"

    @property
    def seconds(self) -> float:
        """Time that the used cells took to compute, whenever that was."""
        return sum(self._used.values())


def _time(call: Callable[[], Result]) -> tuple[Result, float]:
    """Return a result and the seconds that it took."""
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


@contextmanager
def open_pool() -> Iterator[ProcessPoolExecutor | None]:
    """Open one process for each core, None if there is one core."""
    cores = count_cores()
    if cores == 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, context, initializer=_prepare_process) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _prepare_process() -> None:
    """Let a process end with the command: at once if that is interrupted, and if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
