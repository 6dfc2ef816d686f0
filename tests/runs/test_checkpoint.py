"""Checkpoints: written, read back, and refused if they are damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import (
    CHECKPOINT,
    LARGE,
    Checkpoint,
    CheckpointDraft,
    measure_header,
    read_checkpoint,
    write_checkpoint,
)
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
        with pytest.raises(InvalidInput, match=r"state\.safetensors(:| is)"):
            read_checkpoint(tmp_path)


def test_a_file_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    from safetensors.numpy import save

    (tmp_path / "checkpoint").mkdir()
    wrong = [{"facts": facts, "format": "3"} for facts in ("[]", "{}", "nonsense")]
    for metadata in (None, {"a": "b"}, *wrong):
        (tmp_path / CHECKPOINT).write_bytes(save({"true": vector(0)}, metadata=metadata))
        with pytest.raises(InvalidInput, match="not a checkpoint of covertfl"):
            read_checkpoint(tmp_path)


@pytest.mark.parametrize(("metadata", "came"), [({}, "nothing"), ({"format": "1"}, "1")])
def test_a_checkpoint_of_another_format_is_refused_by_its_format(
    tmp_path: Path, metadata: dict[str, str], came: str
) -> None:
    from safetensors.numpy import save

    (tmp_path / "checkpoint").mkdir()
    older = save({"true": vector(0)}, metadata={"facts": '{"round": 1}', **metadata})
    (tmp_path / CHECKPOINT).write_bytes(older)
    with pytest.raises(InvalidInput, match=f"format of a run must be 3 .* got {came}"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("size", [6, LARGE])
@pytest.mark.parametrize("room", [8, 4096, 4097])
@pytest.mark.parametrize("change", ["nothing", "values", "size", "names"])
def test_what_was_written_ahead_is_used_if_it_is_still_right(
    tmp_path: Path, change: str, room: int, size: int
) -> None:
    (tmp_path / "checkpoint").mkdir()
    ahead = {"true": np.full(size, 1.0, np.float32)}
    arrays = {"b": vector(3), "z": vector(4), **ahead}
    if change == "values":
        arrays["true"] = np.full(size, 7.0, np.float32)
    elif change == "size":
        arrays["true"] = vector(7)[:3]
    elif change == "names":
        del arrays["true"]
    draft, waited = CheckpointDraft(tmp_path, room), []
    draft.write_ahead(ahead)
    assert read_checkpoint(tmp_path) is None
    checkpoint, lengths = Checkpoint(4, arrays, {"list": [1, None]}), {"metrics.jsonl": 7}
    needed = write_checkpoint(tmp_path, checkpoint, lengths, draft, lambda: waited.append(1))
    assert waited == [1] and measure_header(tmp_path) == needed
    found = read_checkpoint(tmp_path)
    assert found is not None and found.facts["list"] == [1, None]
    assert {name: array.tobytes() for name, array in found.arrays.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["state.safetensors"]
    assert (tmp_path / CHECKPOINT).stat().st_mode & 0o777 == 0o600


def test_a_draft_that_is_closed_leaves_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    write(tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()
    draft = CheckpointDraft(tmp_path, 4096)
    draft.write_ahead({"true": vector(2)})
    draft.close()
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["state.safetensors"]
    assert (tmp_path / CHECKPOINT).read_bytes() == before


def test_a_checkpoint_is_not_replaced_before_what_it_relies_on_is_stored(tmp_path: Path) -> None:
    write(tmp_path)
    before = (tmp_path / CHECKPOINT).read_bytes()

    def fail() -> None:
        assert (tmp_path / CHECKPOINT).read_bytes() == before
        raise InvalidInput("a line file cannot be written")

    with pytest.raises(InvalidInput, match="a line file"):
        write_checkpoint(tmp_path, Checkpoint(4, {"true": vector(1)}, {}), {}, None, fail)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert [path.name for path in (tmp_path / "checkpoint").iterdir()] == ["state.safetensors"]
