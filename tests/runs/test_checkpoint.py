"""Checkpoints: written, read back, and refused if they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint, write_checkpoint
from tests.support.run_folders import vector


def write(folder: Path) -> None:
    (folder / "checkpoint").mkdir()
    checkpoint = Checkpoint(3, {"true": vector(1)}, {"note": "é", "list": [1, None]})
    write_checkpoint(folder, checkpoint, {"metrics.jsonl": 7})


def test_a_checkpoint_is_read_back_from_a_path_or_its_name(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path) is None
    write(tmp_path)
    for folder in (tmp_path, str(tmp_path)):
        found = read_checkpoint(folder)
        assert found is not None
        assert found.round == 3
        assert found.arrays["true"].tobytes() == vector(1).tobytes()
        assert (found.facts["note"], found.facts["list"]) == ("é", [1, None])
        assert found.lengths == {"metrics.jsonl": 7}


def test_a_checkpoint_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / CHECKPOINT
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(InvalidInput, match=r"state\.safetensors is") as caught:
            read_checkpoint(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_with_one_bit_turned_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / CHECKPOINT
    content = file.read_bytes()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0x01
        file.write_bytes(damaged)
        with pytest.raises(InvalidInput, match=r"state\.safetensors is"):
            read_checkpoint(tmp_path)


def test_a_file_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.numpy import save

    (tmp_path / "checkpoint").mkdir()
    for metadata in (None, {"facts": "[]"}, {"facts": "{}"}, {"facts": "nonsense"}, {"a": "b"}):
        (tmp_path / CHECKPOINT).write_bytes(save({"true": vector(0)}, metadata=metadata))
        with pytest.raises(InvalidInput, match="not a checkpoint of covertfl"):
            read_checkpoint(tmp_path)
