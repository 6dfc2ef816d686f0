"""Queries read from public folders, intact and damaged, and compared with the private records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save

from covertfl.auditing.overheard import find_first_matrix, find_truth, overhear
from covertfl.kernels.job import Layout, name_content
from tests.support.audits import write_public
from tests.support.commands import Run, refuse
from tests.support.seen_queries import SeenQuery


def make_queries(numbers: list[int], values: list[float] | None = None) -> tuple[SeenQuery, ...]:
    """Queries on given trajectories, of weights that are all different if not given."""
    return tuple(
        SeenQuery(t, number, np.full(1, values[t - 1] if values else t, np.float32), None)
        for t, number in enumerate(numbers, start=1)
    )


@pytest.mark.parametrize(
    ("separated", "actual", "truth", "misplaced"),
    [
        ([0, 1, 0, 1], [0, 1, 0, 1], {0: True, 1: False}, 0),
        ([0, 1, 0, 1], [1, 0, 1, 0], {0: False, 1: True}, 0),
        ([0, 0, 0], [0, 0, 0], {0: True}, 0),
        # One query on the wrong side.
        ([0, 1, 0, 1, 0], [0, 1, 0, 0, 0], {0: True, 1: True}, 2),
        ([0, 1, 0, 1, 1, 1], [0, 1, 0, 0, 1, 1], {0: True, 1: False}, 1),
        # The true trajectory in two parts, the smaller of which went misplaced.
        ([0, 0, 0, 1, 2, 2], [0, 0, 0, 0, 1, 1], {0: True, 1: True, 2: False}, 1),
        # Two trajectories taken for one.
        ([0, 0, 0, 0, 0], [0, 0, 1, 1, 1], {0: False}, 2),
        # Split and merged: 0 lost two queries to a part that also holds the only one of 1.
        ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1], {0: True, 1: True}, 3),
        ([0, 1, 2, 3], [0, 0, 1, 2], {0: True, 1: True, 2: False, 3: False}, 1),
    ],
)
def test_queries_misplaced_are_counted(
    separated: list[int], actual: list[int], truth: dict[int, bool], misplaced: int
) -> None:
    records = [{"trajectory": trajectory} for trajectory in actual]
    found = find_truth(make_queries(separated), records)
    assert found == (truth, misplaced)
    assert found[1] <= len(separated)


@pytest.mark.parametrize(
    ("linked", "actual", "truth", "misplaced"),
    [
        # The common start, sent three times, is right on either chain, and so is where it begins.
        ([0, 0, 0, 0, 1, 0, 1], [0, 1, 0, 0, 1, 0, 1], {0: True, 1: False}, 0),
        ([0, 1, 1, 1, 0, 1, 0], [0, 1, 0, 0, 1, 0, 1], {0: False, 1: True}, 0),
        # It decides nothing: the rest of each chain does.
        ([0, 0, 0, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 1], {0: True, 1: False}, 0),
        ([0, 1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 1, 0, 1], {0: True, 1: False}, 1),
    ],
)
def test_weights_that_several_sent_are_right_on_each(
    linked: list[int], actual: list[int], truth: dict[int, bool], misplaced: int
) -> None:
    queries = make_queries(linked, [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    records = [{"trajectory": trajectory} for trajectory in actual]
    assert find_truth(queries, records) == (truth, misplaced)


def test_a_chain_that_never_left_the_common_start_is_the_other_one() -> None:
    """Most queries of the start were true, but the true trajectory is the one that moved on."""
    queries = make_queries([0, 0, 0, 0, 1, 1], [0.0, 0.0, 0.0, 0.0, 1.0, 2.0])
    records = [{"trajectory": trajectory} for trajectory in (0, 0, 1, 0, 0, 0)]
    assert find_truth(queries, records) == ({0: False, 1: True}, 0)


def test_the_pivot_decides(tmp_path: Path) -> None:
    """All weights together say more of the bias, which is longer, than of the pivot."""
    sent = [
        {"bias": np.full(3, bias, np.float32), "weight": np.full((1, 2), value, np.float32)}
        for bias, value in [(100.0, 1.0), (105.0, -1.0), (100.0, -1.1), (105.0, 1.1)]
    ]
    folder = write_public(tmp_path / "public", sent)
    by_pivot = overhear(folder, trajectories=2, pivot="weight")
    assert [query.trajectory for query in by_pivot] == [0, 1, 1, 0]
    step = np.sqrt(3 * 5.0**2 + 2 * 0.1**2)  # of all weights
    assert [query.moved for query in by_pivot[2:]] == pytest.approx([step, step], rel=1e-6)
    by_all = overhear(folder, trajectories=2)
    assert [query.trajectory for query in by_all] != [0, 1, 1, 0]


def test_the_pivot_is_the_first_matrix() -> None:
    layout = Layout(("scale", "0.weight", "0.bias", "2.weight"), ((3,), (4, 3), (4,), (2, 4)))
    pivot = find_first_matrix(layout)
    assert pivot == "0.weight" and layout.locate(pivot) == slice(3, 15)
    assert find_first_matrix(Layout(("point",), ((2,),))) is None


def change_weights(public: Path) -> None:
    file = next((public / "weights").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")


def remove_weights(public: Path) -> None:
    next((public / "weights").iterdir()).unlink()


def add_line(text: str) -> Callable[[Path], None]:
    def damage(public: Path) -> None:
        with (public / "rounds.jsonl").open("a") as stream:
            stream.write(text + "\n")

    return damage


def empty(public: Path) -> None:
    (public / "rounds.jsonl").write_text("")


def add_weights(**tensors: npt.NDArray[Any]) -> Callable[[Path], None]:
    def damage(public: Path) -> None:
        content = save(tensors)
        name = name_content(content)
        (public / "weights" / f"{name}.safetensors").write_bytes(content)
        add_line(json.dumps({"round": 13, "client": None, "weights": name}))(public)

    return damage


@pytest.mark.parametrize("alone", [False, True], ids=["run", "public folder"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_weights, "its content does not match its name"),
        (remove_weights, r"\.safetensors: no such file"),
        (add_line("{"), r"rounds\.jsonl line 13 is not JSON"),
        (add_line("[]"), "line 13 must be a JSON object"),
        (add_line('{"round": 1}'), "line 13 must have the keys round, client and weights"),
        (add_line('{"round": 1, "client": null, "weights": "../x"}'), "line 13 must have whole"),
        (empty, "holds no query"),
        (add_weights(other=np.ones(3)), "is of another model than the rest"),
    ],
)
def test_damage_is_named_in_one_sentence(
    copied: Path, damage: Callable[[Path], None], message: str, alone: bool, run: Run
) -> None:
    damage(copied / "public")
    folder = copied / "public" if alone else copied
    assert re.search(message, refuse(run("audit", folder), 2))


def test_no_rounds_at_all(copied: Path, run: Run) -> None:
    (copied / "public/rounds.jsonl").unlink()
    assert "rounds.jsonl: no such file" in refuse(run("audit", copied), 2)
    (copied / "run.toml").unlink()
    said = refuse(run("audit", copied), 2)
    assert "is neither the folder of a run nor a public folder" in said


def test_numbers_that_are_none(tmp_path: Path, run: Run) -> None:
    folder = write_public(tmp_path / "a", [{"w": np.array([1.0, np.nan], dtype=np.float32)}])
    assert "must hold finite numbers" in refuse(run("audit", folder), 2)


def test_kinds_of_numbers_that_numpy_does_not_have(tmp_path: Path, run: Run) -> None:
    import torch
    from safetensors.torch import save as save_torch

    folder = write_public(tmp_path / "a", [])
    content = save_torch({"w": torch.ones(3, dtype=torch.bfloat16)})
    name = name_content(content)
    (folder / "weights" / f"{name}.safetensors").write_bytes(content)
    add_line(json.dumps({"round": 1, "client": 1, "weights": name}))(folder)
    assert "must hold numbers of 16, 32 or 64 bits" in refuse(run("audit", folder), 2)
