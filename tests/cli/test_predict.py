"""The command `predict`, and the whole way to it from a file of comments."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import ROOT
from tests.support.commands import RUN_FILE, Run
from tests.support.documents import find_blocks

NEW = ["a kind word, friend", "such an awful insult!", "nothing at all", "", "kind insult, d'oh"]


def write_comments(path: Path) -> None:
    lines = ["id,kind,comment"]
    lines += [
        f"{n},fine,a kind word number {n}\n{n},vile,an awful insult number {n}" for n in range(150)
    ]
    path.write_text("\n".join(lines))


def write_run(path: Path) -> None:
    text = RUN_FILE.replace('"digits"', '"embeddings"').replace("rounds = 8", "rounds = 40")
    text = text.replace("batch_size = 20", "batch_size = 10\noptimizer = { lr = 0.01 }")
    path.write_text(text + "[data]\npath = 'mine.npz'\npublic_size = 0.5\n")


def test_the_whole_way(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From comments with classes to scored comments, and the same in Python and in plain torch."""
    pytest.importorskip("torch")
    pytest.importorskip("wordllama")
    import covertfl as cf

    monkeypatch.chdir(tmp_path)
    write_comments(tmp_path / "comments.csv")
    write_run(tmp_path / "run.toml")
    with (tmp_path / "new.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("place", "comment"), *enumerate(NEW)])
    for command in (
        "embed comments.csv -o mine.npz --text comment --label kind",
        "train run.toml --out runs/first",
        "export runs/first -o model.safetensors",
        "predict model.safetensors new.csv -o scored.csv",
    ):
        outcome = run(*command.split())
        assert (outcome.status, outcome.err) == (0, ""), command
    rows = list(csv.DictReader((tmp_path / "scored.csv").read_text().splitlines()))
    assert list(rows[0]) == ["place", "comment", "label", "score"]
    assert [row["comment"] for row in rows] == NEW
    labels, scores = [row["label"] for row in rows], [float(row["score"]) for row in rows]
    assert labels[:2] == ["fine", "vile"] and min(scores) >= 0.5
    found = cf.load_model("model.safetensors").predict(NEW)
    assert list(found.labels) == labels
    np.testing.assert_array_equal(found.scores, scores)
    assert "`comment`" in (tmp_path / "model.md").read_text()
    pairs = zip(NEW, labels, scores, strict=True)
    follow_the_page({text: score if is_ == "vile" else 1.0 - score for text, is_, score in pairs})


def follow_the_page(probabilities: dict[str, float]) -> None:
    """Run the code of docs/models.md: without covertfl the predictions are the same."""
    in_python, head, encoder = find_blocks(
        "python", (ROOT / "docs" / "models.md").read_text("utf-8")
    )
    assert "covertfl" not in (head + encoder).replace("covertfl_model", "")
    names: dict[str, Any] = {}
    for code in (in_python, head, encoder):
        exec(compile(code, "models.md", "exec"), names)
    texts = [text for text in probabilities if text]  # its encoder has no vector of an empty text
    vectors = names["encoder"].embed([names["clean"](text) for text in texts])
    found = names["predict"](names["torch"].from_numpy(vectors)).detach().numpy()
    np.testing.assert_allclose(found, [probabilities[text] for text in texts], rtol=1e-3, atol=1e-9)
