"""Descriptions of the machine and the versions used for a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

STATISTICS = Path("/proc/stat")
PACKAGES = ("covertfl", "numpy", "scipy", "torch", "flwr", "mdpsolver", "pymdptoolbox")
MISSING = "not installed"


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
            versions[package] = MISSING
    return versions


def describe_versions() -> str:
    """Return the versions in one line, of what is installed."""
    found = {name: version for name, version in list_versions().items() if version != MISSING}
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
