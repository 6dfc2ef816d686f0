"""Which weights stay in the folder of a run, and what is removed after a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.steady_folder import SPARE, SteadyFolder
from covertfl.kernels.job import name_content
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.files import read_lines
from covertfl.runs.folder import WEIGHTS, Keep, RunFolder, stream_weights
from tests.support.run_folders import LAYOUT, SETTINGS_TEXT, vector
from tests.support.tensors import serialise

pytestmark = pytest.mark.slow

SENT = (1, 1, 2, 3, 1, 2, 2, 2, 4, 1, 1, 5, 1, 5, 6)
NAMES = {value: name_content(serialise(LAYOUT, vector(value))) for value in set(SENT)}
Open = Callable[[], RunFolder]


def play(folder: RunFolder, number: int, *, seals: bool = True) -> None:
    """Play a round, with weights that may have been sent before."""
    weights = vector(SENT[number - 1])
    folder.begin_query(LAYOUT, weights, {"true": weights})
    name = folder.write_weights(LAYOUT, weights)
    folder.append("public/rounds.jsonl", {"round": number, "client": None, "weights": name})
    if seals:
        folder.seal(Checkpoint(number, {"true": weights, "other": weights}, {}))


def list_kept(folder: RunFolder) -> set[str]:
    files = list((folder.path / WEIGHTS).glob("[!.]*"))
    assert all(name_content(file.read_bytes()) == file.stem for file in files)
    return {file.stem for file in files}


def expect(keep: Keep, rounds: int) -> set[str]:
    values = SENT[:rounds] if keep == "all" else () if keep == "hashes" else SENT[:rounds][-keep:]
    return {NAMES[value] for value in values}


def test_blocks_are_what_is_serialised() -> None:
    assert b"".join(stream_weights(LAYOUT, vector(3))) == serialise(LAYOUT, vector(3))


@pytest.mark.parametrize("kind", [RunFolder, SteadyFolder])
@pytest.mark.parametrize("keep", ["all", "hashes", 1, 2, 4, 100])
@pytest.mark.parametrize("cut", [None, 1, 3, 6, 9])
def test_the_weights_of_the_last_rounds_stay(
    tmp_path: Path, kind: type[RunFolder], keep: Keep, cut: int | None
) -> None:
    folder = kind(tmp_path / "run", keep=keep)
    folder.create(SETTINGS_TEXT, force=False)
    for number in range(1, len(SENT) + 1):
        play(folder, number)
        assert expect(keep, number) <= list_kept(folder)
        if number == cut:
            play(folder, number + 1, seals=False)
            folder.close()
            assert expect(keep, number) <= list_kept(folder)
            folder = kind(tmp_path / "run", keep=keep)
            found = folder.resume(SETTINGS_TEXT)
            assert found is not None and found.round == number
            assert list_kept(folder) == expect(keep, number)
    folder.close()
    assert list_kept(folder) == expect(keep, len(SENT))
    assert not list((tmp_path / "run" / WEIGHTS).glob(".*"))
    lines = read_lines(tmp_path / "run" / "public/rounds.jsonl")
    assert [line["weights"] for line in lines] == [NAMES[value] for value in SENT]


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_every_steady_round_writes_one_file_and_removes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    removed: list[str] = []
    unlink = Path.unlink

    def count(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "weights":
            assert path.exists()
            removed.append(path.name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", count)
    folder = SteadyFolder(tmp_path / "run", keep=keep)
    folder.create(SETTINGS_TEXT, force=False)
    for number in range(1, len(SENT) + 1):
        play(folder, number)
        # The file of the round that has left is removed while the clients of the next work.
        assert len(removed) == max(0, number - 1 - keep)
        assert len(list((folder.path / WEIGHTS).iterdir())) == min(number, keep + 1)
    folder.close()
    assert any(name.endswith(SPARE) for name in removed)


def test_other_rounds_may_be_kept_after_a_resume(tmp_path: Path) -> None:
    keeps: list[Keep] = ["all", 3, "hashes", 2, "all"]
    for place, keep in enumerate(keeps):
        folder = SteadyFolder(tmp_path / "run", keep=keep)
        if place == 0:
            folder.create(SETTINGS_TEXT, force=False)
        else:
            folder.resume(SETTINGS_TEXT)
        for number in range(3 * place + 1, 3 * place + 4):
            play(folder, number)
        folder.close()
    kept = list_kept(folder)
    assert {NAMES[value] for value in SENT[12:]} <= kept
    assert kept <= {NAMES[value] for value in SENT[6:]}
