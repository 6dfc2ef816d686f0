"""The command `export`: the true weights, for their owner only, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import covertfl as cf
from covertfl.runs.train import find_task
from tests.support.commands import Run, refuse
from tests.support.exported_models import export, read_facts, take_apart
from tests.support.small_runs import make_run, run_small

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose inputs go through the public map."""
    out = tmp_path_factory.mktemp("mapped") / "run"
    run_small(out, data={"map": "public"}, policy={"kind": "greedy"})
    return out


def test_the_true_weights_are_exported(finished: Path, tmp_path: Path, run: Run) -> None:
    output, card = tmp_path / "model.safetensors", tmp_path / "model.md"
    summary = json.loads((finished / "summary.json").read_text())
    assert run("export", finished, "-o", output, "--json").content == {
        "output": str(output),
        "card": str(card),
        "rounds": summary["rounds"],
        "updates_done": summary["updates_done"],
        "inputs": None,
    }
    true = load_file(finished / "checkpoint" / "state.safetensors")["true"]
    tensors, metadata = take_apart(output)
    joined = np.concatenate([tensors.pop(name).ravel() for name in ("0.weight", "0.bias")])
    assert not tensors and metadata["covertfl_format"] == "3"
    np.testing.assert_array_equal(joined, true)
    assert stat.S_IMODE(output.stat().st_mode) == stat.S_IMODE(card.stat().st_mode) == 0o600
    assert "Keep both off the channel" in run("export", finished, "-o", output).out


def test_an_exported_model_judges_raw_inputs_with_its_map(mapped: Path, tmp_path: Path) -> None:
    """Weights and map, from the file alone, have the accuracy that the run reports."""
    output = export(mapped, tmp_path / "model.safetensors")
    own = load_file(mapped / "map.safetensors")
    assert own.pop("fingerprint").size > 0
    parts = {key for key in take_apart(output)[0] if key.startswith("public_map")}
    assert parts == {f"public_map.{key}" for key in own}
    for key, values in own.items():
        np.testing.assert_array_equal(take_apart(output)[0][f"public_map.{key}"], values)
    raw = find_task(make_run()).validation
    said = np.array([int(label) for label in cf.load_model(output).predict(raw.features).labels])
    summary = json.loads((mapped / "summary.json").read_text())
    assert np.mean(said == raw.labels) == summary["learner_accuracy"]


def test_the_card_says_what_the_file_says(mapped: Path, tmp_path: Path) -> None:
    facts = read_facts(export(mapped, tmp_path / "model.safetensors"))
    accuracy = json.loads((mapped / "summary.json").read_text())["learner_accuracy"]
    digest = hashlib.sha256((mapped / "run.toml").read_bytes()).hexdigest()
    assert facts["settings_sha256"] == digest
    assert facts["metrics"]["learner_accuracy"] == accuracy
    assert facts["parameters"] == {"0.weight": [10, 64], "0.bias": [10]}
    assert facts["classes"] == list("0123456789")
    card = (tmp_path / "model.md").read_text()
    for part in (digest, f"accuracy {accuracy:.4f}", "public_map.basis", "Linear"):
        assert part in card


def test_the_same_run_is_exported_as_the_same_bytes(mapped: Path, tmp_path: Path) -> None:
    """The library writes metadata in any order."""
    outputs = [export(mapped, tmp_path / f"{name}.safetensors") for name in "abc"]
    assert len({output.read_bytes() for output in outputs}) == 1


def test_a_run_in_the_place_of_another_has_no_map_of_it(mapped: Path, tmp_path: Path) -> None:
    shutil.copytree(mapped, tmp_path / "run")
    cf.Run("digits", rounds=2, updates=1).train(tmp_path / "run", force=True)
    assert not (tmp_path / "run" / "map.safetensors").exists()
    tensors, _ = take_apart(export(tmp_path / "run", tmp_path / "model.safetensors"))
    assert not any("public_map" in name for name in tensors)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("map.safetensors", None, r"map\.safetensors: no such file"),
        ("model.json", None, r"model\.json: no such file"),
        ("checkpoint", None, "holds no run with a complete round"),
        ("model.json", "", r"model\.json"),
        ("model.json", "[]", r"model\.json"),
        ("model.json", "{}", r"model\.json"),
        ("model.json", '{"task": 3, "standardisation": 3}', r"model\.json"),
        ("model.json", '{"task": "a", "inputs": {}}', r"model\.json"),
    ],
)
def test_a_damaged_run_is_refused(
    mapped: Path, tmp_path: Path, run: Run, file: str, content: str | None, said: str
) -> None:
    copy = Path(shutil.copytree(mapped, tmp_path / "run"))
    if content is not None:
        (copy / file).write_text(content)
    elif file == "checkpoint":
        shutil.rmtree(copy / file)
    else:
        (copy / file).unlink()
    output = tmp_path / "model.safetensors"
    assert re.search(said, refuse(run("export", copy, "-o", output), 2))
    assert not output.exists()


def test_a_folder_of_seeds_says_which_to_take(
    finished_seeds: Path, tmp_path: Path, run: Run
) -> None:
    folders = [finished_seeds / f"seed-{number}" for number in range(3)]
    scores = [json.loads((one / "summary.json").read_text())["learner_accuracy"] for one in folders]
    said = refuse(run("export", finished_seeds, "-o", tmp_path / "model.safetensors"), 2)
    assert re.search(
        r"seeds holds 3 runs, seed-0 to seed-2, .* export one of them, such as "
        rf".*seed-{np.argmax(scores)}, whose validation accuracy is the highest "
        rf"\({max(scores):.4f}\)",
        said,
    )


def test_names_that_cannot_be_used_are_refused(finished: Path, tmp_path: Path, run: Run) -> None:
    for name in ("model.pt", "model"):
        said = refuse(run("export", finished, "-o", tmp_path / name), 2)
        assert "must end in .safetensors" in said
    (tmp_path / "notes.md").write_text("mine")
    said = refuse(run("export", finished, "-o", tmp_path / "notes.safetensors"), 2)
    assert "notes.md exists and is no model card" in said
    assert (tmp_path / "notes.md").read_text() == "mine"
    said = refuse(run("export", tmp_path, "-o", tmp_path / "model.safetensors"), 2)
    assert "holds no run" in said


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
def test_files_that_are_no_model_are_refused(
    tmp_path: Path, run: Run, metadata: dict[str, str] | None, said: str
) -> None:
    model, scored = tmp_path / "model.safetensors", ("-o", tmp_path / "scored.csv")
    save_file({"w": np.zeros(2, dtype=np.float32)}, model, metadata=metadata)
    (tmp_path / "new.csv").write_text("text\nhello\n")
    message = refuse(run("predict", model, tmp_path / "new.csv", *scored), 2)
    assert message.startswith(f"{model}: ") and said in message
    model.write_text("not a model")
    said = refuse(run("predict", model, tmp_path / "new.csv", *scored), 2)
    assert "model.safetensors: not an exported model" in said
    said = refuse(run("predict", tmp_path / "none", tmp_path / "new.csv", *scored), 2)
    assert f"{tmp_path / 'none'}: " in said
    said = refuse(run("predict", model, tmp_path / "new.csv", "-o", tmp_path / "scored.xls"), 2)
    assert "scored.xls must end in .csv" in said
    assert not (tmp_path / "scored.csv").exists()
