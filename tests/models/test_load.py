"""Exported models in use: closed forms, inputs of every kind, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import covertfl as cf
from tests.support.commands import Run, invoke, refuse
from tests.support.exported_models import (
    ROWS,
    SHORT,
    change,
    export,
    export_vectors,
    read_facts,
    take_apart,
    train_vectors,
)

WORDS = ["vile" if row[0] + row[1] > 4.0 else "fine" for row in ROWS]
LABELS = np.array([word == "vile" for word in WORDS], dtype=np.float32)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes, whose inputs are standardised."""
    return export_vectors(tmp_path_factory.mktemp("vectors"), WORDS)


def standardise(model: Path) -> Any:
    tensors, _ = take_apart(model)
    return (ROWS - tensors["standardisation.mean"]) / tensors["standardisation.deviation"]


def test_two_classes_by_hand(vectors: Path) -> None:
    tensors, _ = take_apart(vectors)
    found = cf.load_model(vectors).predict(ROWS)
    logits = standardise(vectors) @ tensors["0.weight"][0] + tensors["0.bias"][0]
    second = 1.0 / (1.0 + np.exp(-logits))
    np.testing.assert_allclose(found.probabilities, np.stack([1 - second, second], 1), rtol=1e-4)
    assert found.labels == tuple("vile" if one > 0.5 else "fine" for one in second)
    np.testing.assert_allclose(found.scores, np.maximum(second, 1.0 - second), rtol=1e-4)
    assert set(found.labels) == {"fine", "vile"}
    assert sum(found.count().values()) == len(ROWS)
    assert json.loads(json.dumps(found.to_dict()))["labels"] == list(found.labels)
    assert "90" in repr(found) and "vile" in found._repr_html_()


def test_the_threshold_is_that_of_the_file(vectors: Path, tmp_path: Path) -> None:
    """An even chance is not above a half."""
    output = {**read_facts(vectors)["output"], "threshold": 0.8}
    other = change(vectors, tmp_path / "other.safetensors", {"output": output})
    second = cf.load_model(vectors).predict(ROWS).probabilities[:, 1]
    assert ((second > 0.5) != (second > 0.8)).any()
    found = cf.load_model(other).predict(ROWS)
    assert found.labels == tuple("vile" if one > 0.8 else "fine" for one in second)
    zeros = {key: np.zeros_like(take_apart(vectors)[0][key]) for key in ("0.weight", "0.bias")}
    even = cf.load_model(change(vectors, tmp_path / "even.safetensors", tensors=zeros))
    found = even.predict(ROWS[:2])
    assert found.labels == ("fine", "fine") and (found.probabilities == 0.5).all()


def test_three_classes_without_names_and_with_a_map(tmp_path: Path) -> None:
    labels = np.digitize(ROWS[:, 0], [0.5, 3.5]).tolist()
    model = export_vectors(tmp_path, labels, map="public")
    tensors, _ = take_apart(model)
    mean, basis, scale = (tensors[f"public_map.{key}"] for key in ("mean", "basis", "scale"))
    inputs = (standardise(model) - mean) @ basis * scale
    powers = np.exp(inputs @ tensors["0.weight"].T + tensors["0.bias"])
    expected = powers / powers.sum(axis=1, keepdims=True)
    found = cf.load_model(change(model, tmp_path / "bare.safetensors", {"classes": []}))
    np.testing.assert_allclose(found.predict(ROWS).probabilities, expected, rtol=1e-4)
    assert found.predict(ROWS).labels == tuple(str(one) for one in expected.argmax(axis=1))
    assert found.predict(ROWS).classes == ("0", "1", "2")


def test_no_inputs_give_no_predictions(vectors: Path) -> None:
    found = cf.load_model(vectors).predict(ROWS[:0])
    assert (found.labels, found.probabilities.shape) == ((), (0, 2))


class Own(nn.Module):
    """A module that a file cannot describe."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.order = nn.Buffer(torch.arange(4))  # not trained, so not in the file

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return twice what the layer returns."""
        return torch.mul(self.layer(inputs[:, self.order]), 2.0)


def make_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def train_own(make_model: Any, folder: Path) -> tuple[Path, float]:
    """Train a task made in Python; return its model and its accuracy."""
    examples = cf.Examples(ROWS.astype(np.float32), LABELS)
    task = cf.TrainingTask(
        name="own",
        make_model=make_model,
        loss="binary",
        train=examples,
        clients=tuple(np.arange(90).reshape(3, 30)),
        public=examples,
        validation=examples,
        classes=("fine", "vile"),
    )
    summary = cf.Run(task=task, **SHORT | {"rounds": 6}).train(folder / "run").runs[0]
    assert summary.updates_done > 0 and summary.learner_accuracy is not None
    return export(folder / "run", folder / "model.safetensors"), summary.learner_accuracy


def test_a_module_of_ones_own_is_passed(tmp_path: Path) -> None:
    path, accuracy = train_own(Own, tmp_path)
    with pytest.raises(cf.InvalidInput, match=r"holds a .*Own, which it cannot describe: "):
        cf.load_model(path)
    found, tensors = cf.load_model(path, Own).predict(ROWS), take_apart(path)[0]
    logits = 2.0 * (ROWS @ tensors["layer.weight"][0] + tensors["layer.bias"][0])
    odds = found.probabilities[:, 1] / found.probabilities[:, 0]
    np.testing.assert_allclose(np.log(odds), logits, rtol=1e-3, atol=1e-5)
    assert np.mean((np.array(found.labels) == "vile") == (LABELS == 1)) == pytest.approx(accuracy)


