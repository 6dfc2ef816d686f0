"""The commands train, export and embed, as a user calls them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from covertfl.cli import app as cli

pytest.importorskip("torch")

RUN = """
task = "digits"
rounds = 8
updates = 3
[federation]
clients = 4
participation = [1, 2, 4]
batch_size = 20
[policy]
kind = "greedy"
[decoy]
kind = "random"
"""


def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["covertfl", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN)
    return path


def test_train_export_and_train_again(
    run_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    status, out, err = call(capsys, monkeypatch, "train", run_file, "--out", folder, "--json")
    assert (status, err) == (0, "")
    (summary,) = json.loads(out)["runs"]
    fixed = {
        "learner_accuracy",
        "updates_done",
        "rounds",
        "learning_queries",
        "exposure",
        "completed",
        "rejected_replies",
        "seconds",
    }
    assert fixed <= set(summary)
    assert summary == json.loads((folder / "summary.json").read_text())

    model = tmp_path / "model.safetensors"
    status, out, err = call(capsys, monkeypatch, "export", folder, "-o", model)
    assert (status, err) == (0, "")
    assert "Keep it off the channel" in out
    assert model.stat().st_mode & 0o077 == 0
    from safetensors import safe_open

    with safe_open(folder / "checkpoint" / "state.safetensors", framework="numpy") as state:
        true = state.get_tensor("true")
    parts = load_file(model)
    assert sum(part.size for part in parts.values()) == true.size
    assert sorted(np.concatenate([part.ravel() for part in parts.values()])) == sorted(true)

    status, _, err = call(capsys, monkeypatch, "train", run_file, "--out", folder)
    assert status == 2
    assert err.count("\n") == 1 and "--resume" in err and "--force" in err
    status, *_ = call(capsys, monkeypatch, "train", run_file, "--out", folder, "--force")
    assert status == 0


def test_seeds_make_a_folder_each(
    run_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "runs"
    status, text, _ = call(capsys, monkeypatch, "train", run_file, "--out", out, "--seeds", 2)
    assert status == 0
    assert "Training runs" in text
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-1"]


def refusals(tmp_path: Path) -> list[tuple[str, list[Any], int, str]]:
    return [
        ("missing file", ["train", tmp_path / "none.toml", "--out", tmp_path / "o"], 2, "no such"),
        ("nothing to export", ["export", tmp_path, "-o", tmp_path / "m"], 2, "holds no run"),
        ("no texts", ["embed", tmp_path / "none.csv", "-o", tmp_path / "x.npz"], 2, "none.csv"),
    ]


@pytest.mark.parametrize("number", range(3))
def test_refusals_are_one_sentence(
    number: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, arguments, expected, part = refusals(tmp_path)[number]
    status, out, err = call(capsys, monkeypatch, *arguments)
    assert (status, out) == (expected, "")
    assert err.count("\n") == 1
    assert part in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ('task = "poetry"', "task must be one of toxicity"),
        ("speed = 3", "unknown key speed; allowed are task, seed"),
        ('seed = "one"', "seed must be a whole number, got 'one'"),
        ("[engine]\ndevice = 'moon'", "device"),
    ],
)
def test_bad_run_files(
    change: str,
    part: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run.toml"
    text = RUN.replace('task = "digits"', change) if change.startswith("task") else RUN
    if change.startswith("["):
        text = RUN + change
    elif not change.startswith("task"):
        text = change + RUN
    path.write_text(text)
    status, _, err = call(capsys, monkeypatch, "train", path, "--out", tmp_path / "out")
    assert status == 2
    assert err.count("\n") == 1
    assert part in err and str(path) in err
    assert not (tmp_path / "out").exists()


def test_embed_and_train_on_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wordllama")
    lines = ["comment,toxic"]
    lines += [f"a kind word number {n},0\nan awful insult number {n},1" for n in range(150)]
    (tmp_path / "texts.csv").write_text("\n".join(lines))
    out = tmp_path / "mine.npz"
    columns = ("--text", "comment", "--label", "toxic")
    status, text, err = call(
        capsys, monkeypatch, "embed", tmp_path / "texts.csv", "-o", out, *columns
    )
    assert (status, err) == (0, "")
    assert "300 texts" in text
    run = RUN.replace('"digits"', '"embeddings"').replace("rounds = 8", "rounds = 40")
    run = run.replace("batch_size = 20", "batch_size = 10\noptimizer = { lr = 0.01 }")
    run += "[data]\npath = 'mine.npz'\npublic_size = 0.5\n"
    (tmp_path / "run.toml").write_text(run)
    status, text, err = call(
        capsys, monkeypatch, "train", tmp_path / "run.toml", "--out", tmp_path / "out", "--json"
    )
    assert (status, err) == (0, "")
    assert json.loads(text)["runs"][0]["learner_accuracy"] > 0.8
