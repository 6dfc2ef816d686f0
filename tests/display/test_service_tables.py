"""A service's status and versions as tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from covertfl.display.service_tables import MOST_SHOWN, render_status, render_versions
from covertfl.service.status import describe_requests, describe_status, describe_versions
from covertfl.service.store import Store
from tests.support.services import add, make_body, make_store, make_version


def show(table: RenderableType) -> str:
    output = io.StringIO()
    Console(file=output, width=110).print(table)
    return " ".join(output.getvalue().split())


@pytest.mark.parametrize("is_known", [False, True])
def test_a_service_without_rounds_is_shown(tmp_path: Path, is_known: bool) -> None:
    with make_store(tmp_path) if is_known else Store(tmp_path, creates=True) as store:
        shown = show(render_status(describe_status(store), []))
    assert "backlog 0 updates" in shown
    assert ("- rounds, promised 25.0" in shown) is is_known
    assert "Open requests" not in shown


def test_only_some_of_many_requests_are_shown(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        add(store, [make_body() for _ in range(MOST_SHOWN + 3)])
        store.keep_fact("paused", "the disk is full")
        listed = describe_requests(store, limit=1000, before=None)["requests"]
        shown = show(render_status(describe_status(store), listed))
    assert "3 more requests are open." in shown
    assert "paused: the disk is full" in shown


def test_a_version_names_few_requests_and_counts_many(tmp_path: Path) -> None:
    metrics: dict[str, Any] = dict.fromkeys(("balanced_accuracy", "auc", "f1", "loss"), 0.1234)
    with make_store(tmp_path) as store:
        store.release(make_version(0))
        for number in range(1, 6):
            store.release(make_version(number, number - 1, number))
        versions = describe_versions(store)["versions"]
    versions[5]["metrics"] |= metrics
    shown = show(render_versions(versions))
    assert "4 3 4 1, 2, 3, 4 4 0.800" in shown
    assert "5 4 5 5 requests 5 0.800 0.123 0.123 0.123 0.123 2001-09-09 01:46" in shown
