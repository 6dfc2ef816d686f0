"""A service whose clients are processes of their own: asked, ended, and started again."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl.errors import InvalidInput
from tests.service.test_crash import (
    ask_for,
    keep_trying,
    own_home,
    start_service,
    wait_until,
    write_service,
)
from tests.support.played_services import SERVICE, list_requests
from tests.support.slow_cases import IS_SOAK
from tests.support.small_runs import merge, read_rounds

pytestmark = [
    pytest.mark.deployment,
    pytest.mark.skipif(not IS_SOAK, reason="two starts of a federation: make soak"),
]
__all__ = ["own_home"]

RUN: dict[str, Any] = merge(
    SERVICE,
    {
        "federation": {"clients": 3, "participation": [1, 2, 3], "min_share": 0.1},
        "decoy": {"kind": "public"},
        "policy": {"kind": "greedy"},
        "engine": {"kind": "flower", "mode": "deployment"},
    },
)


def ask_when_ready(folder: Path, number: int) -> int:
    """Ask for a request as soon as the service takes any; return its number."""
    answers: list[Any] = []

    def is_taken() -> bool:
        try:
            answers.append(keep_trying(ask_for(number), folder))
        except InvalidInput as error:
            assert "the service is starting" in str(error)
        return bool(answers)

    wait_until(is_taken)
    return int(answers[0]["id"])


def serve_one(file: Path, folder: Path, number: int) -> int:
    """Serve until a request is done; return the number of rounds so far."""
    with start_service(file, folder) as service:
        try:
            asked = ask_when_ready(folder, number)
            wait_until(
                lambda: (
                    keep_trying(lambda one: one.get(f"/requests/{asked}"), folder)["state"]
                    == "done"
                )
            )
            service.send_signal(signal.SIGTERM)
            _, errors = service.communicate(timeout=60)
        finally:
            service.kill()
        assert service.returncode == 0 and "the service has ended" in errors
    return len(read_rounds(folder))


def test_a_service_of_processes_is_asked_ended_and_started_again(tmp_path: Path) -> None:
    file, folder = write_service(tmp_path, RUN), tmp_path / "service"
    rounds = [serve_one(file, folder, number) for number in (0, 4)]
    done = list_requests(folder)
    assert [(one.state, one.served, one.version) for one in done] == [
        ("done", 1, 1),
        ("done", 1, 2),
    ]
    assert 0 < rounds[0] < rounds[1]
    assert [one["round"] for one in read_rounds(folder)] == list(range(1, rounds[1] + 1))
    assert sorted(path.name for path in (folder / "versions").iterdir()) == ["0", "1", "2"]
