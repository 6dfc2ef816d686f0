"""The audit of one run: what reaches eavesdroppers, who was right, and incomplete folders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="torch is not installed")
from torch import nn

from covertfl.auditing.coalitions import audit_coalitions
from covertfl.auditing.folders import audit_folders
from covertfl.auditing.means import find_means
from covertfl.auditing.overheard import overhear
from covertfl.auditing.run import RunAudit, audit_run, load_run
from covertfl.decision.decoy_rule import DecoyRule
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.registry import EAVESDROPPERS, list_possible
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.runs.build import KernelCache
from covertfl.runs.run_file import build_run
from covertfl.tasks.task import TrainingTask
from covertfl.training import train
from tests.support.audits import describe_findings, write_public
from tests.support.small_runs import HORIZON, QUEUE, read_column, read_rounds, run_small

BARE = list_possible(Means())
# What these need is not in a single run without marks: a mark, another run, or runs to train on.
NOT_HERE = {"mark", "two-runs", "trained", "trained-public", "trained-listener"}


@pytest.mark.parametrize("base", [HORIZON, QUEUE], ids=["horizon", "queue"])
def test_the_private_folder_says_only_who_was_right(base: dict[str, Any], tmp_path: Path) -> None:
    run_small(tmp_path / "run", base, decoy={"gated": False})
    before = audit_run(tmp_path / "run", KernelCache())
    assert set(EAVESDROPPERS) - set(before.findings) == NOT_HERE
    assert all(finding.named is not None for finding in before.findings.values())
    shutil.rmtree(tmp_path / "run" / "private")
    after = audit_run(tmp_path / "run", KernelCache())
    assert describe_findings(after) == describe_findings(before)
    assert all(finding.named is None for finding in after.findings.values())
    assert (after.misplaced, after.private, after.learner) == (None, (), ())


def test_neither_checkpoint_nor_metrics_nor_summary_are_needed(
    copied: Path, audited: RunAudit
) -> None:
    for name in ("private", "checkpoint"):
        shutil.rmtree(copied / name)
    for name in ("metrics.jsonl", "summary.json"):
        (copied / name).unlink()
    assert describe_findings(audit_run(copied, KernelCache())) == describe_findings(audited)


def test_an_audit_repeats_itself(finished: Path, audited: RunAudit) -> None:
    again = audit_run(finished, KernelCache())
    assert describe_findings(again) == describe_findings(audited)


def test_beliefs_and_names_against_the_records(finished: Path, audited: RunAudit) -> None:
    actual = read_column(finished, "trajectory")
    first_seen = list(dict.fromkeys(actual))
    share = actual.count(0) / len(actual)
    belief = dict(zip(first_seen, audited.findings["majority"].belief, strict=True))
    assert belief[0] == pytest.approx(share)
    assert audited.findings["majority"].named == pytest.approx(
        1.0 if share > 0.5 else 0.5 if share == 0.5 else 0.0
    )
    assert audited.findings["minority"].named == 1.0 - (audited.findings["majority"].named or 0.0)
    assert audited.findings["train-alone"].named == 0.5
    assert audited.misplaced == 0


def test_an_ungated_decoy_never_repeats(tmp_path: Path) -> None:
    """Failed learning queries do, so one of them is enough to be named."""
    run_small(
        tmp_path / "run",
        policy={"kind": "random"},
        federation={"acceptance": "model"},
        decoy={"gated": False},
        horizon={"rounds": 24, "updates": 12},
    )
    settings: dict[str, Any] = {"policy": {"kind": "greedy"}, "federation": {"acceptance": "model"}}
    run_small(tmp_path / "fails", decoy={"gated": False}, **settings)
    calm = audit_run(tmp_path / "run", KernelCache(), names=["repeat"])
    assert calm.findings["repeat"].belief == (0.5, 0.5)  # every reply was used: nothing failed
    found = audit_run(tmp_path / "fails", KernelCache(), names=["repeat"])
    failed = [r for r in found.private if r["action"] == "learn" and not r["accepted"]]
    assert len(failed) > 1
    assert found.findings["repeat"].named == 1.0 and max(found.findings["repeat"].belief) == 1.0


def test_what_always_learning_sends_is_what_the_majority_holds(tmp_path: Path) -> None:
    """The query of a round is the model after the round before."""
    run_small(tmp_path / "run", policy={"kind": "always-learn"})
    found = audit_run(tmp_path / "run", KernelCache(), names=["majority", "minority"])
    accuracy = found.findings["majority"].accuracy
    assert accuracy is not None
    assert accuracy[1:] == found.learner[:-1]
    assert found.num_trajectories == 1
    assert found.findings["minority"].accuracy == accuracy
    assert [finding.named for finding in found.findings.values()] == [1.0, 1.0]


def test_a_decoy_that_is_alone_is_not_the_true_model(tmp_path: Path) -> None:
    run_small(tmp_path / "run", policy={"kind": "always-obfuscate"})
    found = audit_run(tmp_path / "run", KernelCache(), names=["majority", "likelihood"])
    assert [finding.named for finding in found.findings.values()] == [0.0, 0.0]


def test_several_decoys(tmp_path: Path) -> None:
    run_small(tmp_path / "run", decoy={"count": 2, "gated": False}, horizon={"rounds": 20})
    found = audit_run(tmp_path / "run", KernelCache())
    assert found.num_trajectories == 3 and found.misplaced == 0
    assert all(len(finding.belief) == 3 for finding in found.findings.values())
    assert found.findings["train-alone"].named == pytest.approx(1 / 3)
    assert found.federation is not None
    scheme = find_means(found.federation).scheme
    assert scheme is not None and scheme.decoys == DecoyRule(2)


def test_a_public_folder_by_itself(finished: Path, audited: RunAudit, tmp_path: Path) -> None:
    shutil.copytree(finished / "public", tmp_path / "only")
    found = audit_run(tmp_path / "only", KernelCache())
    assert list(found.findings) == BARE
    for name in BARE:
        assert found.findings[name].belief == pytest.approx(audited.findings[name].belief)
        assert found.findings[name].named is None and found.findings[name].accuracy is None
    assert found.federation is None and found.summary is None and found.misplaced is None
    # The same where the public folder still is in its place, but nothing else.
    shutil.copytree(finished / "public", tmp_path / "shared" / "public")
    for _ in range(5):
        shared = audit_run(tmp_path / "shared", KernelCache())
        assert describe_findings(shared) == describe_findings(found)


def test_what_a_client_of_another_federation_recorded(tmp_path: Path) -> None:
    """Rounds in which it took part only; tensors of another kind, in any order."""
    generator = np.random.default_rng(0)
    models = [generator.normal(size=(20, 3)) for _ in range(2)]
    sent: list[dict[str, npt.NDArray[Any]]] = []
    for number, model in enumerate([0, 1, 1, 0, 1]):
        point = models[model] + 0.01 * number
        bias = np.arange(3, dtype=np.float64)
        tensors: dict[str, npt.NDArray[Any]] = {
            "dense.kernel": point.astype(np.float16),
            "dense.bias": bias,
        }
        sent.append(tensors if number % 2 else dict(reversed(tensors.items())))
    folder = write_public(tmp_path / "mine", sent, rounds=[2, 3, 7, 8, 20])
    found = audit_run(folder, KernelCache())
    assert (found.num_queries, found.num_trajectories) == (5, 2)
    assert found.findings["majority"].belief == pytest.approx((0.4, 0.6))
    assert found.findings["early-stop"].belief == (1.0, 0.0)
    assert [query.round for query in overhear(folder)] == [2, 3, 7, 8, 20]


def test_a_task_made_in_python(tmp_path: Path) -> None:
    """Who is right is known, what weights are worth is not; one command says so."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(90, 4)).astype(np.float32)
    examples = Examples(features, (features[:, 0] > 0).astype(np.float32))
    task = TrainingTask(
        name="own",
        make_model=lambda: nn.Sequential(nn.Linear(4, 1)),
        loss="binary",
        train=examples,
        clients=tuple(np.split(np.arange(90), 3)),
        public=examples,
        validation=examples,
    )
    content = {
        "task": "own",
        "rounds": 12,
        "updates": 3,
        "federation": {"clients": 3, "participation": [1, 2, 3], "batch_size": 10},
    }
    settings = build_run(content, "test", folder=Path()).with_task(task)
    train(settings, tmp_path / "run")
    report = audit_folders([tmp_path / "run"])
    assert [threat.name for threat in report.threats] == BARE
    assert all(threat.names_true is not None for threat in report.threats)
    assert all(threat.final_accuracy is None for threat in report.threats)
    assert any("made in Python" in note for note in report.notes)


