"""Repeated timings, work in separate processes, peak memory, and descriptions of the machine."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from covertfl import Missing

Returned = TypeVar("Returned")
STATISTICS = Path("/proc/stat")
PACKAGES = ("covertfl", "numpy", "scipy", "torch", "flwr", "mdpsolver", "pymdptoolbox")
NOT_INSTALLED = "not installed"


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


# --- separate processes ---------------------------------------------------------------------------


def list_tree(root: int) -> list[int]:
    """Return the ids of a process and its descendants, parents first."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The process name in brackets may contain any character.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(folder.name))
    tree = [root]
    for process in tree:
        tree += parents.get(process, [])
    return tree


def measure_tree_memory(root: int) -> int:
    """Return the bytes held by a process and its descendants, shared pages counted once."""
    total = 0
    for process in list_tree(root):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def end_tree(root: int) -> None:
    """Kill a process and its descendants."""
    for process in list_tree(root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def run_python(arguments: Sequence[object], *, limit: float) -> str | None:
    """Run Python in a separate process, and kill whatever it leaves running.

    Parameters
    ----------
    arguments : of Python
    limit : seconds after which the process and its descendants are killed

    Returns
    -------
    what it printed, or None if it took longer than the limit
    """
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            out, err = running.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if running.poll() is None:
                end_tree(running.pid)
    if running.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{err[-3000:]}")
    return out


def run_apart(script: str, arguments: Sequence[object], *, limit: float) -> Any | None:
    """Run a benchmark file in a separate process and parse the JSON in its last line of output.

    Returns None if the process took longer than the limit, in seconds.
    """
    said = run_python([script, *arguments], limit=limit)
    return None if said is None else json.loads(said.splitlines()[-1])


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


# --- the machine ----------------------------------------------------------------------------------


def describe_processor() -> str:
    """Return the model name of the processor."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def count_memory() -> int:
    """Return the bytes of physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def describe_machine() -> str:
    """Return processor, cores, memory and operating system."""
    memory = f"{count_memory() / 2**30:.0f} GiB of memory"
    return (
        f"{describe_processor()}, {os.cpu_count()} cores, {memory}, "
        f"{platform.system()} on {platform.machine()}"
    )


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of the compared libraries by name."""
    versions = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = NOT_INSTALLED
    return versions


def describe_versions() -> str:
    """Return the versions in one line, of what is installed."""
    found = {name: version for name, version in list_versions().items() if version != NOT_INSTALLED}
    return ", ".join(f"{name} {version}" for name, version in found.items())


def is_busy(seconds: float = 1.0) -> bool:
    """Return whether other programs, or machines on the same host, use a quarter of the cores.

    Where the system does not count their time, whether the load average exceeds half of the cores.
    """
    if not STATISTICS.exists():
        return os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    before = _read_times()
    time.sleep(seconds)
    spent, idle = (now - then for now, then in zip(_read_times(), before, strict=True))
    return spent - idle > 0.25 * spent


def _read_times() -> tuple[int, int]:
    """Return the time of all cores since the start of the system, and how much of it was idle."""
    first = STATISTICS.read_text().partition("\n")[0]
    # user, nice, system, idle, waiting for the disk, interrupts, taken by the host, ...
    times = [int(field) for field in first.split()[1:9]]
    return sum(times), times[3] + times[4]
