"""Fixtures of the service's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from covertfl.service.store import Store
from tests.support.services import RunningService, make_store, run_service


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path) as store:
        yield store


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One HTTP process for all tests that need a real one; each makes requests of its own."""
    pytest.importorskip("uvicorn")
    with run_service(tmp_path_factory.mktemp("service")) as service:
        yield service
