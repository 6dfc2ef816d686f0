"""Exported models in use: closed forms, inputs of every kind, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import covertfl as cf
from covertfl.models.contents import ModelContents, pack_model, read_contents
from covertfl.models.export import export_model
from covertfl.models.predict import predict_file
from covertfl.tasks.architecture import describe_model, describe_module
from covertfl.tasks.inputs import Inputs, Standardisation
from covertfl.tasks.models import make_logistic
from covertfl.tasks.public_map import compute_public_map
from covertfl.tasks.toxicity import ENCODER

GENERATOR = np.random.default_rng(5)
ROWS = GENERATOR.normal(2.0, 3.0, size=(30, 4))
STANDARD = Standardisation(ROWS.mean(axis=0), ROWS.std(axis=0))
PUBLIC = cf.Examples(STANDARD.apply(ROWS), (np.arange(30) % 3 == 0).astype(np.float32))
WEIGHT, BIAS = GENERATOR.normal(size=(3, 4)), GENERATOR.normal(size=3)


def make_model() -> nn.Module:
    return make_logistic(4, 1)


def make_three() -> nn.Module:
    return make_logistic(4, 3)


class Own(nn.Module):
    """A module that a file cannot describe."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.order = nn.Buffer(torch.arange(4))  # not trained, so not in the file

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return twice what the layer returns."""
        return torch.mul(self.layer(inputs[:, self.order]), 2.0)


TASK = cf.TrainingTask(
    name="own",
    make_model=make_model,
    loss="binary",
    train=PUBLIC,
    clients=(np.arange(30),),
    public=PUBLIC,
    validation=PUBLIC,
    classes=("fine", "vile"),
    inputs=Inputs(standardisation=STANDARD),
)


def write_model(path: Path, task: cf.TrainingTask = TASK, name: str = "0", **changes: Any) -> Path:
    """Write a model of a task with known weights; its facts are changed as given."""
    outputs = 1 if task.loss == "binary" else 3
    weights = {
        f"{name}.weight": WEIGHT[:outputs].astype(np.float32),
        f"{name}.bias": BIAS[:outputs].astype(np.float32),
    }
    facts = describe_model(task) | changes
    contents = ModelContents(facts, weights, task.inputs.standardisation, task.public_map)
    path.write_bytes(pack_model(contents))
    return path


def test_two_classes_by_hand(tmp_path: Path) -> None:
    found = cf.load_model(write_model(tmp_path / "model.safetensors")).predict(ROWS)
    inputs = (ROWS - ROWS.mean(axis=0)) / ROWS.std(axis=0)
    second = 1.0 / (1.0 + np.exp(-(inputs @ WEIGHT[0] + BIAS[0])))
    np.testing.assert_allclose(found.probabilities, np.stack([1 - second, second], 1), rtol=1e-5)
    assert found.labels == tuple("vile" if one > 0.5 else "fine" for one in second)
    np.testing.assert_allclose(found.scores, np.maximum(second, 1.0 - second), rtol=1e-5)
    assert set(found.labels) == {"fine", "vile"}
    assert sum(found.count().values()) == 30
    assert json.loads(json.dumps(found.to_dict()))["labels"] == list(found.labels)
    assert "30" in repr(found) and "vile" in found._repr_html_()


def test_another_threshold_is_kept(tmp_path: Path) -> None:
    output = {"meaning": "logit of the second class", "threshold": 0.8}
    found = cf.load_model(write_model(tmp_path / "model.safetensors", output=output)).predict(ROWS)
    second = found.probabilities[:, 1]
    assert ((second > 0.5) != (second > 0.8)).any()
    assert found.labels == tuple("vile" if one > 0.8 else "fine" for one in second)


def test_an_even_chance_is_not_above_the_threshold(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.safetensors")
    contents = read_contents(path)
    contents.weights["0.weight"][:] = contents.weights["0.bias"][:] = 0.0
    path.write_bytes(pack_model(contents))
    found = cf.load_model(path).predict(ROWS[:2])
    assert found.labels == ("fine", "fine") and (found.probabilities == 0.5).all()


def test_three_classes_without_names_and_with_a_map(tmp_path: Path) -> None:
    labels = (np.arange(30) % 3).astype(np.int64)
    public_map = compute_public_map(cf.Examples(PUBLIC.features, labels), "multiclass")
    task = dataclasses.replace(
        TASK, make_model=make_three, loss="multiclass", classes=(), public_map=public_map
    )
    found = cf.load_model(write_model(tmp_path / "model.safetensors", task)).predict(ROWS)
    inputs = ((ROWS - STANDARD.mean) / STANDARD.deviation - public_map.mean) @ public_map.basis
    powers = np.exp((inputs * public_map.scale) @ WEIGHT.T + BIAS)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-4)
    assert found.labels == tuple(str(one) for one in expected.argmax(axis=1))
    assert found.classes == ("0", "1", "2")


def test_no_inputs_give_no_predictions(tmp_path: Path) -> None:
    found = cf.load_model(write_model(tmp_path / "model.safetensors")).predict(ROWS[:0])
    assert (found.labels, found.probabilities.shape) == ((), (0, 2))


def test_a_module_of_ones_own_is_passed(tmp_path: Path) -> None:
    task = dataclasses.replace(TASK, make_model=Own)
    path = write_model(tmp_path / "model.safetensors", task, "layer")
    with pytest.raises(cf.InvalidInput, match=r"holds a .*Own, which it cannot describe: "):
        cf.load_model(path)
    found = cf.load_model(path, Own).predict(ROWS)
    other = cf.load_model(write_model(tmp_path / "plain.safetensors")).predict(ROWS)
    odds, plain = (one.probabilities[:, 1] / one.probabilities[:, 0] for one in (found, other))
    np.testing.assert_allclose(odds, plain**2, rtol=1e-4)


def test_running_statistics_are_part_of_the_model(tmp_path: Path) -> None:
    def make_normed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    task = dataclasses.replace(
        TASK, make_model=make_normed, clients=tuple(np.arange(30).reshape(3, 10))
    )
    scheme = {"rounds": 6, "updates": 2, "participation": [1, 2, 3], "policy": "always-learn"}
    summary = cf.Run(task=task, batch_size=5, **scheme).train(tmp_path / "run").runs[0]
    export_model(tmp_path / "run", tmp_path / "model.safetensors")
    model = cf.load_model(tmp_path / "model.safetensors")
    assert model.module.state_dict()["1.running_mean"].abs().sum() > 0
    said = np.array(model.predict(ROWS).labels) == "vile"
    assert summary.updates_done > 0
    assert np.mean(said == (PUBLIC.labels == 1)) == pytest.approx(summary.learner_accuracy)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("one text", "got a single text"),
        (["a text"], r"takes numbers \(the features of an example\), got texts"),
        (ROWS[:, :3], r"shape \(n, 4\), got float64 of shape \(30, 3\)"),
        (np.array(3.0), "got float64 of shape"),
        (np.where(ROWS > 4, np.nan, ROWS), "inputs must be finite"),
        (ROWS.astype(str), "must be numbers"),
    ],
)
def test_other_inputs_are_refused(tmp_path: Path, inputs: Any, said: str) -> None:
    model = cf.load_model(write_model(tmp_path / "model.safetensors"))
    with pytest.raises(cf.InvalidInput, match=said):
        model.predict(inputs)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": {}},
        {"output": {"threshold": 2.0}},
        {"classes": ["only one"]},
        {"inputs": {"shape": [4], "encoder": {"name": "x"}}},
        {"architecture": {"type": "Sequential", "layers": []}},
        {"architecture": 3},
        {"architecture": None},
        {"architecture": {"type": "Sequential", "layers": [{"name": "0", "type": "Bilinear"}]}},
        {"architecture": describe_module(make_three())},
        {"inputs": {"shape": [5], "encoder": None, "meaning": ""}},
    ],
)
def test_files_that_do_not_describe_their_model_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = write_model(tmp_path / "model.safetensors", **changes)
    with pytest.raises(cf.InvalidInput, match=r"model\.safetensors"):
        cf.load_model(path)


def test_files_of_vectors_are_scored(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.safetensors")
    np.savez(tmp_path / "rows.npz", features=ROWS)
    found = predict_file(model, tmp_path / "rows.npz", tmp_path / "scored.csv")
    lines = (tmp_path / "scored.csv").read_text().splitlines()
    assert lines[0] == "label,score"
    assert lines[1:] == [f"{a},{b}" for a, b in zip(found.labels, found.scores, strict=True)]
    with pytest.raises(cf.InvalidInput, match=r"rows\.npz holds vectors and no column text"):
        predict_file(model, tmp_path / "rows.npz", tmp_path / "x.csv", text_column="text")


@pytest.fixture
def text_model(tmp_path: Path) -> Path:
    """A model of texts with weights of zero."""
    pytest.importorskip("wordllama")
    encoder = dataclasses.replace(ENCODER, text_column="comment")
    nothing = cf.Examples(np.zeros((1, 128), dtype=np.float32), np.zeros(1, dtype=np.float32))
    task = dataclasses.replace(TASK, public=nothing, inputs=Inputs(encoder=encoder))
    facts = describe_model(task) | {"architecture": describe_module(make_logistic(128, 1))}
    weights = {"0.weight": np.zeros((1, 128), np.float32), "0.bias": np.ones(1, np.float32)}
    path = tmp_path / "texts.safetensors"
    path.write_bytes(pack_model(ModelContents(facts, weights, None, None)))
    return path


@pytest.mark.parametrize(
    ("content", "column", "said"),
    [
        ("comment,other\na,b\n", None, ""),
        ("n,text\n1,hello\n", None, ""),
        ("text\n17\n", None, ""),
        ("n,one,two\n1,a,b\n", "two", ""),
        ("n,one,two\n1,a,b\n", None, "--text, one of one, two"),
        ("n,one\n1,a\n", "three", "has no column three; its columns are n, one"),
        ("comment,score\na,1\n", None, "has a column score already: .*--prefix predicted_"),
        ("comment\n", None, "has no rows"),
    ],
)
def test_the_column_of_texts(
    tmp_path: Path, text_model: Path, content: str, column: str | None, said: str
) -> None:
    path, scored = tmp_path / "new.csv", tmp_path / "scored.csv"
    path.write_text(content)
    if said:
        with pytest.raises(cf.InvalidInput, match=rf"new\.csv.*{said}"):
            predict_file(text_model, path, scored, text_column=column)
        assert not scored.exists()
    else:
        predict_file(text_model, path, scored, text_column=column, prefix="p_")
        header, row = scored.read_text().splitlines()
        assert header == content.splitlines()[0] + ",p_label,p_score"
        probability = 1.0 / (1.0 + np.exp(-1.0))
        assert row.startswith(content.splitlines()[1] + ",vile,")
        assert float(row.rpartition(",")[2]) == pytest.approx(probability)
