"""Another user of the machine: modes of files, client apps, what a killed run leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from covertfl import InvalidInput
from covertfl.demo.run import Condition, run_demo
from covertfl.engines.flower.deployment.bundle import RECORDS
from covertfl.engines.flower.deployment.federation import LocalFederation, LocalNode
from covertfl.engines.flower.deployment.processes import DeploymentFailed, wait_until
from covertfl.engines.flower.deployment.rights import become_user, check_user, choose_user
from covertfl.engines.flower.deployment.run import EAVESDROPPER, Deployment
from covertfl.engines.flower.deployment.scratch import (
    LOCK,
    PREFIX,
    hold_folder,
    make_scratch_folder,
    remove_abandoned_folders,
)
from covertfl.models.export import export_model
from covertfl.processes import fork_and_run
from covertfl.runs.folder import RunFolder
from covertfl.runs.settings import format_run, list_versions
from covertfl.training import train
from tests.support.commands import RUN_FILE, Run
from tests.support.small_runs import HORIZON, Stopped, make_run, read_rounds, run_small, stop_after

# --- modes of files -------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def ordinary_umask() -> Iterator[None]:
    """New files are readable by all, unless a program takes care."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def read_mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def list_readable(folder: Path) -> list[str]:
    """Return what others can read or write in folders of runs, by name, public/ left out."""
    return sorted(
        f"{path.relative_to(folder)} {read_mode(path):o}"
        for path in folder.rglob("*")
        if path.is_file()
        and "public" not in path.relative_to(folder).parts
        and read_mode(path) & 0o077
    )


def require_private(run: Path) -> None:
    """Check the folder of a run: all files but public ones, and the folders that hold them."""
    assert list_readable(run) == []
    for name in ("private", "checkpoint"):
        assert read_mode(run / name) == 0o700
    files = {path for path in run.rglob("*") if path.is_file()} - {*(run / "public").rglob("*")}
    assert {read_mode(path) for path in files} == {0o600}
    assert read_mode(run) == 0o755
    assert {read_mode(path) for path in (run / "public").rglob("*")} == {0o755, 0o644}


