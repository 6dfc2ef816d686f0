"""The demonstration: its table, its page, and what it claims about learner and eavesdropper."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import covertfl as cf
from covertfl.demo.run import (
    CONDITIONS,
    EXCHANGEABLE_ROUNDS,
    MINORITY_ROUNDS,
    NUM_SEEDS,
    Condition,
    run_demo,
)
from covertfl.display.run_tables import render_demo
from covertfl.kernels.job import Vector
from covertfl.runs.checkpoint import read_checkpoint
from covertfl.runs.state import Federation
from covertfl.runs.train import KernelCache, build_federation
from tests.support.browser import check_narrow, load, needs_chromium
from tests.support.commands import Outcome, invoke
from tests.support.reports import Page
from tests.support.small_runs import read_rounds

pytest.importorskip("torch")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


Demo = tuple[Path, dict[Condition, dict[str, Any]]]
FEW = (CONDITIONS[0], CONDITIONS[-1])


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The whole demonstration, as the command runs it."""
    folder = tmp_path_factory.mktemp("demo")
    rows = run_demo(folder)["rows"]
    return folder, dict(zip(CONDITIONS, rows, strict=True))


@pytest.fixture(scope="module")
def small_demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """Two conditions with one seed each."""
    folder = tmp_path_factory.mktemp("small-demo")
    rows = run_demo(folder, seeds=1, conditions=FEW)["rows"]
    return folder, dict(zip(FEW, rows, strict=True))


def check_rows(rows: dict[Condition, dict[str, Any]], seeds: int) -> None:
    for condition, row in rows.items():
        named = (row["scenario"], row["scheme"], row["policy"], row["decoy"])
        expected = (condition.scenario, condition.scheme, condition.policy, condition.decoy)
        assert named == expected
        assert (row["policy"] is None) == (row["decoy"] is None) == (row["scheme"] != "scheduled")
        assert row["runs"] == seeds
        assert 0.0 < row["exposure"] <= 1.0
        assert (row["paper"] is None) == (
            condition.policy == "minority" or condition.decoy != "public"
        )


def test_rows_are_in_order_and_complete(small_demo: Demo) -> None:
    check_rows(small_demo[1], 1)


@pytest.mark.slow
def test_all_rows_are_in_order_and_complete(demo: Demo) -> None:
    check_rows(demo[1], NUM_SEEDS)
    assert all(row["exposure"] < 1.0 for row in demo[1].values())


def test_replicas_leave_one_that_knows_the_scheme_a_guess(small_demo: Demo) -> None:
    """It has half of each run: its estimate is the mean over both models, sent or not."""
    greedy, replica = small_demo[1].values()
    assert greedy["aware_named"] == 1.0
    assert abs(greedy["aware_accuracy"] - greedy["learner_accuracy"]) < 0.01
    assert replica["aware_named"] == 0.5
    run = small_demo[0] / "runs" / FEW[1].folder / "seed-0"
    summary = json.loads((run / "summary.json").read_text())
    both = np.mean([summary["learner_accuracy"], *summary["decoy_accuracy"]])
    assert abs(replica["aware_accuracy"] - both) < 0.02


def test_replicas_have_the_rounds_that_the_planner_names(small_demo: Demo) -> None:
    problem = FEW[1].settings(0).problem
    assert isinstance(problem, cf.FiniteHorizon)
    prices = cf.plan(problem).to_dict()["exchangeable"]["by_trajectories"]
    assert prices[1]["rounds_needed"]["0.95"] == EXCHANGEABLE_ROUNDS
    row = small_demo[1][FEW[1]]
    assert (row["rounds"], row["expected_exposure"]) == (EXCHANGEABLE_ROUNDS, 0.5)
    # The success probabilities in force are those of the federation, near the printed ones.
    assert abs(row["expected_completion"] - 0.95) < 0.03


def test_minority_has_the_rounds_that_the_planner_names() -> None:
    problem = CONDITIONS[0].settings(0).problem
    assert cf.plan(problem).to_dict()["rounds_needed"]["0.95"] == MINORITY_ROUNDS


@pytest.mark.slow
def test_most_runs_finish_where_the_rounds_are_enough(demo: Demo) -> None:
    for condition, row in demo[1].items():
        if condition.rounds is not None:
            assert row["completion"] > 0.5, condition


@pytest.mark.slow
def test_one_that_knows_the_scheme_gets_all_of_the_papers_and_half_of_replicas(demo: Demo) -> None:
    for condition, row in demo[1].items():
        expected = NUM_SEEDS / 2 if condition.scheme == "exchangeable" else NUM_SEEDS
        assert row["aware_named"] == expected, condition


def test_the_table_fits_into_a_hundred_columns(small_demo: Demo) -> None:
    rows = [{**row, "runs": NUM_SEEDS, "aware_named": 2.5} for row in small_demo[1].values()]
    console = Console(width=100, file=io.StringIO())
    console.print(render_demo({"rows": rows, "headline": "", "caution": "", "finishing": ""}))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for row in rows:
        name, decoy = row["policy"] or row["scheme"], row["decoy"] or ""
        assert f"{name:<12} {decoy:<11} {row['rounds']:>3}" in text
    assert "2.5/5" in text and "\u2026" not in text


