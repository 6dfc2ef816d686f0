"""`--force` on folders that never held a run: nothing in them is deleted or changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from covertfl.demo.run import Condition, run_demo
from covertfl.errors import InvalidInput
from covertfl.runs.folder import RunFolder
from covertfl.training import train
from tests.support.commands import RUN_FILE, Run, refuse
from tests.support.small_runs import DRAWN_QUEUE, make_run, run_small

SMALL = {**DRAWN_QUEUE, "rounds": 3}


def fill(folder: Path) -> Path:
    """Make a user's folder with names that a run's folder has."""
    for name in (
        *("public/index.html", "private/letters.txt", "public/weights/.own.backup"),
        *("public/weights/own.safetensors", "metrics.jsonl", "summary.json", "map.safetensors"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def add_run_file(folder: Path) -> Path:
    (fill(folder) / "run.toml").write_text(RUN_FILE)
    return folder


def add_checkpoints(folder: Path) -> Path:
    (add_run_file(folder) / "checkpoint").mkdir()
    (folder / "checkpoint" / "model.pt").write_text("mine")
    (folder / "checkpoint" / ".model.pt").write_text("mine")
    return folder


def add_lock(folder: Path) -> Path:
    (add_checkpoints(folder) / "checkpoint" / "lock").write_text("mine")
    return folder


def copy_settings(folder: Path) -> Path:
    """The settings of a run, copied as a run file, are not a run."""
    run_small(folder.parent / "other", SMALL)
    (fill(folder) / "run.toml").write_bytes((folder.parent / "other" / "run.toml").read_bytes())
    return folder


def link_settings(folder: Path) -> Path:
    run_small(folder.parent / "other", SMALL)
    fill(folder)
    (folder / "checkpoint").mkdir()
    for name in ("run.toml", "checkpoint/lock"):
        (folder / name).symlink_to(folder.parent / "other" / name)
    return folder


def write_damaged(folder: Path) -> Path:
    (add_lock(folder) / "run.toml").write_bytes(b"\xff\x00[[[")
    return folder


FOLDERS = (
    *(fill, add_run_file, add_checkpoints, add_lock),
    *(copy_settings, link_settings, write_damaged),
)


def read_all(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of everything in a folder; of a link, where it points to."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()).encode()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b"",
        )
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("make", FOLDERS)
@pytest.mark.parametrize("way", ["force", "resume"])
def test_a_folder_of_a_user_is_left_alone(
    make: Callable[[Path], Path], way: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "mine")
    before = read_all(folder)
    with pytest.raises(InvalidInput) as refused:
        train(make_run(SMALL), folder, force=way == "force", resume=way == "resume")
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InvalidInput):
        made = RunFolder(folder)
        made.create("", force=True) if way == "force" else made.resume("")
    assert read_all(folder) == before


def test_of_several_seeds_none_is_begun(tmp_path: Path) -> None:
    train(make_run(SMALL), tmp_path, seeds=2)
    fill(tmp_path / "seed-2")
    before = read_all(tmp_path)
    with pytest.raises(InvalidInput, match=r"seed-2 holds files but no run of covertfl"):
        train(make_run(SMALL), tmp_path, seeds=3, force=True)
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("name", ["public", "private", "public/weights", "checkpoint"])
def test_what_links_point_to_is_left_alone(name: str, tmp_path: Path) -> None:
    run_small(tmp_path / "run", SMALL)
    elsewhere = fill(tmp_path / "elsewhere")
    (tmp_path / "run" / name).rename(tmp_path / "moved")
    (tmp_path / "run" / name).symlink_to(elsewhere)
    if name == "checkpoint":
        (elsewhere / "lock").touch()
    before = read_all(tmp_path)
    with pytest.raises(InvalidInput, match=r"is a symbolic link"):
        train(make_run(SMALL), tmp_path / "run", force=True)
    assert read_all(tmp_path) == before


def test_links_inside_a_run_are_removed_alone(tmp_path: Path) -> None:
    run_small(tmp_path / "run", SMALL)
    elsewhere = fill(tmp_path / "elsewhere")
    before = read_all(elsewhere)
    (tmp_path / "run" / "private" / "more").symlink_to(elsewhere)
    (tmp_path / "run" / "public" / "weights" / "more.safetensors").symlink_to(
        elsewhere / "metrics.jsonl"
    )
    train(make_run(SMALL), tmp_path / "run", force=True)
    assert read_all(elsewhere) == before
    assert not (tmp_path / "run" / "private" / "more").exists()


def test_runs_are_replaced(tmp_path: Path) -> None:
    """Finished ones, interrupted ones, and those that ended before their first file."""
    run_small(tmp_path / "run", SMALL)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for place in ("run", "link"):
        train(make_run(SMALL), tmp_path / place, force=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    begun = tmp_path / "begun" / "checkpoint"
    begun.mkdir(parents=True)
    (begun / "lock").touch()
    train(make_run(SMALL), begun.parent, force=True)
    assert (begun.parent / "summary.json").exists()
    (tmp_path / "empty").mkdir()
    train(make_run(SMALL), tmp_path / "empty", force=True)


def test_a_replacement_that_is_cut_off_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(tmp_path, SMALL)

    def cut(path: Path) -> None:
        raise KeyboardInterrupt

    for place in ("covertfl.runs.folder.shutil.rmtree", "covertfl.runs.folder._remove_leftovers"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(place, cut)
            train(make_run(SMALL), tmp_path, force=True)
    train(make_run(SMALL), tmp_path, force=True)
    assert (tmp_path / "summary.json").exists()


def test_the_demonstration_deletes_nothing_either(tmp_path: Path) -> None:
    condition = Condition(1, "greedy", "public")
    mine = fill(tmp_path / "runs" / condition.folder / "seed-0")
    before = read_all(tmp_path)
    with pytest.raises(InvalidInput, match="holds files but no run of covertfl"):
        run_demo(tmp_path, seeds=1, conditions=[condition])
    assert read_all(tmp_path) == before and mine.exists()


@pytest.mark.parametrize("command", ["train", "deploy-local"])
def test_commands_refuse_in_one_sentence(command: str, run: Run, tmp_path: Path) -> None:
    file, mine = tmp_path / "run.toml", fill(tmp_path / "mine")
    file.write_text(RUN_FILE)
    before = read_all(mine)
    said = refuse(run(command, file, "--out", mine, "--force"), 2)
    assert said.startswith(f"{mine} holds files but no run of covertfl")
    assert read_all(mine) == before


def test_a_user_app_is_not_deployed_there_either(run: Run, tmp_path: Path) -> None:
    file, mine = tmp_path / "run.toml", fill(tmp_path / "mine")
    file.write_text(RUN_FILE)
    (mine / "eavesdropper").mkdir()
    (mine / "eavesdropper" / "notes.txt").write_text("mine")
    (tmp_path / "app").mkdir()
    before = read_all(mine)
    refuse(run("deploy-local", file, "--out", mine, "--force", "--app", tmp_path / "app"), 2)
    assert read_all(mine) == before
