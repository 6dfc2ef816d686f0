"""Fixtures of the command line's tests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from covertfl.cli.app import main
from tests.support.commands import QUEUE_FILE, RUN_FILE, Outcome, Run


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, as the installed script would."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["covertfl", *map(str, arguments)])
        status: Any = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(status, out, err)

    return call


@pytest.fixture
def queue_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.toml"
    path.write_text(QUEUE_FILE)
    return path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(RUN_FILE)
    return path
