"""`cf.audit` and what it returns."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import covertfl as cf


@pytest.fixture(scope="module")
def report(finished_seeds: Path) -> cf.AuditReport:
    return cf.audit(str(finished_seeds))


def test_every_eavesdropper_has_an_entry(report: cf.AuditReport) -> None:
    names = [threat.name for threat in report.threats]
    assert len(set(names)) == len(names) > 20 and "majority" in names and "train-alone" in names
    for threat in report.threats:
        assert isinstance(threat, cf.Threat)
        assert threat.verdict
        assert threat.names_true is None or 0.0 <= threat.names_true <= 1.0
    assert report.find("majority").name == "majority"
    assert report.num_runs == 3


def test_a_report_shows_itself(report: cf.AuditReport) -> None:
    assert "majority" in repr(report) and "<table>" in report._repr_html_()
    described = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert described["runs"] == 3
    assert list(described["eavesdroppers"]) == [threat.name for threat in report.threats]
    assert list(report.notes) == described["warnings"]


def test_nothing_is_written_unless_asked_for(
    report: cf.AuditReport, finished_seeds: Path, tmp_path: Path
) -> None:
    assert not (finished_seeds / "audit.json").exists()
    report.save(str(tmp_path))
    assert json.loads((tmp_path / "audit.json").read_text()) == report.to_dict()


def test_one_run_is_compared_with_simulated_ones(finished_seeds: Path, tmp_path: Path) -> None:
    one = Path(shutil.copytree(finished_seeds / "seed-0", tmp_path / "one"))
    found = cf.audit(one, eavesdroppers=["minority"], rehearsals=None)
    (threat,) = found.threats
    assert threat.simulated is not None and threat.simulated.num_runs == 20
    assert [tier.letter for tier in found.tiers] == ["A"]
    assert cf.audit(one, eavesdroppers=["minority"], rehearsals=0).threats == (
        dataclasses.replace(threat, simulated=None),
    )
    # Several runs say enough by themselves.
    several = cf.audit(finished_seeds, eavesdroppers=["minority"])
    assert several.threats[0].simulated is None and several.threats[0].conviction is None


def test_a_plot_is_a_figure(report: cf.AuditReport) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    assert isinstance(report.plot(), figure.Figure)


@pytest.mark.parametrize(
    ("folders", "options", "sentence"),
    [
        ((), {}, "folders of runs are needed"),
        ((5,), {}, "folder must be a path"),
        (("/no/such/folder",), {}, "no such folder"),
        (("/tmp",), {"eavesdroppers": ["nobody"]}, "eavesdroppers must be one of"),
        (("/tmp",), {"eavesdroppers": "majority"}, "eavesdroppers must be a list of"),
        (("/tmp",), {"eavesdroppers": []}, "eavesdroppers must be a list of"),
        (("/tmp",), {"eavesdroppers": 1}, "eavesdroppers must be a list of"),
        (("/tmp",), {"on_progress": 1}, "on_progress must be callable"),
        (("/tmp",), {"rehearsals": -1}, "rehearsals must be a whole number of at least 0"),
        (("/tmp",), {"trajectories": 1}, "trajectories must be a whole number of at least 2"),
        (("/tmp",), {"trained": 0.5}, "trained must be a whole number of at least 0"),
        (("/tmp",), {"trained_on": "both"}, "trained_on must be public or federation, got 'both'"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(
    folders: Any, options: Any, sentence: str
) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        cf.audit(*folders, **options)


def test_an_unknown_name_is_refused(report: cf.AuditReport) -> None:
    with pytest.raises(cf.InvalidInput, match="name must be one of"):
        report.find("nobody")
