"""Another user of the machine reads nothing of a run but what clients were sent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from covertfl.demo.run import Condition, run_demo
from covertfl.models.export import export_model
from covertfl.training import train
from tests.support.commands import RUN_FILE, Run
from tests.support.small_runs import HORIZON, Stopped, make_run, run_small, stop_after


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
    settings = make_run(policy={"kind": "exchangeable", "trajectories": 2}, rounds=6)
    train(settings, tmp_path / "run")
    assert (tmp_path / "run" / "map.safetensors").exists()
    require_private(tmp_path / "run")


def test_runs_on_flower(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    run_small(tmp_path / "run", engine={"kind": "flower"})
    require_private(tmp_path / "run")


@pytest.mark.slow
def test_runs_of_the_demonstration(tmp_path: Path) -> None:
    condition = Condition(1, "greedy", "public")
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