@pytest.mark.slow
def test_the_eavesdropper_never_holds_the_model_under_minority(demo: Demo) -> None:
    limits = {(1, "public"): 0.53, (2, "public"): 0.72, (2, "adversarial"): 0.53}
    for condition, row in demo[1].items():
        if condition.policy == "minority":
            assert row["held_true"] == 0.0
            limit = limits[condition.scenario, condition.decoy or ""]
            assert row["eavesdropper_accuracy"] <= limit, condition


@pytest.mark.slow
def test_the_eavesdropper_of_a_greedy_learner_has_its_model(demo: Demo) -> None:
    for condition, row in demo[1].items():
        if condition.policy == "greedy":
            assert row["held_true"] == NUM_SEEDS
            assert abs(row["eavesdropper_accuracy"] - row["learner_accuracy"]) < 0.02


@pytest.mark.slow
def test_control_costs_the_learner_nothing_but_time(demo: Demo, tmp_path: Path) -> None:
    """At the same number of updates a controlled learner is as good as an uncontrolled one."""
    cf.Run("toxicity", policy="always-learn").train(tmp_path / "base", seeds=NUM_SEEDS)
    base = [accuracy_by_updates(tmp_path / "base" / f"seed-{n}") for n in range(NUM_SEEDS)]
    for condition in demo[1]:
        ours, theirs = [], []
        for seed in range(NUM_SEEDS):
            reached = accuracy_by_updates(demo[0] / "runs" / condition.folder / f"seed-{seed}")
            updates = min(len(reached), len(base[seed]))
            ours.append(reached[updates - 1])
            theirs.append(base[seed][updates - 1])
        assert abs(np.mean(ours) - np.mean(theirs)) < 0.02, condition


def accuracy_by_updates(folder: Path) -> list[float]:
    """Accuracy of the true weights after each update."""
    pairs = zip(read_rounds(folder), read_rounds(folder, "metrics.jsonl"), strict=True)
    return [score["learner_score"] for record, score in pairs if record["updated"]]


@pytest.mark.slow
def test_the_eavesdroppers_own_data_prefers_the_adversarial_decoy(demo: Demo) -> None:
    for policy in ("optimal", "minority"):
        condition = Condition(2, "scheduled", policy, "adversarial")
        for seed in range(NUM_SEEDS):
            federation = build_federation(condition.settings(seed), KernelCache())
            folder = demo[0] / "runs" / condition.folder / f"seed-{seed}"
            checkpoint = read_checkpoint(folder)
            assert checkpoint is not None
            losses = [
                cross_entropy(federation, checkpoint.arrays[name], federation.task.public)
                for name in ("decoy-1", "true")
            ]
            assert losses[0] < losses[1]


def cross_entropy(federation: Federation, weights: Vector, examples: cf.Examples) -> float:
    logits = federation.kernel.predict(weights, examples.features)[:, 0].astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, logits) - examples.labels * logits))


def test_the_page_and_the_result_file(small_demo: Demo) -> None:
    text = (small_demo[0] / "index.html").read_text("utf-8")
    written = json.loads((small_demo[0] / "result.json").read_text("utf-8"))
    assert written["rows"] == list(small_demo[1].values())
    page = Page(text)
    rows = [row for row in page.tables["demo"][1:] if len(row) > 1]
    assert len(rows) == len(FEW)
    for cells, row in zip(rows, written["rows"], strict=True):
        name = f"{row['policy']}, {row['decoy']} decoy" if row["policy"] else row["scheme"]
        assert cells[0] == f"{name}\n{row['rounds']} rounds"
        assert cells[1].startswith(f"{row['learner_accuracy']:.3f}")
        assert cells[2].startswith(f"{row['eavesdropper_accuracy']:.3f}")
        assert cells[7] == f"{row['updates_done']:.1f} of 16"
    assert page.num_plots == len(FEW)
    assert len(set(page.identifiers)) == len(page.identifiers)
    for key in ("headline", "caution", "finishing"):
        assert written[key] in page.words
    loaded = [place for place in page.references if not place.startswith(("#", "data:"))]
    assert loaded == [], "the page must load nothing from elsewhere"
    assert "@import" not in text and not re.search(r"url\((?!#)", text)


@needs_chromium
@pytest.mark.browser
def test_the_page_loads_without_a_complaint_and_fits_a_phone(small_demo: Demo) -> None:
    page = small_demo[0] / "index.html"
    assert load(page)[1] == []
    check_narrow(page)


def run_command(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Outcome:
    """The command with one condition and one seed."""

    def shortened(out: Path, **keywords: Any) -> dict[str, Any]:
        return run_demo(out, seeds=1, conditions=CONDITIONS[:1], **keywords)

    monkeypatch.setattr("covertfl.demo.run.run_demo", shortened)
    return invoke("demo", "--out", folder, *options)


@pytest.mark.slow
def test_the_command_prints_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_command(tmp_path / "new" / "folder", monkeypatch)
    assert shown.status == 0 and "\x1b" not in shown.out
    for part in ("greedy", "(0.84)", "(0.83)", "1/1", str(tmp_path / "new" / "folder")):
        assert part in shown.out
    # Once more into the same folder: its own runs are replaced.
    content = run_command(tmp_path / "new" / "folder", monkeypatch, "--json").content
    assert content["rows"][0]["runs"] == 1


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(cf.InvalidInput, match="runs"):
        run_demo(tmp_path, seeds=1, conditions=CONDITIONS[:1])
