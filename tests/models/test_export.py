"""Exported models: the true weights, for their owner only, and read back."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import covertfl as cf
from covertfl.models.contents import read_contents
from covertfl.models.export import ExportedModel, export_model
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.task import find_task
from covertfl.tasks.public_map import PublicMap
from covertfl.training import train
from tests.support.small_runs import DRAWN_QUEUE, make_run, run_small

pytest.importorskip("torch")


@pytest.mark.parametrize("as_path", [Path, str])
def test_the_true_weights_are_exported(tmp_path: Path, as_path: type[Path] | type[str]) -> None:
    summary = run_small(tmp_path / "run", policy={"kind": "greedy"})
    output = tmp_path / "model.safetensors"
    exported = export_model(as_path(tmp_path / "run"), as_path(output))
    card = tmp_path / "model.md"
    assert exported == ExportedModel(output, card, summary.rounds, summary.updates_done)
    assert exported.to_dict() == {
        "output": str(output),
        "card": str(card),
        "rounds": summary.rounds,
        "updates_done": summary.updates_done,
        "inputs": None,
    }
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    tensors = load_file(output)
    joined = np.concatenate([tensors.pop(name).ravel() for name in ("0.weight", "0.bias")])
    assert not tensors
    np.testing.assert_array_equal(joined, checkpoint.arrays["true"])
    assert stat.S_IMODE(output.stat().st_mode) == stat.S_IMODE(card.stat().st_mode) == 0o600


MAPPED: dict[str, Any] = {"data": {"map": "public"}, "policy": {"kind": "greedy"}}


def test_an_exported_model_judges_raw_inputs_with_its_map(tmp_path: Path) -> None:
    """Weights and map, from the file alone, have the accuracy that the run reports."""
    summary = run_small(tmp_path / "run", **MAPPED)
    output = tmp_path / "model.safetensors"
    assert export_model(tmp_path / "run", output).inputs == "public_map"
    with safe_open(output, framework="numpy") as content:
        parts = {name for name in content.keys() if "public_map" in name}  # noqa: SIM118
        assert parts == {"public_map.mean", "public_map.basis", "public_map.scale"}
    exported = read_contents(output)
    weights, found = dict(exported.weights), exported.public_map
    assert found is not None
    raw = find_task(make_run(policy=MAPPED["policy"])).validation
    logits = found.apply(raw.features) @ weights.pop("0.weight").T + weights.pop("0.bias")
    assert not weights
    assert np.mean(logits.argmax(axis=1) == raw.labels) == summary.learner_accuracy
    own = PublicMap.load(tmp_path / "run" / "map.safetensors")
    assert found.fingerprint == own.fingerprint != ""


@pytest.mark.parametrize("name", ["map.safetensors", "model.json"])
def test_a_run_that_lacks_a_file_is_refused(tmp_path: Path, name: str) -> None:
    run_small(tmp_path / "run", **MAPPED)
    (tmp_path / "run" / name).unlink()
    with pytest.raises(cf.InvalidInput, match=f"{name}: no such file"):
        export_model(tmp_path / "run", tmp_path / "model.safetensors")


def test_a_run_in_the_place_of_another_has_no_map_of_it(tmp_path: Path) -> None:
    run_small(tmp_path / "run", **MAPPED)
    train(make_run(), tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "map.safetensors").exists()
    export_model(tmp_path / "run", tmp_path / "model.safetensors")
    assert read_contents(tmp_path / "model.safetensors").public_map is None


def test_a_folder_without_a_complete_round_is_refused(tmp_path: Path) -> None:
    with pytest.raises(cf.InvalidInput, match="holds no run with a complete round"):
        export_model(tmp_path, tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()


def test_an_exported_model_has_a_format_and_is_read_back(tmp_path: Path) -> None:
    run_small(tmp_path / "run", DRAWN_QUEUE, rounds=5)
    output = tmp_path / "model.safetensors"
    export_model(tmp_path / "run", output)
    with safe_open(output, framework="numpy") as content:
        assert content.metadata()["covertfl_format"] == "3"
    checkpoint = read_checkpoint(tmp_path / "run")
    assert checkpoint is not None
    for path in (output, str(output)):
        weights = read_contents(path).weights
        names = [name for name, _ in checkpoint.facts["parameters"]]
        joined = np.concatenate([weights[name].ravel() for name in names])
        np.testing.assert_array_equal(joined, checkpoint.arrays["true"])


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"covertfl_format": "4"}, "a newer version wrote the file"),
        ({"covertfl_format": "2"}, "an older version wrote the file"),
        (None, "got nothing: an older version wrote the file"),
        ({"covertfl_format": "one"}, "must be 3 for this version of covertfl, got 'one'"),
        ({"covertfl_format": "3"}, "covertfl_model must be a JSON object"),
    ],
)
def test_another_format_is_refused(
    tmp_path: Path, metadata: dict[str, str] | None, said: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": np.zeros(2, dtype=np.float32)}, path, metadata=metadata)
    with pytest.raises(cf.InvalidInput, match=rf"model\.safetensors: .*{said}"):
        read_contents(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a model")
    for name in ("text", "none"):
        with pytest.raises(cf.InvalidInput, match=f"{name}: "):
            read_contents(tmp_path / name)


def test_the_same_run_is_exported_as_the_same_bytes(tmp_path: Path) -> None:
    """The library writes metadata in any order."""
    run_small(tmp_path / "run", **MAPPED)
    written = set()
    for name in "abc":
        export_model(tmp_path / "run", tmp_path / f"{name}.safetensors")
        written.add((tmp_path / f"{name}.safetensors").read_bytes())
    assert len(written) == 1


def test_a_folder_of_seeds_says_which_to_take(tmp_path: Path) -> None:
    train(make_run(policy={"kind": "greedy"}), tmp_path / "many", seeds=2)
    scores = [
        json.loads((tmp_path / "many" / f"seed-{n}" / "summary.json").read_text()) for n in range(2)
    ]
    best = int(np.argmax([score["learner_accuracy"] for score in scores]))
    accuracy = f"{scores[best]['learner_accuracy']:.4f}"
    with pytest.raises(
        cf.InvalidInput,
        match=rf"many holds 2 runs, seed-0 to seed-1, .* export one of them, such as .*seed-{best}"
        rf", whose validation accuracy is the highest \({accuracy}\)",
    ):
        export_model(tmp_path / "many", tmp_path / "model.safetensors")


def test_names_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    for name in ("model.pt", "model"):
        with pytest.raises(cf.InvalidInput, match=r"must end in \.safetensors"):
            export_model(tmp_path / "run", tmp_path / name)
    (tmp_path / "notes.md").write_text("mine")
    with pytest.raises(cf.InvalidInput, match=r"notes\.md exists and is no model card"):
        export_model(tmp_path / "run", tmp_path / "notes.safetensors")
    assert (tmp_path / "notes.md").read_text() == "mine"


def test_the_card_says_what_the_file_says(tmp_path: Path) -> None:
    summary = run_small(tmp_path / "run", **MAPPED)
    export_model(tmp_path / "run", tmp_path / "model.safetensors")
    facts = read_contents(tmp_path / "model.safetensors").facts
    digest = hashlib.sha256((tmp_path / "run" / "run.toml").read_bytes()).hexdigest()
    assert facts["settings_sha256"] == digest
    assert facts["metrics"]["learner_accuracy"] == summary.learner_accuracy
    assert facts["parameters"] == {"0.weight": [10, 64], "0.bias": [10]}
    assert facts["classes"] == list("0123456789")
    card = (tmp_path / "model.md").read_text()
    for part in (digest, f"accuracy {summary.learner_accuracy:.4f}", "public_map.basis", "Linear"):
        assert part in card


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"task": 3, "standardisation": 3}', '{"task": "a", "inputs": {}}']
)
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    run_small(tmp_path / "run", DRAWN_QUEUE, rounds=2)
    (tmp_path / "run" / "model.json").write_text(content)
    with pytest.raises(cf.InvalidInput, match=r"model\.json"):
        export_model(tmp_path / "run", tmp_path / "model.safetensors")
    assert not (tmp_path / "model.safetensors").exists()
