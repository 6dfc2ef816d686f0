"""A run's folder that is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from covertfl.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """Make an empty folder and close it after the test."""
    made = RunFolder(tmp_path / "run")
    made.create("seed = 1\n", force=False)
    yield made
    made.close()
