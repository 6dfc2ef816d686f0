"""Fixtures of the service's tests: its database, its HTTP interface, and that in a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covertfl.service.store import Store
from tests.support.services import RunningService, make_store, open_client, run_service


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with make_store(tmp_path) as store:
        yield store


@pytest.fixture
def client(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The HTTP interface of `store`, which takes bodies of 100 kB at most."""
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx2")
    monkeypatch.setattr("covertfl.service.api.MOST_BODY", 100_000)
    with open_client(tmp_path) as client:
        yield client


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One HTTP process for all tests that need a real one; each makes requests of its own."""
    pytest.importorskip("uvicorn")
    with run_service(tmp_path_factory.mktemp("service")) as service:
        yield service
