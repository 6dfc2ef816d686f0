"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import QUEUE_FILE, RUN_FILE


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