class Stop(Exception):
    pass


def test_a_run_that_has_not_ended(tmp_path: Path) -> None:
    def stop(progress: Any) -> None:
        if progress.round == 7:
            raise Stop

    with pytest.raises(Stop):
        run_small(tmp_path / "run", on_round=stop)
    found = audit_run(tmp_path / "run", KernelCache())
    rounds = len(read_rounds(tmp_path / "run"))
    assert found.summary is None and 1 <= rounds <= 7
    assert found.num_queries == len(found.private) == len(found.learner) == rounds
    assert all(len(finding.accuracy or ()) == rounds for finding in found.findings.values())


@pytest.mark.parametrize("side", ["public", "private"])
def test_where_one_side_is_ahead(copied: Path, side: str) -> None:
    """A crash may come between two files; in a run that has ended a round is missing."""
    file = copied / side / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    with pytest.raises(InvalidInput, match=r"public as private rounds, got 1[12] and 1[12]"):
        audit_run(copied, KernelCache())
    (copied / "summary.json").unlink()
    found = audit_run(copied, KernelCache())
    assert found.num_queries == len(found.private) == len(found.learner) == 11
    assert all(
        pooled.seen_share <= 1.0 for pooled in audit_coalitions(load_run(copied, KernelCache()))
    )


def test_unknown_eavesdroppers_are_refused(finished: Path) -> None:
    with pytest.raises(InvalidInput, match=r"one of majority, .* got 'listener'"):
        audit_run(finished, KernelCache(), names=["majority", "listener"])
