"""Folders of runs: which are found, and what is written into them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from covertfl.cli.app import app
from covertfl.errors import InvalidInput
from covertfl.runs.files import find_runs
from tests.support.small_runs import read_folder


@pytest.mark.parametrize("recorded", ["public", "eavesdropper"])
def test_nothing_is_written_into_a_public_folder(
    copied: Path, capsys: pytest.CaptureFixture[str], recorded: str
) -> None:
    if recorded == "eavesdropper":  # as the listening node of a deployment keeps it
        shutil.copytree(copied / "public", copied / recorded)
    before = read_folder(copied)
    app(["audit", str(copied / recorded), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    assert read_folder(copied) == before
    app(["audit", str(copied), "--rehearsals", "0"], standalone_mode=False)
    assert read_folder(copied).keys() - before.keys() == {"audit.json"}


def test_folders_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no run"):
        find_runs(tmp_path)
    with pytest.raises(InvalidInput, match="no such folder"):
        find_runs(tmp_path / "nowhere")
    for number in (10, 2, 0):
        (tmp_path / f"seed-{number}" / "public").mkdir(parents=True)
    assert [run.name for run in find_runs(tmp_path)] == ["seed-0", "seed-2", "seed-10"]
