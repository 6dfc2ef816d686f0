"""A steady folder takes the same work in every round, whatever was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.steady_folder import SPARE, SteadyFolder, SteadyWeightFiles
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.folder import WEIGHTS, RunFolder
from tests.support.run_folders import LAYOUT, vector


@pytest.mark.parametrize("kind", [SteadyFolder, RunFolder])
def test_every_steady_round_writes_one_new_file(kind: type[RunFolder], tmp_path: Path) -> None:
    folder, place = kind(tmp_path), tmp_path / "public" / "weights"
    folder.create("", force=True)
    weights, counts = [vector(1), vector(2)], []
    for number, which in enumerate([0, 0, 1, 0, 1], start=1):
        name = folder.write_weights(LAYOUT, weights[which])
        folder.seal(Checkpoint(number, {"true": weights[0]}, {}))
        counts.append(len(list(place.iterdir())))
        assert (place / f"{name}.safetensors").exists()
    assert counts == ([1, 2, 2, 3, 3] if kind is SteadyFolder else [1, 1, 2, 2, 2])
    assert len({path.stat().st_size for path in place.iterdir()}) == 1
    folder.close()
    assert len(list(place.iterdir())) == 2


def test_there_is_one_spare_file_however_often_a_query_repeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round removes the spare of the one before, whatever it sends itself."""
    removals: list[int] = []
    remove = SteadyWeightFiles.remove_old

    def count(self: SteadyWeightFiles) -> None:
        removals.append(1)
        remove(self)

    monkeypatch.setattr(SteadyWeightFiles, "remove_old", count)
    folder, left = SteadyFolder(tmp_path), []
    folder.create("seed = 1\n", force=True)
    for number, value in enumerate([1, 1, 1, 2, 3, 1, 2, 2], start=1):
        name = folder.write_weights(LAYOUT, vector(value))
        folder.append("public/rounds.jsonl", {"round": number, "client": None, "weights": name})
        folder.seal(Checkpoint(number, {"true": vector(value)}, {}))
        left.append(len(list((tmp_path / WEIGHTS).glob(f".*{SPARE}"))))
    assert left == [0, 1, 1, 0, 0, 1, 1, 1]
    assert len(removals) == 8
    folder.close()
    again = SteadyFolder(tmp_path)
    checkpoint = again.resume("seed = 1\n")
    assert checkpoint is not None and checkpoint.round == 8
    assert len(list((tmp_path / WEIGHTS).iterdir())) == 3
    again.close()
