"""Finished parts are found again, and only by those who mean them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from paper.cells import CellStore, Compute, Key, open_pool

from covertfl.errors import CovertflError, InvalidInput
from covertfl.kernels.job import count_cores

KEY = {"part": "some", "seed": 1, "settings": {"b": 2, "a": (1, 2)}}


class Counted:
    """Computes a score and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        return {"score": 0.5}


def test_a_cell_is_computed_once(tmp_path: Path) -> None:
    compute = Counted()
    for store in (CellStore(tmp_path), CellStore(tmp_path)):
        assert store.work_out({"one": (KEY, compute)}) == {"one": {"score": 0.5}}
    assert compute.calls == 1
    assert CellStore(tmp_path).find({**KEY, "seed": 2}) is None
    reordered = {"settings": {"a": (1, 2), "b": 2}, "seed": 1, "part": "some"}
    assert CellStore(tmp_path).find(reordered) == {"score": 0.5}


def describe(number: int) -> dict[str, int]:
    return {"number": number, "process": os.getpid()}


def end_oneself(number: int) -> dict[str, int]:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return describe(number)


def list_parts(compute: Callable[[int], dict[str, int]]) -> dict[str, tuple[Key, Compute]]:
    return {str(n): ({**KEY, "seed": n}, partial(compute, n)) for n in range(4)}


@pytest.mark.skipif(count_cores() < 2, reason="needs two cores")
def test_parts_are_computed_in_other_processes_and_one_that_ends_is_told(tmp_path: Path) -> None:
    told: list[float] = []
    with open_pool() as pool:
        store = CellStore(tmp_path, lambda _, share: told.append(share), pool)
        found = store.work_out(list_parts(describe))
        assert [found[str(n)]["number"] for n in range(4)] == [0, 1, 2, 3]
        assert os.getpid() not in {part["process"] for part in found.values()}
        assert told == [0.25, 0.5, 0.75, 1.0]
        with pytest.raises(CovertflError, match="was ended from outside"):
            CellStore(tmp_path / "other", None, pool).work_out(list_parts(end_oneself))


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
    store.work_out({name: ({**KEY, "seed": name}, Counted()) for name in ("first", "last")})
    assert [share for _, share in told] == [0.5, 1.0]
    assert told[1][0] == "last, about 0 s left"
