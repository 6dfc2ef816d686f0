"""What a run writes: the same bytes for the same seed, and no more than it should."""

from __future__ import annotations

import json
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from covertfl import RunProgress
from covertfl.runs.public import PublicTranscript
from covertfl.runs.settings import format_run, read_run
from covertfl.training import is_finished, train, train_all
from tests.support.small_runs import (
    DRAWN_QUEUE,
    make_run,
    read_arrays,
    read_folder,
    read_rounds,
    run_small,
)

pytest.importorskip("torch")
import torch


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run_small(tmp_path / name, seed=seed)
    assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")
    assert read_folder(tmp_path / "a") != read_folder(tmp_path / "c")


@pytest.mark.slow
def test_a_seed_alone_is_the_same_seed_among_several(tmp_path: Path) -> None:
    settings = make_run(seed=5)
    summaries = train(settings, tmp_path / "many", seeds=3)
    assert len(summaries) == 3
    for number in range(3):
        [alone] = train(settings.with_seed(5 + number), tmp_path / f"alone-{number}")
        expected = read_folder(tmp_path / f"alone-{number}")
        assert read_folder(tmp_path / "many" / f"seed-{number}") == expected
        assert alone.exposure == summaries[number].exposure


def test_the_learner_does_not_depend_on_the_decoys_or_on_the_public_set(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"decoy": {"kind": "random", "gated": False}},
        {"data": {"public_classes": 2, "public_class_share": 0.5}},
        {"decoy": {"kind": "adversarial"}},
    ]
    trained = []
    for number, change in enumerate(changes):
        run_small(tmp_path / str(number), policy={"kind": "greedy"}, **change)
        trained.append(read_arrays(tmp_path / str(number))["true"].tobytes())
    assert len(set(trained)) == 1


def test_folders_may_be_given_as_text(tmp_path: Path) -> None:
    settings = make_run(DRAWN_QUEUE, rounds=4)
    [summary] = train(settings, str(tmp_path / "a"))
    assert train_all([(settings, str(tmp_path / "b"))])[0].exposure == summary.exposure
    assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")
    assert is_finished(settings, str(tmp_path / "a"))


def test_a_written_run_file_gives_the_run_again(tmp_path: Path) -> None:
    run_small(tmp_path / "a")
    train(read_run(tmp_path / "a" / "run.toml"), tmp_path / "b")
    assert read_folder(tmp_path / "a") == read_folder(tmp_path / "b")