@pytest.mark.slow
def test_every_command_keeps_its_results_private(run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "run"
    file.write_text(RUN_FILE)
    for arguments in (
        ["train", file, "--out", out],
        ["train", file, "--out", out, "--force"],
        ["audit", out, "--rehearsals", 2],
        ["report", out],
        ["export", out, "-o", out / "model.safetensors"],
    ):
        done = run(*arguments)
        assert done.status == 0, done.err
        require_private(out)
    names = {path.name for path in out.iterdir()}
    assert {"summary.json", "audit.json", "report.html", "model.safetensors"} <= names
    assert read_mode(out / "report") == 0o700 and list((out / "report").iterdir())


@pytest.mark.slow
def test_seeds_audit_and_report_of_several_runs(run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "many"
    file.write_text(RUN_FILE)
    for arguments in (["train", file, "--out", out, "--seeds", 2], ["audit", out], ["report", out]):
        assert run(*arguments).status == 0
    assert (out / "audit.json").exists() and (out / "report.html").exists()
    assert list_readable(out) == []


def test_replicas_and_their_map(tmp_path: Path) -> None:
    settings = make_run(scheme="exchangeable", rounds=6)
    train(settings, tmp_path / "run")
    assert (tmp_path / "run" / "map.safetensors").exists()
    require_private(tmp_path / "run")


def test_runs_on_flower(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    run_small(tmp_path / "run", engine={"kind": "flower"})
    require_private(tmp_path / "run")


@pytest.mark.slow
def test_runs_of_the_demonstration(tmp_path: Path) -> None:
    condition = Condition(1, "scheduled", "greedy", "public")
    run_demo(tmp_path, seeds=1, conditions=[condition])
    require_private(tmp_path / "runs" / condition.folder / "seed-0")


@pytest.mark.slow
def test_files_that_were_readable_are_made_private(run: Run, tmp_path: Path) -> None:
    """Of an older version, or of a copy; also the file that a model is exported over."""
    out = tmp_path / "run"
    with pytest.raises(Stopped):
        run_small(out, HORIZON, on_round=stop_after(5))
    model = tmp_path / "model.safetensors"
    model.write_text("old")
    for path in (*out.rglob("*"), model):
        path.chmod(0o777 if path.is_dir() else 0o666)
    train(make_run(), out, resume=True)
    export_model(out, model)
    assert read_mode(model) == 0o600
    (out / "public").chmod(0o755)
    assert list_readable(out) == []
    assert read_mode(out / "private") == read_mode(out / "checkpoint") == 0o700
    for name in ("audit.json", "report.html"):
        (out / name).touch()
        (out / name).chmod(0o666)
    assert run("audit", out, "--rehearsals", 0).status == 0
    assert run("report", out).status == 0
    assert list_readable(out) == []


def test_an_eavesdropping_node_keeps_its_records_to_itself(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAvg

    from covertfl.flower import make_eavesdropper_app
    from tests.support.flower_runs import make_app, run_covert

    spied = tmp_path / "spied"
    run_covert(tmp_path / "run", FedAvg, [1, 4], app=make_eavesdropper_app(make_app(), spied))
    require_private(tmp_path / "run")
    assert list((spied / "weights").iterdir())
    assert list_readable(spied) == [] and read_mode(spied) == 0o700
    require_private(tmp_path / "run")


# --- client apps that root lets another user run --------------------------------------------------


USER = "nobody"
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
SPY = """
import json, os
from pathlib import Path
from covertfl.flower import make_eavesdropper_app
from federation_client import app as bundled

records, whole = Path(os.environ["COVERTFL_RECORDS"]), Path(os.environ["FLWR_HOME"]).parent.parent
secrets = [records.parent / name for name in ("run.toml", "private/rounds.jsonl", "metrics.jsonl")]
secrets += [whole / name for name in ("control.secret", "node0", "server-only/run.toml")]
found = []
for path in secrets:
    try:
        path.read_text()
        found.append("read")
    except OSError as error:
        found.append(type(error).__name__)
(records / "found.json").write_text(json.dumps([os.getuid(), found]))
app = make_eavesdropper_app(bundled, records)
"""


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    (folder / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "scratch"))
    yield folder
    shutil.rmtree(folder)


@is_root
def test_users_that_client_apps_cannot_run_as(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name, said in (
        ("nobody-has-this-name", "must run as an existing user"),
        ("root", "must run as another user than root"),
        (USER, f"must be able to read|cannot run {sys.executable}"),
    ):
        with pytest.raises(InvalidInput, match=said):
            check_user(name, [closed])


@is_root
def test_root_gives_client_apps_to_nobody_where_that_can_be(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    closed = reachable / "closed"
    closed.mkdir(mode=0o700)
    assert choose_user([closed], said.append) is None
    assert len(said) == 1 and said[0].startswith("warning: client apps run as root, because the")
    monkeypatch.setattr("covertfl.engines.flower.deployment.rights.check_user", lambda *_: None)
    assert choose_user([reachable], said.append) == USER
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert choose_user([reachable], said.append) is None
    assert len(said) == 1


@is_root
def test_rights_are_given_up_for_good_and_links_are_not_followed(reachable: Path) -> None:
    own, secret = reachable / "own", reachable / "secret"
    secret.write_text("x")
    secret.chmod(0o600)

    def work() -> None:
        become_user(USER, [own])
        (own / "link").symlink_to(secret)
        for attempt in (lambda: os.setuid(0), lambda: os.seteuid(0), secret.read_text):
            with pytest.raises(PermissionError):
                attempt()

    for _ in range(2):
        process = fork_and_run(work)
        assert os.waitpid(process, 0)[1] == 0
        (own / "link").unlink()
    assert own.stat().st_uid == pwd.getpwnam(USER).pw_uid
    assert secret.stat().st_uid == 0


@is_root
@pytest.mark.deployment
def test_a_client_app_of_another_user_reads_no_secrets(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_run(
        federation={"clients": 3, "participation": [1, 2, 3], "min_share": 0.2},
        decoy={"kind": "public"},
        policy={"kind": "random"},
        rounds=2,
        updates=1,
    )
    try:
        check_user(USER, [])
    except InvalidInput as error:
        pytest.skip(str(error))
    out, spy = reachable / "out", reachable / "spy"
    spy.mkdir()
    (spy / "spy.py").write_text(SPY)
    records = out / EAVESDROPPER
    last = LocalNode(app="spy:app", path=[str(spy)], environment={RECORDS: str(records)})
    deployment = Deployment(settings, out, num_nodes=2, node_user=USER, timeout=20.0)
    monkeypatch.setattr(deployment, "_make_nodes", lambda: [LocalNode(), last])
    with deployment:
        deployment.follow(deployment.start())
    user = pwd.getpwnam(USER).pw_uid
    assert json.loads((records / "found.json").read_text()) == [user, ["PermissionError"] * 6]
    sent = [line["weights"] for line in read_rounds(out, "public/rounds.jsonl")]
    assert [line["weights"] for line in read_rounds(out, f"{EAVESDROPPER}/rounds.jsonl")] == sent
    assert (records / "rounds.jsonl").stat().st_uid == user
    assert not list((reachable / "scratch").iterdir())


# --- kills and restarts of a local federation -----------------------------------------------------


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
