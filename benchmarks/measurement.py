"""Repeated timings, peak memory, and measurements in a process of their own."""

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

Result = TypeVar("Result")


@dataclass(frozen=True)
class Timing:
    """Seconds of several repeats of the same work."""

    seconds: tuple[float, ...]

    @property
    def best(self) -> float:
        """The repeat least disturbed by whatever else ran."""
        return min(self.seconds)

    @property
    def mean(self) -> float:
        """Seconds of all over their number, which is what throughput goes by."""
        return statistics.fmean(self.seconds)

    @property
    def median(self) -> float:
        """The repeat in the middle."""
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        best, median = format_seconds(self.best), format_seconds(self.median)
        return best if best == median else f"{best} ({median})"


def format_seconds(seconds: float) -> str:
    """Three digits and a unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1.0:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100.0 else f"{seconds:.0f} s"


def format_ratio(ratio: float) -> str:
    """Two digits where that says enough."""
    if ratio < 10.0:
        return f"{ratio:.2g}"
    digits = 1 if ratio < 100.0 else 10 ** (len(str(int(ratio))) - 2)
    return f"{round(ratio / digits) * digits:,}"


def time_repeats(
    work: Callable[[], Result], *, repeats: int, warm_up: bool = True
) -> tuple[Result, Timing]:
    """Do the work several times, after once without a clock; give the last result."""
    if warm_up:
        work()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - started)
    return result, Timing(tuple(seconds))


def measure_peak_memory() -> int:
    """Most bytes of memory that this process has held so far.

    Linux carries the peak of the parent over into `getrusage` of a new process, so the figure of
    this process alone is read from its status file where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def run_apart(script: str, arguments: Sequence[object], *, limit: float) -> Any | None:
    """Run a benchmark file as a process of its own and read the JSON in its last line.

    Parameters
    ----------
    script : path of the file
    arguments : its arguments
    limit : seconds after which the process is ended

    Returns
    -------
    what it printed, or None where it took longer than the limit
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
    """Import a solver that covertfl is compared with.

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
