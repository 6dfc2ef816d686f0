"""The command `embed`: texts become vectors that can be trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import Run, refuse


def test_a_missing_file_of_texts(run: Run, tmp_path: Path) -> None:
    assert "none.csv" in refuse(run("embed", tmp_path / "none.csv", "-o", tmp_path / "x.npz"), 2)


def test_texts_without_labels(run: Run, run_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("wordllama")
    texts, vectors = tmp_path / "texts.tsv", tmp_path / "mine.npz"
    texts.write_text("n\ttext\n1\tone\n2\ttwo\n")
    outcome = run("embed", texts, "-o", vectors)
    assert (outcome.status, outcome.err) == (0, "")
    assert "2 texts as vectors; without labels" in outcome.out
    run_file.write_text("task = 'embeddings'\n[data]\npath = 'mine.npz'\n")
    said = refuse(run("train", run_file, "--out", tmp_path / "out"), 2)
    assert "mine.npz must hold the arrays features and labels" in said
    assert "embed the texts again with --label COLUMN" in said
