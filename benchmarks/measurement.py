"""Repeated timings, peak memory, and measurements in separate processes."""

from __future__ import annotations

import importlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from covertfl.errors import Missing

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Timing:
    """Durations of several repeats of the same work, in seconds."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """Return the shortest duration, the one least disturbed by other programs."""
        return min(self.seconds)

    @property
    def mean(self) -> float:
        """Return the mean duration, the inverse of the throughput."""
        return statistics.fmean(self.seconds)

    @property
    def median(self) -> float:
        """Return the median duration."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        best, median = format_seconds(self.best), format_seconds(self.median)
        return best if best == median else f"{best} ({median})"


def format_seconds(seconds: float) -> str:
    """Format a duration with three digits and a unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1.0:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100.0 else f"{seconds:.0f} s"


def format_ratio(ratio: float) -> str:
    """Format a ratio with two significant digits."""
    if ratio < 10.0:
        return f"{ratio:.2g}"
    digits = 1 if ratio < 100.0 else 10 ** (len(str(int(ratio))) - 2)
    return f"{round(ratio / digits) * digits:,}"


def time_repeats(
    work: Callable[[], Returned], *, repeats: int, warm_up: bool = True
) -> tuple[Returned, Timing]:
    """Return the last result and the durations of several repeats, after one warm-up run."""
    if warm_up:
        work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return result, Timing(tuple(seconds))


def measure_peak_memory() -> int:
    """Return the peak memory of this process in bytes.

    On Linux a new process inherits the peak of its parent in `getrusage`, so the value is read from
    the status file of the process if there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_apart(script: str, arguments: Sequence[object], *, limit: float) -> Any | None:
    """Run a benchmark file in a separate process and parse the JSON in its last line of output.

    Parameters
    ----------
    script : path of the file
    arguments : its arguments
    limit : seconds after which the process is killed

    Returns
    -------
    the parsed JSON, or None if the process took longer than the limit
    """
    command = [sys.executable, script, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def load_peer(module: str, package: str) -> Any:
    """Import a program that covertfl is compared with.

    Raises
    ------
    Missing
        if it is not installed
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise Missing(
            f"{package} is not installed; `make bench` installs what is compared with covertfl"
        ) from error
