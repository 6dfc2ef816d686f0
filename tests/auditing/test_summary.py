"""Audits of several runs put together: intervals, verdicts, bound, warnings and JSON."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("torch", reason="torch is not installed")

from covertfl.auditing.folders import audit_folders, write_audit
from covertfl.auditing.run import Finding, RunAudit
from covertfl.auditing.summary import (
    AuditReport,
    Threat,
    describe_audit,
    list_warnings,
    put_together,
)
from covertfl.display.audit_tables import render_audit
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.errors import InvalidInput
from covertfl.intervals import t_interval, wilson_interval
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.federation import Federation
from covertfl.training import train
from tests.support.small_runs import FUNCTION_QUEUE, QUEUE, make_run, read_rounds, run_small

NUM_SEEDS = 3


def make_audit(
    named: float | None = 1.0,
    accuracy: Sequence[float] | None = (0.5, 0.9, 0.8),
    alone: Sequence[float] | None = (0.4, 0.5, 0.6),
    **changes: Any,
) -> RunAudit:
    """A run in which `majority` and `train-alone` found something."""
    both = (0.5, 0.5)
    findings = {
        "majority": Finding(named, None if accuracy is None else tuple(accuracy), both),
        "train-alone": Finding(0.5, None if alone is None else tuple(alone), both),
    }
    run = RunAudit(Path("run"), 3, 2, 0, findings, None, None, (), ())
    return dataclasses.replace(run, **changes)


def find_threat(report: AuditReport, name: str) -> Threat:
    return next(threat for threat in report.threats if threat.name == name)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "many"
    train(make_run(decoy={"gated": False}), out, seeds=NUM_SEEDS)
    return out


@pytest.fixture(scope="module")
def report(seeds: Path) -> AuditReport:
    return audit_folders([seeds])


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build_federation(make_run(), KernelCache())


# --- figures ----------------------------------------------------------------------------------


def test_chances_have_wilson_intervals_with_halves() -> None:
    threat = find_threat(
        put_together([make_audit(1.0), make_audit(0.5), make_audit(0.0)]), "majority"
    )
    low, high = wilson_interval(1.5, 3)
    assert threat.names_true == pytest.approx(0.5)
    assert threat.interval == pytest.approx((float(low), float(high)))
    # By its definition: both ends solve (s - n p)^2 = z^2 n p (1 - p).
    for p in threat.interval or ():
        assert (1.5 - 3 * p) ** 2 == pytest.approx(1.959964**2 * 3 * p * (1 - p), rel=1e-5)


def test_accuracies_have_t_intervals() -> None:
    finals = [0.6, 0.7, 0.95]
    runs = [make_audit(accuracy=(0.5, 0.9, final)) for final in finals]
    threat = find_threat(put_together(runs), "majority")
    mean, deviation = np.mean(finals), np.std(finals, ddof=1)
    half = 4.302652729911275 * deviation / np.sqrt(3)  # Student's t, 2 degrees, 97.5%
    assert threat.final_accuracy == pytest.approx(mean)
    assert threat.final_interval == pytest.approx((mean - half, mean + half))
    # The learner's worst is the eavesdropper's best round.
    assert threat.worst_accuracy == pytest.approx((0.9 + 0.9 + 0.95) / 3)


def test_advantage_is_over_training_alone() -> None:
    runs = [make_audit(alone=(0.9, 0.5)), make_audit(accuracy=(0.2, 0.6), alone=(0.1, 0.7))]
    report = put_together(runs)
    assert find_threat(report, "majority").advantage == pytest.approx(0.7 - 0.6)
    assert find_threat(report, "train-alone").advantage == pytest.approx(0.0)


def test_one_run_has_no_t_interval_and_unknown_figures_are_none() -> None:
    one = find_threat(put_together([make_audit()]), "majority")
    assert one.final_interval is None and one.interval is not None
    unknown = make_audit(named=None, accuracy=None, alone=None, misplaced=None)
    threat = find_threat(put_together([unknown, unknown]), "majority")
    figures = (threat.names_true, threat.interval, threat.final_accuracy, threat.worst_accuracy)
    assert figures == (None,) * 4 and threat.advantage is None


# --- verdicts ---------------------------------------------------------------------------------


def make_threat(named: float | None, runs: int, guess: float = 0.5, **changes: Any) -> Threat:
    interval = None
    if named is not None:
        low, high = wilson_interval(named * runs, runs)
        interval = (float(low), float(high))
    threat = Threat("majority", "sees", named, interval, None, None, None, None, guess)
    return dataclasses.replace(threat, **changes)


@pytest.mark.parametrize(
    ("named", "runs", "guess", "words"),
    [
        (1.0, 10, 0.5, "defeats the scheme"),
        (0.9, 10, 0.5, "defeats the scheme"),
        (0.89, 100, 0.5, "does better than a guess"),
        (0.7, 100, 0.5, "does better than a guess"),
        # Seven of ten may well be luck, and so may one of one.
        (0.7, 10, 0.5, "no clear difference from a guess"),
        (1.0, 1, 0.5, "no clear difference from a guess"),
        (0.0, 1, 0.5, "no clear difference from a guess"),
        (0.5, 1000, 0.5, "no clear difference from a guess"),
        (0.3, 100, 0.5, "does worse than a guess"),
        (0.11, 100, 0.5, "does worse than a guess"),
        (0.1, 10, 0.5, "is misled"),
        (0.0, 10, 0.5, "is misled"),
        # Of three trajectories a guess names the true one in a third of runs.
        (0.45, 200, 1 / 3, "does better than a guess"),
        (0.45, 200, 0.5, "no clear difference from a guess"),
        (1 / 3, 200, 1 / 3, "no clear difference from a guess"),
    ],
)
def test_verdicts(named: float, runs: int, guess: float, words: str) -> None:
    verdict = make_threat(named, runs, guess).verdict
    assert verdict == f"{words}: names the true model in {named:.0%} of runs"


def test_verdicts_say_what_was_gained() -> None:
    for advantage, gained in ((0.0099, "nothing"), (0.01, "0.01"), (-0.3, "nothing")):
        verdict = make_threat(1.0, 10, advantage=advantage).verdict
        assert verdict.endswith(f"in 100% of runs and gains {gained} over training alone")


def test_verdicts_without_the_truth_and_of_the_base_line() -> None:
    assert make_threat(None, 0).verdict.startswith("cannot be judged")
    for named in (None, 0.5):
        assert make_threat(named, 10, name="train-alone").verdict.startswith("the base line")


def test_a_guess_is_among_all_trajectories(federation: Federation) -> None:
    assert find_threat(put_together([make_audit(federation=federation)]), "majority").guess == 0.5
    several = build_federation(make_run(decoy={"count": 3}), KernelCache())
    report = put_together([make_audit(federation=several)])
    assert find_threat(report, "majority").guess == pytest.approx(0.25)
    assert report.bound is None


# --- bound ------------------------------------------------------------------------------------


def test_the_bound_is_given_where_it_applies(federation: Federation) -> None:
    known = put_together([make_audit(federation=federation)]).bound
    assert known is not None
    value, low, high = known
    assert 0.5 <= low <= value <= high <= 1.0
    # Whichever run comes first.
    assert put_together([make_audit(), make_audit(federation=federation)]).bound == known
    assert put_together([make_audit()]).bound is None
    queue = build_federation(make_run(QUEUE), KernelCache())
    assert put_together([make_audit(federation=queue)]).bound is None


def test_no_bound_for_rounds_or_policies_that_are_not_the_problem_s(
    federation: Federation,
) -> None:
    recorded: Any = object()
    replayed = dataclasses.replace(federation, recorded=recorded)
    assert put_together([make_audit(federation=replayed)]).bound is None
    sections = federation.settings.sections
    policy = sections.policy.model_copy(update={"refresh": 20})
    settings = dataclasses.replace(
        federation.settings, sections=sections.model_copy(update={"policy": policy})
    )
    refreshed = dataclasses.replace(federation, settings=settings)
    assert put_together([make_audit(federation=refreshed)]).bound is None


# --- warnings ---------------------------------------------------------------------------------


def test_failures_to_separate_are_said() -> None:
    fine = make_audit(num_queries=100, misplaced=1)
    poor = make_audit(num_queries=100, misplaced=2)
    assert list_warnings(put_together([fine])) == []
    (warning,) = list_warnings(put_together([poor]))
    assert warning.startswith("Trajectories were told apart for 98.0% of queries only")
    assert describe_audit(put_together([fine, poor]))["separation"]["right_share"] == 0.985


def test_what_cannot_be_known_is_said(federation: Federation) -> None:
    public = make_audit(named=None, accuracy=None, alone=None, misplaced=None)
    (warning,) = list_warnings(put_together([public]))
    assert warning == (
        "Only public records were there: who is right, and how good weights are, is not known."
    )
    # The settings are enough to score weights.
    settled = make_audit(None, misplaced=None, federation=federation, summary={"rounds": 3})
    (warning,) = list_warnings(put_together([settled]))
    assert warning == "Only public records were there: who is right is not known."
    warnings = list_warnings(put_together([make_audit(), public]))
    assert warnings[0].startswith("Only public records of 1 of the runs were there")


def test_another_oracle_is_warned_of(federation: Federation) -> None:
    """The problem has no move between the outer states."""
    records = tuple(
        {"oracle_state": 2 * (number % 2), "accepted": True, "action": "learn"}
        for number in range(3)
    )
    run = make_audit(federation=federation, private=records, summary={"rounds": 3})
    report = put_together([dataclasses.replace(run, summary=None)])
    assert report.mismatch is not None and report.mismatch.p_value == 0.0
    first, second = list_warnings(report)
    assert first.startswith("The rounds do not look like the oracle that the policy was solved for")
    assert second.startswith("Some runs have not ended")


# --- runs -------------------------------------------------------------------------------------


def test_json_has_the_agreed_fields(report: AuditReport) -> None:
    content = describe_audit(report)
    assert content["runs"] == NUM_SEEDS
    assert {"accuracy", "interval", "completion", "exposure"} <= set(content["learner"])
    assert list(content["eavesdroppers"]) == list(EAVESDROPPERS)
    agreed = {"threat", "names_true", "interval", "final_accuracy", "worst_accuracy", "advantage"}
    for found in content["eavesdroppers"].values():
        assert agreed <= set(found)
        low, high = found["interval"]
        assert 0.0 <= low <= found["names_true"] <= high <= 1.0
        assert found["final_accuracy"] <= found["worst_accuracy"] <= 1.0
    assert set(content["bound"]) == {"value", "interval"}
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_figures_of_the_learner_are_those_of_the_runs(seeds: Path, report: AuditReport) -> None:
    summaries = [
        json.loads((seeds / f"seed-{number}" / "summary.json").read_text())
        for number in range(NUM_SEEDS)
    ]
    learner = describe_audit(report)["learner"]
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


def test_runs_are_the_same_together_and_one_by_one(seeds: Path, report: AuditReport) -> None:
    for run in report.runs:
        (alone,) = audit_folders([run.path]).runs
        for name, finding in run.findings.items():
            assert dataclasses.astuple(alone.findings[name]) == dataclasses.astuple(finding)


def test_an_audit_is_kept_in_its_folder(report: AuditReport, tmp_path: Path) -> None:
    write_audit(tmp_path, report)
    assert json.loads((tmp_path / "audit.json").read_text()) == describe_audit(report)
    # Exposure by round says which queries were true.
    assert stat.S_IMODE((tmp_path / "audit.json").stat().st_mode) == 0o600


def test_runs_must_differ_in_their_seeds_only(seeds: Path, tmp_path: Path) -> None:
    run_small(tmp_path / "greedy", policy={"kind": "greedy"}, decoy={"gated": False})
    with pytest.raises(InvalidInput, match=r"its seed.*\[policy\] kind = 'optimal', got 'greedy'"):
        audit_folders([seeds, tmp_path / "greedy"])


def test_public_folders_beside_runs(seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(seeds / "seed-1" / "public", tmp_path / "public-only")
    content = describe_audit(audit_folders([tmp_path / "public-only", seeds / "seed-0"]))
    assert content["runs"] == 2 and content["bound"] is not None
    assert content["learner"]["accuracy"] is not None
    assert any("1 of the runs" in warning for warning in content["warnings"])


def test_a_public_folder_alone(seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(seeds / "seed-1" / "public", tmp_path / "only")
    content = describe_audit(audit_folders([tmp_path / "only"]))
    unknown = {"accuracy", "interval", "completion", "exposure"}
    assert {content["learner"][key] for key in unknown} == {None}
    for found in content["eavesdroppers"].values():
        assert found["names_true"] is None and found["final_accuracy"] is None
        assert found["verdict"].startswith("cannot be judged")
    assert content["bound"] is None and content["mismatch"] is None
    assert content["separation"] == {"trajectories": [2], "right_share": None}
    json.dumps(content, allow_nan=False)


def test_a_function(tmp_path: Path) -> None:
    run_small(tmp_path / "run", FUNCTION_QUEUE)
    content = describe_audit(audit_folders([tmp_path / "run"]))
    assert content["learner"]["accuracy"] is None
    assert content["learner"]["accuracy_by_round"] is None
    assert content["learner"]["exposure"] is not None
    found = content["eavesdroppers"]["likelihood"]
    assert found["names_true"] in (0.0, 0.5, 1.0) and found["advantage"] is None
    json.dumps(content, allow_nan=False)


def test_a_run_that_has_not_ended(seeds: Path, tmp_path: Path) -> None:
    shutil.copytree(seeds / "seed-0", tmp_path / "cut")
    (tmp_path / "cut" / "summary.json").unlink()
    content = describe_audit(audit_folders([tmp_path / "cut"]))
    assert any("have not ended" in warning for warning in content["warnings"])
    assert content["learner"]["accuracy"] is None


def test_tables_for_people(report: AuditReport) -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render_audit(report))
    text = captured.get()
    for threat in report.threats:
        assert threat.name in text
        assert threat.verdict in " ".join(text.split())
    assert f"{NUM_SEEDS} runs" in text
    with console.capture() as captured:
        console.print(render_audit(put_together([make_audit()])))
    assert captured.get().splitlines()[0].rstrip() == "What eavesdroppers get, 1 run"
