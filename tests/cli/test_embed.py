"""The command `embed`: texts become vectors that can be trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import RUN_FILE, Run, refuse


def test_embed_and_train_on_it(run: Run, run_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("wordllama")
    lines = ["comment,toxic"]
    lines += [f"a kind word number {n},0\nan awful insult number {n},1" for n in range(150)]
    texts, vectors = tmp_path / "texts.csv", tmp_path / "mine.npz"
    texts.write_text("\n".join(lines))
    outcome = run("embed", texts, "-o", vectors, "--text", "comment", "--label", "toxic")
    assert (outcome.status, outcome.err) == (0, "")
    assert "300 texts" in outcome.out
    text = RUN_FILE.replace('"digits"', '"embeddings"').replace("rounds = 8", "rounds = 40")
    text = text.replace("batch_size = 20", "batch_size = 10\noptimizer = { lr = 0.01 }")
    run_file.write_text(text + "[data]\npath = 'mine.npz'\npublic_size = 0.5\n")
    content = run("train", run_file, "--out", tmp_path / "out", "--json").content
    assert content["runs"][0]["learner_accuracy"] > 0.8


def test_a_missing_file_of_texts(run: Run, tmp_path: Path) -> None:
    assert "none.csv" in refuse(run("embed", tmp_path / "none.csv", "-o", tmp_path / "x.npz"), 2)
