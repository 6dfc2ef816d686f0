"""The audit of one run: what reaches eavesdroppers, who was right, and folders that are damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save

pytest.importorskip("torch", reason="torch is not installed")
from torch import nn

from covertfl.auditing.folders import audit_folders, audit_pooled, find_runs
from covertfl.auditing.run import (
    Overheard,
    RunAudit,
    audit_run,
    find_means,
    find_truth,
    keep_recorded,
    listen,
    open_run,
    overhear,
)
from covertfl.auditing.summary import list_warnings
from covertfl.cli.app import app
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.majority import MajorityEavesdropper
from covertfl.eavesdroppers.registry import EAVESDROPPERS, list_possible
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.kernels.weights import Layout, name_content
from covertfl.runs.build import KernelCache
from covertfl.runs.run_file import build_run
from covertfl.tasks.task import TrainingTask
from covertfl.training import train
from tests.support.seen_queries import feed, follow_schedule
from tests.support.small_runs import (
    FUNCTION_QUEUE,
    HORIZON,
    QUEUE,
    read_column,
    read_folder,
    read_rounds,
    run_small,
)

BARE = list_possible(Means())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audit") / "run"
    run_small(out, decoy={"gated": False})
    return out


@pytest.fixture(scope="module")
def audited(finished: Path) -> RunAudit:
    return audit_run(finished, KernelCache())


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def write_public(
    folder: Path, sent: list[dict[str, npt.NDArray[Any]]], rounds: list[int] | None = None
) -> Path:
    """A public folder as a client of any federation may record it."""
    (folder / "weights").mkdir(parents=True)
    lines = []
    for number, tensors in enumerate(sent):
        content = save(tensors)
        name = name_content(content)
        (folder / "weights" / f"{name}.safetensors").write_bytes(content)
        round_number = number + 1 if rounds is None else rounds[number]
        lines.append(json.dumps({"round": round_number, "client": 7, "weights": name}))
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


# --- what reaches eavesdroppers ---------------------------------------------------------------


def describe_findings(run: RunAudit) -> str:
    """What is public of the findings, as text."""
    return json.dumps(
        {name: [finding.belief, finding.accuracy] for name, finding in run.findings.items()}
    )


@pytest.mark.parametrize("base", [HORIZON, QUEUE], ids=["horizon", "queue"])
def test_the_private_folder_says_only_who_was_right(base: dict[str, Any], tmp_path: Path) -> None:
    run_small(tmp_path / "run", base, decoy={"gated": False})
    before = audit_run(tmp_path / "run", KernelCache())
    assert set(before.findings) == set(EAVESDROPPERS)
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


# --- who was right ----------------------------------------------------------------------------


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
    settings: dict[str, Any] = {
        "policy": {"kind": "greedy"},
        "federation": {"acceptance": "model"},
    }
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
    assert scheme is not None and scheme.num_decoys == 2


def test_a_tie_counts_its_share() -> None:
    queries = follow_schedule([0, 1, 2, 2, 1])
    finding = listen(MajorityEavesdropper(Means()), queries, {0: False, 1: True, 2: False}, None)
    assert finding.named == 0.5 and finding.accuracy is None
    assert finding.belief == pytest.approx((0.2, 0.4, 0.4))
    assert listen(MajorityEavesdropper(Means()), queries, None, None).named is None


# --- telling apart ----------------------------------------------------------------------------


def told_apart(numbers: list[int]) -> Overheard:
    queries = [
        SeenQuery(t, number, np.zeros(1, dtype=np.float32), None)
        for t, number in enumerate(numbers, start=1)
    ]
    return Overheard(tuple(queries), Layout(("w",), ((1,),)))


@pytest.mark.parametrize(
    ("told", "actual", "truth", "astray"),
    [
        ([0, 1, 0, 1], [0, 1, 0, 1], {0: True, 1: False}, 0),
        ([0, 1, 0, 1], [1, 0, 1, 0], {0: False, 1: True}, 0),
        ([0, 0, 0], [0, 0, 0], {0: True}, 0),
        # One query on the wrong side.
        ([0, 1, 0, 1, 0], [0, 1, 0, 0, 0], {0: True, 1: True}, 2),
        ([0, 1, 0, 1, 1, 1], [0, 1, 0, 0, 1, 1], {0: True, 1: False}, 1),
        # The true trajectory in two parts, the smaller of which went astray.
        ([0, 0, 0, 1, 2, 2], [0, 0, 0, 0, 1, 1], {0: True, 1: True, 2: False}, 1),
        # Two trajectories taken for one.
        ([0, 0, 0, 0, 0], [0, 0, 1, 1, 1], {0: False}, 2),
        # Split and merged: 0 lost two queries to a part that also holds the only one of 1.
        ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1], {0: True, 1: True}, 3),
        ([0, 1, 2, 3], [0, 0, 1, 2], {0: True, 1: True, 2: False, 3: False}, 1),
    ],
)
def test_queries_astray_are_counted(
    told: list[int], actual: list[int], truth: dict[int, bool], astray: int
) -> None:
    records = [{"trajectory": trajectory} for trajectory in actual]
    found = find_truth(told_apart(told), records)
    assert found == (truth, astray)
    assert found[1] <= len(told)


# --- folders ----------------------------------------------------------------------------------


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
    assert [query.round for query in overhear(folder).queries] == [2, 3, 7, 8, 20]


def test_a_function_has_values_and_no_accuracies(tmp_path: Path) -> None:
    run_small(tmp_path / "run", FUNCTION_QUEUE)
    found = audit_run(tmp_path / "run", KernelCache())
    assert set(found.findings) == {*BARE, "likelihood"}
    assert all(finding.accuracy is None for finding in found.findings.values())
    assert found.learner == ()
    assert audit_pooled(open_run(tmp_path / "run", KernelCache())) == ()


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
    assert any("made in Python" in warning for warning in list_warnings(report))


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
    assert all(pooled.seen_share <= 1.0 for pooled in audit_pooled(open_run(copied, KernelCache())))


def test_rounds_that_both_sides_have() -> None:
    overheard = told_apart([0, 1, 0])
    kept, records = keep_recorded(overheard, [{"round": 1}, {"round": 2}], Path("nowhere"))
    assert len(kept.queries) == len(records) == 2


# --- damage -----------------------------------------------------------------------------------


def change_weights(public: Path) -> None:
    file = next((public / "weights").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")


def remove_weights(public: Path) -> None:
    next((public / "weights").iterdir()).unlink()


def add_line(text: str) -> Callable[[Path], None]:
    def damage(public: Path) -> None:
        with (public / "rounds.jsonl").open("a") as stream:
            stream.write(text + "\n")

    return damage


def empty(public: Path) -> None:
    (public / "rounds.jsonl").write_text("")


def remove_lines(public: Path) -> None:
    (public / "rounds.jsonl").unlink()


def add_weights(**tensors: npt.NDArray[Any]) -> Callable[[Path], None]:
    def damage(public: Path) -> None:
        content = save(tensors)
        name = name_content(content)
        (public / "weights" / f"{name}.safetensors").write_bytes(content)
        add_line(json.dumps({"round": 13, "client": None, "weights": name}))(public)

    return damage


@pytest.mark.parametrize("alone", [False, True], ids=["run", "public folder"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_weights, "its content does not match its name"),
        (remove_weights, r"\.safetensors cannot be read: No such file"),
        (add_line("{"), r"rounds\.jsonl line 13 is not JSON"),
        (add_line("[]"), "line 13 must be a JSON object"),
        (add_line('{"round": 1}'), "line 13 must have the keys round, client and weights"),
        (add_line('{"round": 1, "client": null, "weights": "../x"}'), "line 13 must have whole"),
        (empty, "holds no query"),
        (add_weights(other=np.ones(3)), "is of another model than the rest"),
    ],
)
def test_damage_is_named_in_one_sentence(
    copied: Path, damage: Callable[[Path], None], message: str, alone: bool
) -> None:
    damage(copied / "public")
    with pytest.raises(InvalidInput, match=message) as raised:
        audit_run(copied / "public" if alone else copied, KernelCache())
    assert "\n" not in str(raised.value)


def test_no_rounds_at_all(copied: Path) -> None:
    remove_lines(copied / "public")
    with pytest.raises(InvalidInput, match=r"rounds\.jsonl cannot be read"):
        audit_run(copied, KernelCache())
    with pytest.raises(InvalidInput, match="neither the folder of a run nor a public folder"):
        audit_run(copied / "public", KernelCache())


def test_numbers_that_are_none(tmp_path: Path) -> None:
    folder = write_public(tmp_path / "a", [{"w": np.array([1.0, np.nan], dtype=np.float32)}])
    with pytest.raises(InvalidInput, match="must hold finite numbers"):
        audit_run(folder, KernelCache())


def test_kinds_of_numbers_that_numpy_does_not_have(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save as save_torch

    folder = write_public(tmp_path / "a", [])
    content = save_torch({"w": torch.ones(3, dtype=torch.bfloat16)})
    name = name_content(content)
    (folder / "weights" / f"{name}.safetensors").write_bytes(content)
    add_line(json.dumps({"round": 1, "client": 1, "weights": name}))(folder)
    with pytest.raises(InvalidInput, match="must hold numbers of 16, 32 or 64 bits"):
        audit_run(folder, KernelCache())


@pytest.mark.parametrize("recorded", ["public", "eavesdropper"])
def test_nothing_is_written_into_a_public_folder(
    copied: Path, capsys: pytest.CaptureFixture[str], recorded: str
) -> None:
    if recorded == "eavesdropper":  # as the listening node of a deployment keeps it
        shutil.copytree(copied / "public", copied / recorded)
    before = read_folder(copied)
    app(["audit", str(copied / recorded), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["runs"] == 1
    assert read_folder(copied) == before
    app(["audit", str(copied)], standalone_mode=False)
    assert read_folder(copied).keys() - before.keys() == {"audit.json"}


def test_unknown_eavesdroppers_are_refused(finished: Path) -> None:
    with pytest.raises(InvalidInput, match=r"one of majority, .* got 'listener'"):
        audit_run(finished, KernelCache(), names=["majority", "listener"])


def test_folders_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no run"):
        find_runs(tmp_path)
    with pytest.raises(InvalidInput, match="no such folder"):
        find_runs(tmp_path / "nowhere")
    for number in (10, 2, 0):
        (tmp_path / f"seed-{number}" / "public").mkdir(parents=True)
    assert [run.name for run in find_runs(tmp_path)] == ["seed-0", "seed-2", "seed-10"]


def test_a_finding_is_of_the_last_round() -> None:
    queries = follow_schedule([0, 1, 1])
    finding = listen(MajorityEavesdropper(Means()), queries, {0: True, 1: False}, None)
    expected = feed(MajorityEavesdropper(Means()), queries).belief()
    assert finding.named == 0.0
    assert finding.belief == tuple(expected.tolist())
