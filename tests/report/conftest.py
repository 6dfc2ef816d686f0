"""Three audited runs with invented numbers, and their report."""

from __future__ import annotations

from pathlib import Path

import pytest

from covertfl.report.write import write_report
from tests.support.reports import COMMAND, write_runs


def require_report_extra() -> None:
    """Skip a test where a report cannot be made."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three audited runs that a test may change."""
    require_report_extra()
    return write_runs(tmp_path / "runs")


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three audited runs with their report, not to be changed."""
    require_report_extra()
    folder = write_runs(tmp_path_factory.mktemp("report") / "runs")
    assert write_report(folder, command=COMMAND) == folder / "report.html"
    return folder


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots that are drawn but not rendered, for tests of words and tables."""
    empty = b'<svg width="1"></svg>'
    monkeypatch.setattr("covertfl.report.plots._save", lambda *_, **__: empty)
