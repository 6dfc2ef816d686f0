"""The section on a GPU: its rows on a CPU in its place, and what is judged of given numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

PEAKS = {True: 4e12, False: 2e12}


@pytest.fixture
def bench(load: Any) -> Any:
    return load("cnn_on_gpu")


def make_command(bench: Any, seconds: float, value: float = 0.5) -> Any:
    result = {"examples": 10**6, "settings": {"model": "paper-cnn"}, "rows": [{"learner": value}]}
    return bench.Command("`covertfl x`", seconds, dict.fromkeys(bench.TABLES, result))


def make_rows(bench: Any) -> list[Any]:
    """Return rows of a million images, with 1e6 operations for each that are counted."""
    seconds = {"8 jobs of 40 images": 1.0}
    for name in bench.MODELS:
        seconds |= {f"{name}, vmap": 4.0, f"{name}, float16": 0.5}
    rows = [
        bench.Row(name, 10**6, took, 10**6, "vmap" not in name) for name, took in seconds.items()
    ]
    return [*rows, bench.Row("normed, vmap", 10**6, 1.0, 0)]


def test_all_jobs_are_measured_on_a_cpu(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "REPEATS", 1)
    monkeypatch.setitem(bench.MODELS, "paper-cnn", bench.MODELS["small-cnn"])  # takes less time
    size = bench.Size(2, 40, 2, 2, 40, 80, 32)
    rows, peaks, distance = bench.measure_jobs(size, "cpu")
    assert [(row.name, row.images) for row in rows] == [
        ("2 jobs of 40 images", 80),
        ("2 jobs of 40 images, TF32", 80),
        ("2 jobs of 40 images, float32", 80),
        ("1 jobs of 40 images", 40),
        ("forward, 2 weights", 160),
        *((f"{model}, {kind}", 80) for model in ("small-cnn", "paper-cnn")
          for kind in ("vmap", "float32", "float16")),
        *((f"small-cnn with BatchNorm and dropout, {kind}", 80) for kind in ("vmap", "one by one")),
    ]  # fmt: skip
    assert 0.0 <= distance < 1e-3
    assert set(peaks) == {True, False}
    section = bench.judge(rows, peaks, distance, make_command(bench, 1.0), make_command(bench, 2.0))
    assert all(check.is_met for check in section.checks)
    assert all(len(row) == len(section.columns) for row in section.rows)


def test_numbers_are_judged(bench: Any) -> None:
    section = bench.judge(
        make_rows(bench), PEAKS, 0.001, make_command(bench, 59.0), make_command(bench, 179.0)
    )
    assert section.title == "Convolutional networks on a GPU: many small jobs at once"
    assert section.rows[0] == ("8 jobs of 40 images", "1.000", "1", "1", "25.0%")
    assert section.rows[1] == ("small-cnn, vmap", "4.000", "0.25", "0.25", "12.5%")
    assert section.rows[-1] == ("normed, vmap", "1.000", "1", "", "")
    assert section.ratios == {
        "small-cnn, float16 to vmap": 8.0,
        "paper-cnn, float16 to vmap": 8.0,
        "share of the 16-bit peak, jobs": 0.25,
    }
    assert [check.is_met for check in section.checks] == [True] * 4
    speed = 2e6 * bench.find_network("paper-cnn").flops / 59.0
    [note] = section.notes
    assert "on 2.0 million images" in note
    assert f"{speed / 1e12:.0f} TFLOP/s, {speed / 4e12:.0%} of the 16-bit peak" in note


@pytest.mark.parametrize(
    ("tables", "everything", "value", "distance", "missed"),
    [(181.0, 290.0, 0.5, 0.0, 0), (170.0, 301.0, 0.5, 0.0, 1), (170.0, 290.0, 0.51, 0.0, 2),
     (170.0, 290.0, 0.5, 0.02, 3)],
)  # fmt: skip
def test_each_target_can_be_missed(
    bench: Any, tables: float, everything: float, value: float, distance: float, missed: int
) -> None:
    alone, within = make_command(bench, tables), make_command(bench, everything, value)
    section = bench.judge(make_rows(bench), PEAKS, distance, alone, within)
    assert [number for number, check in enumerate(section.checks) if not check.is_met] == [missed]


def test_the_distance_is_relative_to_the_way(bench: Any) -> None:
    starts, ends = [np.zeros(2), np.ones(2)], [np.array([0.0, 4.0]), np.array([1.0, 3.0])]
    assert bench.find_distance(starts, ends, ends) == 0.0
    assert bench.find_distance(starts, ends, [ends[0] + 1.0, ends[1]]) == pytest.approx(2**0.5 / 4)


def test_a_command_runs_with_a_new_folder(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []

    def run_python(arguments: list[str], *, limit: float) -> str | None:
        called.append(arguments)
        for name in bench.TABLES:
            (Path(arguments[-1]) / f"{name}.json").write_text(json.dumps({"rows": [name]}))
        return "" if len(called) == 1 else None

    monkeypatch.setattr(bench, "run_python", run_python)
    done = bench.reproduce(["all"], "cuda", quick=False)
    assert called[0][:-1] == ["-m", "paper", "all", "--device", "cuda", "--out"]
    assert done.text == "`python -m paper all --device cuda`"
    assert done.results == {name: {"rows": [name]} for name in bench.TABLES}
    assert not Path(called[0][-1]).exists()
    with pytest.raises(RuntimeError, match="took over"):
        bench.reproduce(["all"], "cuda", quick=True)
    assert "--quick" in called[1]
    assert called[0][-1] != called[1][-1]
