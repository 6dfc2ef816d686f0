"""Memory and termination of a script and all processes that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


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


def run_command(arguments: Sequence[object], *, limit: float) -> bool:
    """Run Python in a separate process, and kill whatever it leaves running.

    Parameters
    ----------
    arguments : of Python
    limit : seconds after which the process and its descendants are killed

    Returns
    -------
    whether it ended within the limit
    """
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        try:
            said, _ = running.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return False
        finally:
            if running.poll() is None:
                end_tree(running.pid)
    if running.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{said.decode()[-3000:]}")
    return True