@pytest.mark.parametrize("kind", ["optimal", "always-learn", "always-obfuscate"])
def test_the_public_folder_has_what_was_sent_and_no_more(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "run"
    run_small(out, policy={"kind": kind})
    lines = (out / "public/rounds.jsonl").read_text().splitlines()
    assert len(lines) == 12
    for number, line in enumerate(lines, start=1):
        record = json.loads(line)
        assert list(record) == ["round", "client", "weights"]
        assert (record["round"], record["client"]) == (number, None)
    public = PublicTranscript(out / "public")
    sent = {record.weights for record in public.records}
    assert {path.stem for path in (out / "public/weights").iterdir()} == sent
    assert {path.name for path in (out / "public").iterdir()} == {"rounds.jsonl", "weights"}
    headers, sizes = set(), set()
    for name in sent:
        content = (out / "public/weights" / f"{name}.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        headers.add(content[: 8 + length])
        sizes.add(len(content))
        assert set(public.read_weights(name)) == {"0.weight", "0.bias"}
    assert len(headers) == len(sizes) == 1
    # Lines are of one length but for the digits of the round.
    assert len({len(line) - len(str(json.loads(line)["round"])) for line in lines}) == 1


def test_public_records_agree_with_private_ones(tmp_path: Path) -> None:
    run_small(tmp_path / "run", rounds=30, policy={"kind": "greedy"}, decoy={"gated": True})
    public = read_rounds(tmp_path / "run", "public/rounds.jsonl")
    private = read_rounds(tmp_path / "run")
    assert [record["weights"] for record in public] == [record["weights"] for record in private]
    assert {record["action"] for record in private} == {"learn", "obfuscate"}
    # Weights of a trajectory change exactly when it has moved since its last query.
    for trajectory in (0, 1):
        own = [record for record in private if record["trajectory"] == trajectory]
        for before, after in pairwise(own):
            assert (before["weights"] != after["weights"]) == before["accepted"]


def test_both_trajectories_begin_with_weights_of_one_scale(tmp_path: Path) -> None:
    run_small(tmp_path / "run", rounds=1)
    arrays = read_arrays(tmp_path / "run")
    deviations = [float(np.std(arrays[name])) for name in ("true", "decoy-1")]
    assert deviations[0] == pytest.approx(deviations[1], rel=0.2)
    assert not np.array_equal(arrays["true"], arrays["decoy-1"])


def test_what_was_done_is_for_the_owner_only(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    for path in (tmp_path / "run").rglob("*"):
        hidden = {"private", "checkpoint"} & set(path.relative_to(tmp_path / "run").parts)
        if hidden and path.is_dir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run/metrics.jsonl").stat().st_mode) == 0o600


def test_the_summary_of_a_run(tmp_path: Path) -> None:
    summary = run_small(tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text()) == summary.to_dict()
    wanted = {"learner_accuracy", "updates_done", "rounds", "learning_queries", "exposure"}
    wanted |= {"completed", "rejected_replies", "seconds", "success_measured", "success_printed"}
    assert wanted <= set(summary.to_dict())
    records = read_rounds(tmp_path / "run")
    learned = sum(record["action"] == "learn" for record in records)
    assert summary.learning_queries == learned
    assert summary.exposure == learned / 12
    assert summary.updates_done == sum(record["updated"] for record in records)
    assert summary.success_printed == (0.2, 0.5, 0.9)
    metrics = read_rounds(tmp_path / "run", "metrics.jsonl")
    assert metrics[-1]["learner_score"] == summary.learner_accuracy
    assert metrics[-1]["exposure"] == summary.exposure


def test_measured_chances_are_reported_beside_the_printed_ones(tmp_path: Path) -> None:
    data = run_small(tmp_path / "data")
    model = run_small(tmp_path / "model", federation={"acceptance": "model"})
    assert data.success_measured == pytest.approx(model.success_measured, abs=0.02)
    assert data.success_measured != data.success_printed


@pytest.mark.parametrize("kind", ["random", "mirrored", "public", "adversarial"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_every_decoy_runs_to_the_end(tmp_path: Path, kind: str, algorithm: str) -> None:
    out = tmp_path / "run"
    run_small(
        out, decoy={"kind": kind, "gated": False}, federation={"algorithm": algorithm}, rounds=6
    )
    arrays = read_arrays(out)
    assert np.isfinite(arrays["decoy-1"]).all()
    sent = read_rounds(out)
    decoys = [record["weights"] for record in sent if record["trajectory"] == 1]
    assert len(set(decoys)) > 1


def test_a_learner_that_always_learns_learns(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rounds": 100, "policy": {"kind": "always-learn"}}
    summary = run_small(tmp_path / "run", DRAWN_QUEUE, **changes)
    metrics = read_rounds(tmp_path / "run", "metrics.jsonl")
    assert summary.learner_accuracy > 0.3 + metrics[0]["learner_score"]
    assert summary.learner_accuracy == metrics[-1]["learner_score"]


def test_progress_is_told_after_every_round(tmp_path: Path) -> None:
    told: list[RunProgress] = []
    run_small(tmp_path / "run", on_round=told.append)
    assert [progress.round for progress in told] == list(range(1, 13))
    metrics = read_rounds(tmp_path / "run", "metrics.jsonl")
    assert [progress.exposure for progress in told] == [line["exposure"] for line in metrics]
    assert [progress.backlog for progress in told] == [line["backlog"] for line in metrics]


def test_versions_are_written_down(tmp_path: Path) -> None:
    run_small(tmp_path / "run")
    text = (tmp_path / "run/run.toml").read_text()
    assert f'torch = "{torch.__version__}"' in text
    assert format_run(make_run(), {}) in text.replace(
        text[text.index("[versions]") :], "[versions]\n"
    )
