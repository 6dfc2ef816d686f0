"""Result files that are missing, incomplete or damaged, and what the page makes of them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.commands import Run, refuse
from tests.support.reports import (
    FIGURES,
    NUM_ROUNDS,
    SETTINGS,
    Page,
    check_number,
    read_page,
    write_run,
)
from tests.support.small_runs import DRAWN_QUEUE, run_small

pytestmark = pytest.mark.usefixtures("unrendered")


def test_without_an_audit_the_page_says_how_to_make_one(folder: Path) -> None:
    (folder / "audit.json").unlink()
    page = read_page(folder)
    assert "audit" not in page.tables
    assert f"covertfl audit {folder}" in page.words
    assert page.num_plots == len(FIGURES) - 1


def test_one_run(folder: Path) -> None:
    page = read_page(folder / "seed-1")
    assert [row[0] for row in page.tables["runs"][1:]] == ["seed-1"]
    assert page.num_plots == len(FIGURES) - 1


def test_a_public_folder_alone(folder: Path, run: Run) -> None:
    public, output = folder / "seed-0" / "public", folder.parent / "page"
    before = sorted(public.rglob("*"))
    for place in ((), ("-o", public), ("-o", public / "weights")):
        said = refuse(run("report", public, *place), 2)
        assert "what clients were sent and nothing else" in said
    assert run("report", public, "-o", output).status == 0
    page = Page((output / "report.html").read_text("utf-8"))
    assert sorted(public.rglob("*")) == before and (output / "report").is_dir()
    assert "without any of the learner's actions" in page.words
    assert page.num_plots == 0
    assert page.tables["runs"][1][:7] == ["public", "no", *["unknown"] * 4, str(NUM_ROUNDS)]


def test_no_private_records(folder: Path) -> None:
    shutil.rmtree(folder / "seed-0" / "private")
    page = read_page(folder / "seed-0")
    assert "seed-0 has no private records" in page.words
    assert page.num_plots == 3  # accuracy, exposure, backlog


def test_a_run_that_has_not_ended(folder: Path) -> None:
    run = folder / "seed-2"
    (run / "summary.json").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
    page = read_page(folder)
    assert "seed-2 has not ended" in page.words
    assert "metrics.jsonl line 6 is not JSON" in page.words
    assert "different numbers of rounds" in page.words
    assert "Completed0 of 2" in page.words
    last = json.loads(lines[4])
    row = page.tables["runs"][3]
    assert row[1] == "no" and row[6] == "5"
    check_number(row[2], last["learner_score"], 1.0)
    assert row[10] == str(last["backlog"])


def test_a_run_without_rounds(tmp_path: Path) -> None:
    (tmp_path / "run" / "public").mkdir(parents=True)
    (tmp_path / "run" / "run.toml").write_text(SETTINGS.format(seed=0))
    page = read_page(tmp_path / "run")
    assert page.num_plots == 0
    assert "run has not ended" in page.words


def test_no_update_done(folder: Path) -> None:
    for seed in range(3):
        (folder / f"seed-{seed}" / "private" / "updates.jsonl").write_text("")
    page = read_page(folder)
    assert "No pending update has been made." in page.words
    assert page.num_plots == len(FIGURES) - 1


def test_an_audit_of_other_runs(folder: Path) -> None:
    write_run(folder / "seed-3", 3)
    assert "The audit is of another set of runs" in read_page(folder).words


def test_an_audit_of_fewer_rounds(folder: Path) -> None:
    audit = json.loads((folder / "audit.json").read_text())
    audit["learner"]["exposure_by_round"] = [0.3]
    (folder / "audit.json").write_text(json.dumps(audit))
    assert "The audit covers fewer rounds" in read_page(folder).words


def test_runs_of_different_settings(folder: Path) -> None:
    path = folder / "seed-1" / "run.toml"
    path.write_text(path.read_text().replace('"optimal"', '"greedy"'))
    assert "differ in more than their seeds ([policy] kind)" in read_page(folder).words


def test_a_page_names_the_scheme_of_its_runs(tmp_path: Path) -> None:
    """Not every scheme has a policy and a decoy."""
    run_small(tmp_path / "run", scheme="exchangeable", exchangeable={"trajectories": 4})
    found = re.search(
        r"1 run of the task digits, (.*), 12 queries", read_page(tmp_path / "run").words
    )
    assert found is not None
    assert "exchangeable" in found[1] and "unknown" not in found[1]


def test_a_queue_as_training_writes_it(tmp_path: Path) -> None:
    summary = run_small(tmp_path / "run", DRAWN_QUEUE)
    page = read_page(tmp_path / "run")
    assert f"Learner accuracy{summary.learner_accuracy:.3f}" in page.words
    row = page.tables["runs"][1]
    assert row[6] == str(summary.rounds)
    assert row[7] == str(summary.learning_queries)
    check_number(row[11], summary.mean_wait, 1.0)
    assert summary.little_wait is not None
    assert f"by Little's law {summary.little_wait:.1f}" in page.words


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("audit.json", "{", "is not JSON"),
        ("audit.json", "[]", "must hold a JSON object"),
        ("audit.json", '{"runs": 1, "learner": {}}', "lacks a valid 'eavesdroppers'"),
        (
            "audit.json",
            '{"runs": 1, "learner": {}, "eavesdroppers": {"x": {"threat": "y"}}}',
            "eavesdropper 'x' lacks a valid 'verdict'",
        ),
        (
            "audit.json",
            '{"runs": 1, "learner": {}, "eavesdroppers": {}, "coalitions": {"2": {}}}',
            "coalition '2' lacks a valid 'rounds_seen'",
        ),
        (
            "audit.json",
            '{"runs": 1, "learner": {}, "eavesdroppers": {}, "tiers": {"A": {"title": "A"}}}',
            "tier 'A' lacks a valid 'verdict'",
        ),
        (
            "audit.json",
            '{"runs": 1, "learner": {}, "eavesdroppers": {}, "warnings": "one"}',
            "lacks a valid 'warnings'",
        ),
        ("seed-0/summary.json", "nonsense", "summary.json is not JSON"),
        ("seed-0/run.toml", "= 3", "not valid TOML"),
    ],
)
def test_damaged_files_are_named(
    folder: Path, run: Run, file: str, content: str, words: str
) -> None:
    (folder / file).write_text(content)
    assert words in refuse(run("report", folder), 2)
    assert not (folder / "report.html").exists()


def test_a_folder_without_runs(tmp_path: Path, run: Run) -> None:
    assert "holds no run" in refuse(run("report", tmp_path), 2)
    assert "no such folder" in refuse(run("report", tmp_path / "nowhere"), 2)
