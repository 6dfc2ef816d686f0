"""The report: its page against the result files, complete in itself and private."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from covertfl.report.write import write_report
from tests.support.reports import COMMAND, FIGURES, Page, check_audit_table, check_number, read_page

# What a report may import: it reads files, and nothing that made them.
ALLOWED = {"arrays", "errors", "files", "files.disk", "files.text", "runs", "runs.files"}


def test_the_table_is_the_audit(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    check_audit_table(page.tables["audit"], json.loads((reported / "audit.json").read_text()))
    assert "92.4% of runs on average (91.9% to 93.0%; formula F4)" in page.words
    assert "right trajectory: 98.0%" in page.words
    assert "Audit: Trajectories were told apart for 98.0% of queries only." in page.words


def test_tiers_are_the_audit(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    audit = json.loads((reported / "audit.json").read_text())
    for tier in audit["tiers"].values():
        assert tier["verdict"] in page.words


@pytest.mark.slow
def test_a_single_run_is_drawn_with_the_simulated_ones(folder: Path) -> None:
    audit = json.loads((folder / "audit.json").read_text())
    simulated = {"names_true": 0.25, "interval": [0.1, 0.5], "runs": 20}
    for entry in audit["eavesdroppers"].values():
        entry["simulated"] = simulated
    (folder / "audit.json").write_text(json.dumps(audit))
    assert "Share of simulated runs of the same settings" in read_page(folder).words


def test_coalitions_are_the_audit(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    assert page.tables["coalitions"][1:] == [
        ["1", "51.2%", "majority", "25.0%", "11.0% to 45.0%", "0.713"],
        ["1", "51.2%", "repeat", "50.0%", "", "unknown"],
    ]


def test_cards_and_runs_are_the_summaries(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    summaries = [
        json.loads((reported / f"seed-{n}" / "summary.json").read_text()) for n in range(3)
    ]
    mean = np.mean([summary["learner_accuracy"] for summary in summaries])
    for words in (
        f"Learner accuracy{mean:.3f}95%: 0.610 to 0.790",
        "Exposure33.3%",
        "Completed0 of 3",
        "Updates missing3still pending; 9 were made",
        "Rejected replies33 shape",
        "Average learning cost1.500per round; the limit is 3",
    ):
        assert words in page.words
    rows = page.tables["runs"][1:]
    assert [row[0] for row in rows] == ["seed-0", "seed-1", "seed-2"]
    for row, summary in zip(rows, summaries, strict=True):
        check_number(row[2], summary["learner_accuracy"], 1.0)
        check_number(row[4], summary["learner_auc"], 1.0)
        assert row[3] == row[5] == "unknown"  # scores that the summary does not have
        check_number(row[8], summary["exposure"], 100.0)
        counts = [summary[key] for key in ("rounds", "learning_queries")]
        assert [row[6], row[7]] == [str(count) for count in counts]
        assert [row[9], row[10], row[13]] == ["3", "1", "1"]
    assert "seed-1: the learner answers class 1." in page.words


def test_the_page_is_complete_in_itself(reported: Path) -> None:
    page = Page((reported / "report.html").read_text("utf-8"))
    assert page.num_plots == len(FIGURES)
    assert len(set(page.identifiers)) == len(page.identifiers)
    assert not {"script", "iframe", "object"} & set(page.tags)
    files = {f"report/{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    assert {reference for reference in page.references if reference.startswith("report/")} == files
    for reference in page.references:
        assert reference.startswith(("#", "data:", "report/")), reference
    assert all((reported / file).stat().st_size > 1000 for file in files)
    assert COMMAND in page.words
    # What a plot refers to within itself is there.
    inner = {reference[1:] for reference in page.references if reference.startswith("#")}
    assert inner and inner <= set(page.identifiers)


def test_settings_and_versions_are_shown(reported: Path) -> None:
    words = Page((reported / "report.html").read_text("utf-8")).words
    assert "shape = linear, scale = 0.5, charged = always" in words
    assert re.search(r"versions of the run\s*covertfl\s*0\.1\.0", words)


@pytest.mark.slow
def test_same_results_same_bytes(reported: Path, folder: Path) -> None:
    """The same in another place, but for the place itself."""

    def read(place: Path) -> dict[str, bytes]:
        files = {path.name: path.read_bytes() for path in (place / "report").iterdir()}
        page = (place / "report.html").read_bytes()
        return files | {"page": page.replace(str(place).encode(), b"")}

    write_report(folder, command=COMMAND)
    assert read(folder) == read(reported)


def test_what_tells_of_actions_is_for_its_owner(reported: Path) -> None:
    page = reported / "report.html"
    assert page.stat().st_mode & 0o077 == 0
    assert (reported / "report").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_nothing_that_solves_or_trains_is_imported(folder: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from covertfl.report.write import write_report\n"
        f"write_report(pathlib.Path({str(folder)!r}), command='')\n"
        "print(*sorted(sys.modules))\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "numba", "scipy", "sklearn", "rich"}
    ours = {name.removeprefix("covertfl.") for name in loaded if name.startswith("covertfl.")}
    assert {name for name in ours - ALLOWED if name.partition(".")[0] != "report"} == set()
