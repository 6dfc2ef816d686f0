"""Nodes keep their client numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.node_numbers import KnownNodeNumbers, StoredNodeNumbers
from covertfl.errors import InvalidInput


def test_known_nodes_only() -> None:
    assert KnownNodeNumbers({9: 1, 7: 0}).assign([7, 8, 9]) == {0: 7, 1: 9}


def test_nodes_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "nodes.jsonl"
    numbers = StoredNodeNumbers(path)
    assert numbers.assign([70, 50]) == {0: 50, 1: 70}
    assert numbers.assign([70, 60]) == {1: 70, 2: 60}
    assert StoredNodeNumbers(path).assign([60, 50, 40]) == {0: 50, 2: 60, 3: 40}
    assert path.stat().st_mode & 0o077 == 0
    with path.open("a") as stream:
        stream.write('{"client": 4, "no')  # cut off in the middle
    assert StoredNodeNumbers(path).assign([40]) == {3: 40}
    assert StoredNodeNumbers(path).assign([30]) == {4: 30}
    assert StoredNodeNumbers(path).assign([30, 70]) == {1: 70, 4: 30}
    path.write_text('{"client": 4}\n')
    with pytest.raises(InvalidInput, match="does not hold the numbers of nodes"):
        StoredNodeNumbers(path)
