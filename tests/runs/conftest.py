"""A run's folder that is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from covertfl.runs.folder import RunFolder
from tests.support.run_folders import SETTINGS_TEXT


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Make an empty folder and close it after the test."""
    made = RunFolder(tmp_path / "run")
    made.create(SETTINGS_TEXT, force=False)
    yield made
    made.close()
