"""Runs that are killed or cannot write: they resume from the last checkpoint."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.training import train
from tests import ROOT
from tests.support.ordinary_user import read_only
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import (
    DRAWN_QUEUE,
    HORIZON,
    Stopped,
    make_run,
    read_column,
    read_folder,
    stop_after,
)

KILLS = 25

# Where it is mounted, and a way to mount it anew with other options.
SmallDisk = tuple[Path, Callable[[str], None]]

# Kills children of its own with signal 9 until enough have died, then lets one live to the end.
# The first `early` are killed while they prepare, the others soon after a round was sealed.  One
# that is to be killed stops after a few rounds, so that none reaches the end of the run first.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from tests.support.small_runs import make_run
from covertfl.runs.train import KernelCache, build_federation
from covertfl.training import train

whole, killed, kills, early = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), 6
settings = make_run(
    rounds=90, updates=45, seed=1, policy={"kind": "random"}, decoy={"gated": False}
)
build_federation(settings, KernelCache())  # what every child needs is looked up once
chance = random.Random(7)


def start(out, resume, most=1000):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            done = []
            def tell(progress):
                os.write(writing, b".")
                done.append(progress)
                time.sleep(0.004 if len(done) < most else 600.0)
            train(settings, out, resume=resume, on_round=tell)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    return child, reading


def wait(child):
    _, status = os.waitpid(child, 0)
    return status


child, reading = start(whole, False)
if wait(child) != 0:
    sys.exit("the undisturbed run failed")
os.close(reading)

died = rounds = 0
while died < kills:
    child, reading = start(killed, True, 1 if died < early else 4)
    if died >= early:
        rounds += len(os.read(reading, 1))
    time.sleep(chance.uniform(0.0, 0.25 if died < early else 0.03))
    os.kill(child, signal.SIGKILL)
    status = wait(child)
    os.close(reading)
    if not os.WIFSIGNALED(status):
        sys.exit(f"a run ended by itself after {died} kills, status {status}")
    died += 1
child, reading = start(killed, True)
if wait(child) != 0:
    sys.exit("the last resume failed")
print(died, rounds)
"""


@pytest.mark.slow
def test_25_kills_change_nothing(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    result = subprocess.run(
        [sys.executable, "-c", KILLER, tmp_path / "whole", tmp_path / "killed", str(KILLS)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    died, rounds = map(int, result.stdout.split())
    assert died == KILLS
    assert rounds >= KILLS // 2  # most were killed between rounds, not before the first
    assert read_folder(tmp_path / "killed") == read_folder(tmp_path / "whole")
    assert read_column(tmp_path / "killed", "round") == list(range(1, 91))


# --- the operating system refuses ---

RUN: dict[str, Any] = {
    "rounds": 5,
    "seed": 6,
    "policy": {"kind": "greedy"},
    "queue": {"arrival_prob": 0.9},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(make_run(DRAWN_QUEUE, **RUN), out)
    return read_folder(out)


def fail_at(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, number: int
) -> list[tuple[Any, ...]]:
    """Make one call of a function fail as on a full disk; return the list of calls."""
    calls: list[tuple[Any, ...]] = []
    real = getattr(module, name)

    def sometimes(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **keywords)

    monkeypatch.setattr(module, name, sometimes)
    return calls


@pytest.mark.parametrize(
    "name", mark_slow(["fsync", "replace", "open", "mkdir"], ["replace", "mkdir"])
)
def test_a_disk_full_at_any_moment_is_named_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, bytes], name: str
) -> None:
    settings, number, failed = make_run(DRAWN_QUEUE, **RUN), 0, 0
    while True:
        number += 1
        out = tmp_path / str(number)
        with monkeypatch.context() as patch:
            calls = fail_at(patch, os, name, number)
            try:
                train(settings, out)
            except InvalidInput as error:
                failed += 1
                assert "cannot be written: No space left on device" in str(error)
                assert str(out) in str(error)
            if len(calls) < number:
                break  # it was never called that often: the run went through
        train(settings, out, resume=True)
        assert read_folder(out) == whole
    assert failed == number - 1 >= {"fsync": 20, "replace": 10, "open": 5, "mkdir": 3}[name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """Mount a small file system; skip the test where that is not allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> None:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True, capture_output=True
        )

    try:
        mount("size=600k")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system is not allowed here")
    yield disk, lambda options: mount(f"remount,{options}")
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_fills_up(small_disk: SmallDisk, tmp_path: Path) -> None:
    disk, remount = small_disk
    settings = make_run(
        HORIZON, rounds=30, data={"model": "mlp"}, policy={"kind": "greedy"}, decoy={"gated": False}
    )
    with pytest.raises(InvalidInput, match="cannot be written: No space left on device"):
        train(settings, disk / "run")
    checkpoint = read_checkpoint(disk / "run")
    assert checkpoint is not None
    assert 1 <= checkpoint.round < 30
    with pytest.raises(InvalidInput, match="No space left on device"):
        train(settings, disk / "run", resume=True)
    assert read_checkpoint(disk / "run") is not None
    remount("size=20m")
    train(settings, disk / "run", resume=True)
    train(settings, tmp_path / "whole")
    assert read_folder(disk / "run") == read_folder(tmp_path / "whole")


def test_a_disk_that_may_only_be_read(small_disk: SmallDisk, whole: dict[str, bytes]) -> None:
    disk, remount = small_disk
    settings = make_run(DRAWN_QUEUE, **RUN)
    with pytest.raises(Stopped):
        train(settings, disk / "run", on_round=stop_after(3))
    before = read_folder(disk / "run")
    remount("ro")
    for out, resume in ((disk / "run", True), (disk / "new", False)):
        with pytest.raises(
            InvalidInput, match="cannot be written: Read-only file system"
        ) as caught:
            train(settings, out, resume=resume)
        assert str(out) in str(caught.value)
    assert read_folder(disk / "run") == before
    remount("rw")
    train(settings, disk / "run", resume=True)
    assert read_folder(disk / "run") == whole


def test_a_folder_that_may_only_be_read(tmp_path: Path, whole: dict[str, bytes]) -> None:
    settings, out = make_run(DRAWN_QUEUE, **RUN), tmp_path / "run"
    with pytest.raises(Stopped):
        train(settings, out, on_round=stop_after(3))
    assert read_checkpoint(out) is not None
    with (
        read_only(tmp_path),
        pytest.raises(InvalidInput, match="cannot be written: Permission denied"),
    ):
        train(settings, out, resume=True)
    train(settings, out, resume=True)
    assert read_folder(out) == whole
