"""Audits of several runs combined: bound, notes, JSON and what is written."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("torch", reason="torch is not installed")

from covertfl.auditing.folders import audit_folders, write_audit
from covertfl.auditing.means import find_means
from covertfl.auditing.run import audit_run
from covertfl.auditing.summary import AuditSummary, summarise_audits
from covertfl.display.run_tables import render_audit
from covertfl.eavesdroppers.registry import list_possible
from covertfl.errors import InvalidInput
from covertfl.intervals import t_interval
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.federation import Federation
from covertfl.training import train
from tests.support.audits import SUMMARY, find_threat, make_audit
from tests.support.small_runs import QUEUE, make_run, read_column, read_rounds, run_small

NUM_SEEDS = 3


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "many"
    train(make_run(decoy={"gated": False}), out, seeds=NUM_SEEDS)
    return out


@pytest.fixture(scope="module")
def report(seeds: Path) -> AuditSummary:
    return audit_folders([seeds])


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build_federation(make_run(), KernelCache())


def test_a_guess_is_among_all_trajectories(federation: Federation) -> None:
    assert (
        find_threat(summarise_audits([make_audit(federation=federation)]), "majority").guess == 0.5
    )
    several = build_federation(make_run(decoy={"count": 3}), KernelCache())
    report = summarise_audits([make_audit(federation=several, trajectories=4)])
    assert find_threat(report, "majority").guess == pytest.approx(0.25)
    assert report.bound is not None and report.bound.value >= 0.25


def test_the_bound_is_given_where_it_applies(federation: Federation) -> None:
    known = summarise_audits([make_audit(federation=federation)]).bound
    assert known is not None
    assert 0.5 <= known.low <= known.value <= known.high <= 1.0
    # Whichever run comes first.
    assert summarise_audits([make_audit(), make_audit(federation=federation)]).bound == known
    assert summarise_audits([make_audit()]).bound is None
    queue = build_federation(make_run(QUEUE), KernelCache())
    assert summarise_audits([make_audit(federation=queue)]).bound is None


def test_no_bound_for_rounds_or_policies_that_are_not_the_problem_s(federation: Federation) -> None:
    recorded: Any = object()
    replayed = dataclasses.replace(federation, recorded=recorded)
    assert summarise_audits([make_audit(federation=replayed)]).bound is None
    sections = federation.settings.sections
    policy = sections.policy.model_copy(update={"refresh": 20})
    settings = dataclasses.replace(
        federation.settings, sections=sections.model_copy(update={"policy": policy})
    )
    refreshed = dataclasses.replace(federation, settings=settings)
    assert summarise_audits([make_audit(federation=refreshed)]).bound is None


def test_failures_to_separate_are_said() -> None:
    fine = make_audit(num_queries=100, misplaced=1)
    poor = make_audit(num_queries=100, misplaced=2)
    assert summarise_audits([fine]).notes == ()
    (warning,) = summarise_audits([poor]).notes
    assert warning.startswith("Trajectories were told apart for 98.0% of queries only")
    assert summarise_audits([fine, poor]).separation.right_share == 0.985


def test_what_cannot_be_known_is_said(federation: Federation) -> None:
    public = make_audit(named=None, accuracy=None, alone=None, misplaced=None)
    (warning,) = summarise_audits([public]).notes
    assert warning == (
        "Only public records were there: who is right, and how good weights are, is not known."
    )
    # The settings are enough to score weights.
    settled = make_audit(None, misplaced=None, federation=federation, summary=SUMMARY)
    (warning,) = summarise_audits([settled]).notes
    assert warning == "Only public records were there: who is right is not known."
    warnings = summarise_audits([make_audit(), public]).notes
    assert warnings[0].startswith("Only public records of 1 of the runs were there")


def test_another_oracle_is_warned_of(federation: Federation) -> None:
    """The problem has no move between the outer states."""
    records = tuple(
        {"oracle_state": 2 * (number % 2), "accepted": True, "action": "learn"}
        for number in range(3)
    )
    run = make_audit(federation=federation, private=records, summary=SUMMARY)
    report = summarise_audits([dataclasses.replace(run, summary=None)])
    assert report.mismatch is not None and report.mismatch.p_value == 0.0
    first, second = report.notes
    assert first.startswith("The rounds do not look like the oracle that the policy was solved for")
    assert second.startswith("Some runs have not ended")


def test_json_has_the_agreed_fields(report: AuditSummary) -> None:
    content = report.to_dict()
    assert content["runs"] == NUM_SEEDS
    assert {"accuracy", "interval", "completion", "exposure"} <= set(content["learner"])
    known = find_means(build_federation(make_run(), KernelCache()))
    assert list(content["eavesdroppers"]) == list_possible(known)
    agreed = {"threat", "names_true", "interval", "final_accuracy", "worst_accuracy", "advantage"}
    for found in content["eavesdroppers"].values():
        assert agreed <= set(found)
        low, high = found["interval"]
        assert 0.0 <= low <= found["names_true"] <= high <= 1.0
        assert found["final_accuracy"] <= found["worst_accuracy"] <= 1.0
    assert set(content["bound"]) == {"value", "interval"}
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_figures_of_the_learner_are_those_of_the_runs(seeds: Path, report: AuditSummary) -> None:
    summaries = [
        json.loads((seeds / f"seed-{number}" / "summary.json").read_text())
        for number in range(NUM_SEEDS)
    ]
    learner = report.to_dict()["learner"]
    accuracies = [summary["learner_accuracy"] for summary in summaries]
    mean, low, high = t_interval(accuracies)
    assert learner["accuracy"] == pytest.approx(mean)
    assert learner["interval"] == pytest.approx([low, high])
    assert learner["exposure"] == pytest.approx(np.mean([s["exposure"] for s in summaries]))
    assert learner["completion"] == pytest.approx(np.mean([s["completed"] for s in summaries]))
    assert learner["exposure_by_round"][-1] == pytest.approx(learner["exposure"])
    assert learner["accuracy_by_round"][-1] == pytest.approx(learner["accuracy"])
    first = np.mean(
        [read_rounds(seeds / f"seed-{n}")[0]["action"] == "learn" for n in range(NUM_SEEDS)]
    )
    assert learner["exposure_by_round"][0] == first


def test_runs_are_the_same_together_and_one_by_one(seeds: Path, report: AuditSummary) -> None:
    folders = [seeds / f"seed-{number}" for number in range(NUM_SEEDS)]
    alone = summarise_audits([audit_run(folder, KernelCache()) for folder in folders])
    assert alone.threats == report.threats


def test_an_audit_is_kept_in_its_folder(report: AuditSummary, tmp_path: Path) -> None:
    write_audit(tmp_path, report)
    assert json.loads((tmp_path / "audit.json").read_text()) == report.to_dict()
    # Exposure by round says which queries were true.
    assert stat.S_IMODE((tmp_path / "audit.json").stat().st_mode) == 0o600


def test_runs_must_differ_in_their_seeds_only(seeds: Path, tmp_path: Path) -> None:
    run_small(tmp_path / "greedy", policy={"kind": "greedy"}, decoy={"gated": False})
    with pytest.raises(InvalidInput, match=r"its seed.*\[policy\] kind = 'optimal', got 'greedy'"):
        audit_folders([seeds, tmp_path / "greedy"])


def test_public_folders_beside_runs(seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(seeds / "seed-1" / "public", tmp_path / "public-only")
    content = audit_folders([tmp_path / "public-only", seeds / "seed-0"]).to_dict()
    assert content["runs"] == 2 and content["bound"] is not None
    assert content["learner"]["accuracy"] is not None
    assert any("1 of the runs" in warning for warning in content["warnings"])


def test_a_public_folder_alone(seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(seeds / "seed-1" / "public", tmp_path / "only")
    content = audit_folders([tmp_path / "only"]).to_dict()
    unknown = {"accuracy", "interval", "completion", "exposure"}
    assert {content["learner"][key] for key in unknown} == {None}
    for found in content["eavesdroppers"].values():
        assert found["names_true"] is None and found["final_accuracy"] is None
        assert found["belief"]["right"] is None and found["belief"]["probability"] >= 0.5
        assert found["verdict"].startswith(("believes in trajectory", "cannot choose"))
    seen = content["trajectories"]
    rounds = [read_column(seeds / "seed-1", "trajectory").count(number) for number in (0, 1)]
    assert sorted(each["queries"] for each in seen) == sorted(rounds)
    assert min(each["first_round"] for each in seen) == 1
    assert max(each["last_round"] for each in seen) == sum(rounds)
    assert content["not_tried"]["validation"] == "a model and labelled data"
    assert content["tiers"]["A"]["verdict"].startswith(
        "A listener: of 7 eavesdroppers, trajectory "
    )
    assert content["bound"] is None and content["mismatch"] is None
    assert content["separation"] == {"trajectories": [2], "right_share": None}
    json.dumps(content, allow_nan=False)


def test_a_run_that_has_not_ended(seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(seeds / "seed-0", tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    content = audit_folders([tmp_path / "cut"]).to_dict()
    assert any("have not ended" in warning for warning in content["warnings"])
    assert content["learner"]["accuracy"] is None


def test_tables_for_people(report: AuditSummary) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render_audit(report))
    text = captured.get()
    for threat in report.threats:
        assert threat.name in text
        assert threat.verdict in " ".join(text.split())
    assert f"{NUM_SEEDS} runs" in text
    with console.capture() as captured:
        console.print(render_audit(summarise_audits([make_audit()])))
    assert captured.get().splitlines()[0].rstrip() == "What eavesdroppers get, 1 run"