def test_running_statistics_are_part_of_the_model(tmp_path: Path) -> None:
    path, accuracy = train_own(make_normed, tmp_path)
    model = cf.load_model(path)
    assert model.module.state_dict()["1.running_mean"].abs().sum() > 0
    said = np.array(model.predict(ROWS).labels) == "vile"
    assert np.mean(said == (LABELS == 1)) == pytest.approx(accuracy)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("one text", "got a single text"),
        (["a text"], r"takes numbers \(numbers as in the file\), got texts"),
        (ROWS[:, :3], r"shape \(n, 4\), got float64 of shape \(90, 3\)"),
        (np.array(3.0), "got float64 of shape"),
        (np.where(ROWS > 4, np.nan, ROWS), "inputs must be finite"),
        (ROWS.astype(str), "must be numbers"),
    ],
)
def test_other_inputs_are_refused(vectors: Path, inputs: Any, said: str) -> None:
    with pytest.raises(cf.InvalidInput, match=said):
        cf.load_model(vectors).predict(inputs)


LINEAR = {"name": "0", "type": "Linear", "in_features": 4, "out_features": 3, "bias": True}


@pytest.mark.parametrize(
    ("facts", "tensors"),
    [
        ({"inputs": {}}, {}),
        ({"output": {"threshold": 2.0}}, {}),
        ({"classes": ["only one"]}, {}),
        ({"inputs": {"shape": [4], "encoder": {"name": "x"}}}, {}),
        ({"architecture": {"type": "Sequential", "layers": []}}, {}),
        ({"architecture": 3}, {}),
        ({"architecture": None}, {}),
        (
            {"architecture": {"type": "Sequential", "layers": [{"name": "0", "type": "Bilinear"}]}},
            {},
        ),
        ({"architecture": {"type": "Sequential", "layers": [LINEAR]}}, {}),
        ({"inputs": {"shape": [5], "encoder": None, "meaning": ""}}, {}),
        ({}, {"standardisation.other": np.zeros(4)}),
        ({}, {"standardisation.deviation": np.zeros(4)}),
        ({}, {"0.weight": np.zeros((3, 4), np.float32)}),
    ],
)
def test_files_that_do_not_describe_their_model_are_refused(
    vectors: Path, tmp_path: Path, facts: dict[str, Any], tensors: dict[str, Any]
) -> None:
    path = change(vectors, tmp_path / "changed.safetensors", facts, tensors)
    with pytest.raises(cf.InvalidInput, match=r"changed\.safetensors"):
        cf.load_model(path)


def test_files_of_vectors_are_scored(vectors: Path, tmp_path: Path, run: Run) -> None:
    rows, scored = tmp_path / "rows.npz", tmp_path / "scored.csv"
    np.savez(rows, features=ROWS)
    assert run("predict", vectors, rows, "-o", scored).status == 0
    found, lines = cf.load_model(vectors).predict(ROWS), scored.read_text().splitlines()
    assert lines[0] == "label,score"
    assert lines[1:] == [f"{a},{b}" for a, b in zip(found.labels, found.scores, strict=True)]
    said = refuse(run("predict", vectors, rows, "-o", tmp_path / "x.csv", "--text", "text"), 2)
    assert "rows.npz holds vectors and no column text" in said


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of comments whose answer is always the same: weights of zero and a bias of one."""
    pytest.importorskip("wordllama")
    folder = tmp_path_factory.mktemp("texts")
    rows = [f"{n},fine,a kind word {n}\n{n},vile,an awful insult {n}" for n in range(60)]
    (folder / "comments.csv").write_text("\n".join(["id,kind,comment", *rows]) + "\n")
    mine = folder / "mine.npz"
    told = ("--text", "comment", "--label", "kind")
    assert invoke("embed", folder / "comments.csv", "-o", mine, *told).status == 0
    model = train_vectors(folder, mine)
    shapes = {key: tensor.shape for key, tensor in take_apart(model)[0].items()}
    zeros = {key: np.zeros(shape, np.float32) for key, shape in shapes.items() if "0." in key}
    zeros["0.bias"] += 1.0
    return change(model, folder / "even.safetensors", tensors=zeros)


@pytest.mark.parametrize(
    ("content", "column", "said"),
    [
        ("comment,other\na,b\n", None, ""),
        ("n,text\n1,hello\n", None, ""),
        ("text\n17\n", None, ""),
        ("n,one,two\n1,a,b\n", "two", ""),
        ("n,one,two\n1,a,b\n", None, "--text, one of one, two"),
        ("n,one\n1,a\n", "three", "has no column three; its columns are n, one"),
        ("comment,score\na,1\n", None, "--prefix predicted_"),
        ("comment\n", None, "has no rows"),
    ],
)
def test_the_column_of_texts(
    tmp_path: Path, text_model: Path, run: Run, content: str, column: str | None, said: str
) -> None:
    path, scored = tmp_path / "new.csv", tmp_path / "scored.csv"
    path.write_text(content)
    chosen = () if column is None else ("--text", column)
    arguments = ("predict", text_model, path, "-o", scored, *chosen)
    if said:
        message = refuse(run(*arguments), 2)
        assert "new.csv" in message and said in message
        assert not scored.exists()
    else:
        assert run(*arguments, "--prefix", "p_").status == 0
        header, row = scored.read_text().splitlines()
        assert header == content.splitlines()[0] + ",p_label,p_score"
        assert row.startswith(content.splitlines()[1] + ",vile,")
        assert float(row.rpartition(",")[2]) == pytest.approx(1.0 / (1.0 + np.exp(-1.0)))
