"""Kills and restarts of a local federation: nothing runs on, and nothing secret is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.deployment.federation import LocalFederation, LocalNode
from covertfl.engines.flower.deployment.fork import fork_and_run
from covertfl.engines.flower.deployment.processes import DeploymentFailed, wait_until
from covertfl.engines.flower.deployment.run import EAVESDROPPER, Deployment
from covertfl.engines.flower.deployment.scratch import (
    LOCK,
    PREFIX,
    hold_folder,
    make_scratch_folder,
    remove_abandoned_folders,
)
from covertfl.errors import InvalidInput
from covertfl.runs.folder import RunFolder
from covertfl.runs.run_file import format_run, list_versions
from tests.support.small_runs import make_run

SETTINGS = make_run(federation={"clients": 3, "participation": [1, 2, 3], "min_share": 0.2})


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waits for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def is_held(folder: Path) -> bool:
    """Whether a process, or a thread of one that is ending, holds a folder."""
    with (folder / LOCK).open("r+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_a_folder_is_removed_once_nobody_holds_it(scratch: Path) -> None:
    folder, held = make_scratch_folder()
    (folder / "server.key").write_text("secret")
    assert folder.stat().st_mode & 0o077 == (folder / LOCK).stat().st_mode & 0o077 == 0
    own, other = scratch / f"{PREFIX}notes", scratch / "somebody-else"
    for path in (own, other):  # without a lock, or under another name: not ours to remove
        path.mkdir()
    hold_folder(other).close()
    (scratch / f"{PREFIX}link").symlink_to(other)
    with held:
        remove_abandoned_folders()
        assert (folder / "server.key").exists()
        second = hold_folder(folder)
    with second:
        remove_abandoned_folders()
        assert (folder / "server.key").exists()
    remove_abandoned_folders()
    assert not folder.exists()
    assert {path.name for path in scratch.iterdir()} == {own.name, other.name, f"{PREFIX}link"}
    with pytest.raises(FileNotFoundError):
        hold_folder(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_forks_end_with_their_parent_which_nobody_waits_for() -> None:
    reader, writer = os.pipe()

    def work() -> None:
        child = fork_and_run(signal.pause)
        os.write(writer, f"{child}\n".encode())
        signal.pause()

    parent = fork_and_run(work)
    child = int(os.read(reader, 100))
    os.close(reader)
    os.close(writer)
    assert is_alive(child)
    os.kill(parent, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(child), 10.0)
    os.waitpid(parent, 0)


def test_force_on_a_running_folder_removes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    running = RunFolder(out)
    running.create(format_run(SETTINGS, list_versions()), force=False)
    records = out / EAVESDROPPER / "rounds.jsonl"
    records.parent.mkdir()
    records.write_text("{}\n")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    deployment = Deployment(SETTINGS, out, num_nodes=2, force=True)
    with pytest.raises(InvalidInput, match="is in use by another process"), deployment:
        pytest.fail("it must not start")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    running.close()


OWNER = """
import sys, time
from tests.support.small_runs import make_run
from covertfl.engines.flower.deployment.run import Deployment
from pathlib import Path
settings = make_run(federation={"clients": 3, "participation": [1, 2, 3], "min_share": 0.2})
with Deployment(settings, Path(sys.argv[1]), num_nodes=1) as deployment:
    processes = deployment.federation.processes
    print(processes._supervisor.number, *processes.running.values(), flush=True)
    time.sleep(600)
"""


@pytest.mark.deployment
def test_nothing_is_left_after_owner_and_keeper_were_killed(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path / "out"], stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        keeper, *others = map(int, owner.stdout.readline().split())
        assert len(others) == 4
        # The keeper sleeps, so that it cannot clean up before it is killed.
        for process, number in (
            (keeper, signal.SIGSTOP),
            (owner.pid, signal.SIGKILL),
            (keeper, signal.SIGKILL),
        ):
            os.kill(process, number)
    (left,) = scratch.glob(f"{PREFIX}*")
    assert wait_until(lambda: not is_held(left), 15.0)
    assert not any(map(is_alive, [keeper, *others]))
    assert (left / "server.key").exists()
    # The next deployment removes it, even one that fails to start.
    deployment = Deployment(SETTINGS, tmp_path / "next", num_nodes=1)
    monkeypatch.setattr(deployment, "_write_server", stop)
    with pytest.raises(KeyboardInterrupt), deployment:
        pytest.fail("it must not start")
    assert not list(scratch.iterdir())


def stop(_folder: Path) -> None:
    """End a deployment before it starts anything."""
    raise KeyboardInterrupt


@pytest.mark.deployment
def test_a_federation_ends_with_its_keeper(scratch: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    with LocalFederation([LocalNode()], folder) as federation:
        processes = list(federation.processes.running.values())
        assert len(processes) == 4
        os.kill(federation.processes._supervisor.number, signal.SIGKILL)
        assert wait_until(lambda: not any(map(is_alive, processes)), 15.0)
        assert wait_until(lambda: not federation.processes.running, 5.0)
        with pytest.raises(DeploymentFailed):
            federation.start_server({})
    assert not list(scratch.iterdir())
