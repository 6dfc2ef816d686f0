"""The files of versions: whole, for the owner only, and gone when they are withdrawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covertfl.errors import InvalidInput
from covertfl.service.store import Version
from covertfl.service.versions import read_version, remove_version, write_version
from tests.service.test_desk import DRAWN
from tests.support.played_services import play_service

VERSION = Version(3, 1, 7, 2, {"value": 0.5}, 12.0)


def test_a_version_is_the_checkpoint_or_a_copy_of_another(tmp_path: Path) -> None:
    play_service(tmp_path, {}, 5, base=DRAWN)
    write_version(tmp_path, VERSION)
    state = tmp_path / "versions/3/state.safetensors"
    assert state.read_bytes() == (tmp_path / "checkpoint/state.safetensors").read_bytes()
    assert read_version(tmp_path, 3).round == 5
    source = tmp_path / "versions/0/state.safetensors"
    write_version(tmp_path, VERSION, source)
    assert state.read_bytes() == source.read_bytes() and read_version(tmp_path, 3).round == 0
    facts = json.loads((state.parent / "version.json").read_text())
    assert facts == {
        "version": 3,
        "parent": 1,
        "round": 7,
        "request": 2,
        "metrics": {"value": 0.5},
        "released": 12.0,
    }
    assert {path.stat().st_mode & 0o777 for path in state.parent.iterdir()} == {0o600}
    assert state.parent.stat().st_mode & 0o777 == 0o700


def test_a_withdrawn_version_is_removed_also_if_that_was_interrupted(tmp_path: Path) -> None:
    play_service(tmp_path, {}, 2, base=DRAWN)
    write_version(tmp_path, VERSION)
    (tmp_path / "versions/3/version.json").unlink()
    for _ in range(2):
        remove_version(tmp_path, 3)
        assert not (tmp_path / "versions/3").exists()
    with pytest.raises(InvalidInput, match="the state of version 3 is needed"):
        read_version(tmp_path, 3)


def test_a_damaged_version_is_refused(tmp_path: Path) -> None:
    play_service(tmp_path, {}, 2, base=DRAWN)
    state = tmp_path / "versions/0/state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(bytes(content))
    with pytest.raises(InvalidInput, match="is damaged"):
        read_version(tmp_path, 0)
