"""Finished parts are found again, and only by those who mean them."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper.trials.cells import CellStore

from covertfl.errors import InvalidInput

KEY = {"part": "some", "seed": 1, "settings": {"b": 2, "a": (1, 2)}}


def test_a_cell_is_computed_once(tmp_path: Path) -> None:
    calls = []

    def compute() -> dict[str, float]:
        calls.append(1)
        return {"score": 0.5}

    for store in (CellStore(tmp_path), CellStore(tmp_path)):
        assert store.work_out(KEY, compute) == {"score": 0.5}
    assert len(calls) == 1
    assert CellStore(tmp_path).find({**KEY, "seed": 2}) is None
    reordered = {"settings": {"a": (1, 2), "b": 2}, "seed": 1, "part": "some"}
    assert CellStore(tmp_path).find(reordered) == {"score": 0.5}


def test_seconds_are_those_of_the_cells_used(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    store.keep(KEY, {"found": 1}, 2.5)
    store.keep({**KEY, "seed": 2}, {"found": 2}, 4.0)
    assert store.seconds == 6.5
    again = CellStore(tmp_path)
    again.find(KEY)
    assert again.seconds == 2.5


def test_a_broken_cell_is_named(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    store.keep(KEY, {"found": 1}, 0.0)
    (path,) = tmp_path.iterdir()
    whole = path.read_text("utf-8")
    broken = ("{", "{}", "[]", "null", whole.replace('"found": 1', ""), whole.replace("0.0", "[]"))
    for text in (*broken, whole.replace('"seed"', '"sead"')):
        path.write_text(text)
        with pytest.raises(InvalidInput, match=f"{path.name} is not a finished cell, remove it"):
            store.find(KEY)


def test_progress_says_what_is_left(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    store = CellStore(tmp_path, lambda words, share: told.append((words, share)))
    store.plan(4)
    store.advance(1, "first")
    store.advance(3, "last")
    assert [share for _, share in told] == [0.25, 1.0]
    assert told[1][0] == "last, about 0 s left"
