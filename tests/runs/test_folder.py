"""A run's folder: created, sealed, resumed, locked, replaced."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.job import name_content
from covertfl.runs.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint
from covertfl.runs.files import read_lines
from covertfl.runs.folder import LINE_FILES, RunFolder
from tests.support.run_folders import (
    LAYOUT,
    SETTINGS_TEXT,
    make_summary,
    record_round,
    seal_round,
    vector,
)


def reopen(folder: RunFolder) -> tuple[RunFolder, Checkpoint | None]:
    folder.close()
    again = RunFolder(folder.path)
    return again, again.resume(SETTINGS_TEXT)


# --- sealing and resuming ---


def test_a_sealed_round_is_found_again(folder: RunFolder) -> None:
    seal_round(folder, 1)
    seal_round(folder, 2)
    again, checkpoint = reopen(folder)
    assert checkpoint is not None
    assert checkpoint.round == 2
    assert checkpoint.arrays["true"].tobytes() == vector(2).tobytes()
    assert checkpoint.facts["note"] == "é"
    assert checkpoint.facts["list"] == [1, None]
    assert [record["round"] for record in read_lines(folder.path / "metrics.jsonl")] == [1, 2]
    again.close()


def test_what_was_not_sealed_is_cut_off(folder: RunFolder) -> None:
    seal_round(folder, 1)
    sealed = {name: (folder.path / name).read_bytes() for name in LINE_FILES}
    record_round(folder, 2)
    folder.append("private/updates.jsonl", {"task": 1})
    folder.close()
    with (folder.path / "private/rounds.jsonl").open("ab") as stream:
        stream.write(b'{"round": 3, "half a li')
    again, checkpoint = reopen(folder)
    assert checkpoint is not None
    assert checkpoint.round == 1
    assert {name: (folder.path / name).read_bytes() for name in LINE_FILES} == sealed
    seal_round(again, 2)
    assert [line["round"] for line in read_lines(folder.path / "metrics.jsonl")] == [1, 2]
    again.close()


def test_weights_of_a_round_that_was_cut_off_are_removed(folder: RunFolder) -> None:
    seal_round(folder, 1)
    record_round(folder, 2)
    again, _ = reopen(folder)
    [kept] = (folder.path / "public/weights").iterdir()
    assert [line["weights"] for line in read_lines(folder.path / LINE_FILES[0])] == [kept.stem]
    again.close()


def test_without_a_sealed_round_a_run_begins_anew(folder: RunFolder) -> None:
    record_round(folder, 1)
    again, checkpoint = reopen(folder)
    assert checkpoint is None
    assert all((folder.path / name).read_bytes() == b"" for name in LINE_FILES)
    again.close()


def test_a_folder_that_was_hardly_begun_can_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    folder = RunFolder(tmp_path / "run")
    assert folder.resume(SETTINGS_TEXT) is None
    seal_round(folder, 1)
    folder.close()


def test_leftovers_of_a_crash_are_removed_and_nothing_else(folder: RunFolder) -> None:
    seal_round(folder, 1)
    (folder.path / "public/weights/.abc.safetensors.x1").write_bytes(b"x")
    (folder.path / "checkpoint/.state.safetensors.x2").write_bytes(b"x")
    (folder.path / ".run.toml.x3").write_bytes(b"x")
    (folder.path / ".notes.of.mine").write_text("keep")
    again, _ = reopen(folder)
    kept = [path.name for path in folder.path.rglob(".*")]
    assert kept == [".notes.of.mine"]
    again.close()


def test_a_summary_that_no_longer_holds_is_removed(folder: RunFolder) -> None:
    seal_round(folder, 1)
    folder.finish(make_summary(rounds=1))
    again, _ = reopen(folder)
    assert not (folder.path / "summary.json").exists()
    again.close()


def test_a_folder_without_a_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no run to resume"):
        RunFolder(tmp_path).resume("")


# --- damage ---


def test_lines_that_went_missing_are_noticed(folder: RunFolder) -> None:
    seal_round(folder, 1)
    folder.close()
    path = folder.path / "private/rounds.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    again = RunFolder(folder.path)
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl is shorter than its checkpoint"):
        again.resume("")
    again.close()


# --- whose folder it is ---


def test_a_folder_that_exists_is_not_replaced(folder: RunFolder) -> None:
    seal_round(folder, 1)
    folder.close()
    before = (folder.path / CHECKPOINT).read_bytes()
    with pytest.raises(InvalidInput, match="exists: resume the run in it"):
        RunFolder(folder.path).create("seed = 2\n", force=False)
    assert (folder.path / CHECKPOINT).read_bytes() == before
    assert (folder.path / "run.toml").read_text() == SETTINGS_TEXT


def test_a_file_in_the_way_is_not_replaced_even_by_force(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for force in (False, True):
        with pytest.raises(InvalidInput, match="run"):
            RunFolder(tmp_path / "run").create("", force=force)
    assert (tmp_path / "run").read_text() == "mine"


def test_force_replaces_a_run_and_leaves_other_files(folder: RunFolder) -> None:
    seal_round(folder, 1)
    folder.finish(make_summary(rounds=1))
    folder.close()
    (folder.path / "notes.txt").write_text("keep")
    again = RunFolder(folder.path)
    again.create("seed = 2\n", force=True)
    again.close()
    files = {
        str(path.relative_to(folder.path)) for path in folder.path.rglob("*") if path.is_file()
    }
    assert files == {"notes.txt", "run.toml", "checkpoint/lock", *LINE_FILES}
    assert (folder.path / "run.toml").read_text() == "seed = 2\n"


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create("", force=False)
    folder.close()


@pytest.mark.parametrize("way", ["resume", "force"])
def test_a_folder_in_use_is_refused(folder: RunFolder, way: str) -> None:
    seal_round(folder, 1)
    other = RunFolder(folder.path)
    with pytest.raises(InvalidInput, match="is in use by another process"):
        other.resume("") if way == "resume" else other.create("", force=True)
    other.close()
    assert read_checkpoint(folder.path) is not None
    seal_round(folder, 2)  # its owner goes on undisturbed


def test_a_folder_in_use_by_another_process_is_refused(folder: RunFolder) -> None:
    script = (
        "import sys; from pathlib import Path; from covertfl.runs.folder import RunFolder\n"
        "RunFolder(Path(sys.argv[1])).resume('')"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, folder.path], capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert "is in use by another process" in result.stderr


def test_a_folder_is_free_again_once_it_is_closed(folder: RunFolder) -> None:
    seal_round(folder, 1)
    again, _ = reopen(folder)
    again.close()


def test_what_was_done_is_for_the_owner_only(folder: RunFolder) -> None:
    seal_round(folder, 1)
    for name in ("private", "checkpoint"):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) == 0o700
    for name in ("private/rounds.jsonl", "private/updates.jsonl", "metrics.jsonl"):
        assert stat.S_IMODE((folder.path / name).stat().st_mode) & 0o077 == 0


# --- no room, no permission ---


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_full_disk_is_named_and_the_last_checkpoint_stands(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    seal_round(folder, 1)

    def fail(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InvalidInput, match="cannot be written: " + os.strerror(code)):
        seal_round(folder, 2)
    monkeypatch.undo()
    again, checkpoint = reopen(folder)
    assert checkpoint is not None
    assert checkpoint.round == 1
    again.close()


def test_closing_on_a_full_disk_does_not_hide_the_first_error(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_round(folder, 1)
    for stream in folder._lines.values():
        os.close(stream.fileno())  # whatever is still to be written now fails
    folder.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"file/run cannot be written: Not a directory"):
        RunFolder(tmp_path / "file" / "run").create("", force=False)


# --- weights ---


def test_weights_are_written_once_for_each_content(folder: RunFolder) -> None:
    names = [folder.write_weights(LAYOUT, vector(value)) for value in (1, 2, 1, 1, 2)]
    assert names[0] == names[2] == names[3]
    files = sorted((folder.path / "public/weights").iterdir())
    assert sorted({*names}) == [path.stem for path in files]
    assert all(name_content(path.read_bytes()) == path.stem for path in files)
