"""The command `train`: folders, summaries, resumption and run files that cannot be used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import RUN_FILE, Run, refuse

pytest.importorskip("torch")

SUMMARY = {
    "learner_accuracy",
    "updates_done",
    "rounds",
    "learning_queries",
    "exposure",
    "completed",
    "rejected_replies",
    "seconds",
}


def test_train_and_train_again(run: Run, run_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    outcome = run("train", run_file, "--out", folder, "--json")
    assert outcome.err == ""
    (summary,) = outcome.content["runs"]
    assert set(summary) >= SUMMARY
    assert summary == json.loads((folder / "summary.json").read_text())
    message = refuse(run("train", run_file, "--out", folder), 2)
    assert "--resume" in message and "--force" in message
    assert run("train", run_file, "--out", folder, "--force").status == 0


def test_seeds_make_a_folder_each(run: Run, run_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    outcome = run("train", run_file, "--out", folder, "--seeds", 2)
    assert outcome.status == 0
    assert "Training runs" in outcome.out
    assert sorted(path.name for path in folder.iterdir()) == ["seed-0", "seed-1"]


def test_a_missing_run_file(run: Run, tmp_path: Path) -> None:
    message = refuse(run("train", tmp_path / "none.toml", "--out", tmp_path / "out"), 2)
    assert "no such" in message


def test_resuming_and_replacing_exclude_each_other(
    run: Run, run_file: Path, tmp_path: Path
) -> None:
    arguments = ("train", run_file, "--out", tmp_path / "out", "--resume", "--force")
    assert "give one of them" in refuse(run(*arguments), 2)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('task = "digits"', 'task = "poetry"', "task must be one of toxicity"),
        ('task = "digits"', 'task = "digits"\nspeed = 3', "unknown key speed; allowed are task"),
        ('task = "digits"', 'task = "digits"\nseed = "one"', "seed must be a whole number, got"),
        ("[decoy]", "[engine]\ndevice = 'moon'\n[decoy]", "device"),
    ],
)
def test_bad_run_files(
    run: Run, run_file: Path, tmp_path: Path, old: str, new: str, part: str
) -> None:
    assert RUN_FILE.count(old) == 1
    run_file.write_text(RUN_FILE.replace(old, new))
    message = refuse(run("train", run_file, "--out", tmp_path / "out"), 2)
    assert part in message and str(run_file) in message
    assert not (tmp_path / "out").exists()


def test_rejected_replies_are_named_with_what_to_do(
    run: Run, run_file: Path, tmp_path: Path
) -> None:
    """More rounds do not help where the learning rate makes every reply useless."""
    hot = 'batch_size = 20\noptimizer = { name = "sgd", lr = 1e300 }'
    run_file.write_text(RUN_FILE.replace("batch_size = 20", hot))
    outcome = run("train", run_file, "--out", tmp_path / "run")
    assert outcome.status == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    number = summary["rejected_replies"]
    assert summary["replies"] == number > 0
    line = f"Run 0: {number} of {number} replies were rejected: not finite ({number}); reduce lr in"
    assert line in outcome.out and "[federation] optimizer" in outcome.out
    assert "3 updates are missing." in outcome.out
    assert "raise `rounds`" not in outcome.out


def test_a_learner_that_answers_one_class_is_warned_about(
    run: Run, run_file: Path, tmp_path: Path
) -> None:
    """A tenth of positives that nothing tells apart, and a learner that does not balance them."""
    labels = np.arange(800) % 10 == 0
    np.savez(tmp_path / "uneven.npz", features=np.zeros((800, 4)), labels=labels)
    data = 'task = "embeddings"\ndata = { path = "uneven.npz", balance = false }'
    hot = 'batch_size = 20\noptimizer = { name = "sgd", lr = 0.5 }'
    text = RUN_FILE.replace('task = "digits"', data).replace("batch_size = 20", hot)
    run_file.write_text(text)
    outcome = run("train", run_file, "--out", tmp_path / "run", "--json")
    (summary,) = outcome.content["runs"]
    (warning,) = summary["warnings"]
    assert re.match("the learner answers class [01] to all 80 validation examples", warning)
    assert "[data] balance = true" in warning
    assert outcome.err == f"covertfl: warning: {warning}\n"
    assert [summary["learner_accuracy"], summary["learner_balanced_accuracy"]] == [0.5, 0.5]
    assert summary["learner_f1"] == pytest.approx(1.0 / 3.0)
