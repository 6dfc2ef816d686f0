"""The clock of a service, and refits around a restart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from covertfl.runs.checkpoint import read_checkpoint
from covertfl.service import loop
from covertfl.service.loop import Ticker
from tests.service.test_desk import DRAWN
from tests.support.played_services import play_service, read_run_files

REFIT: dict[str, Any] = {
    "service": {"refit": True},
    "policy": {"kind": "optimal"},
    "oracle": {"success": [0.8, 0.9, 0.95]},
}


class FakeTime:
    """A clock that moves when it is waited for; also the event of a service that is to end."""

    def __init__(self) -> None:
        self.now, self.ends = 100.0, False
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waited.append(seconds)
        if not self.ends:
            self.now += seconds
        return self.ends

    def is_set(self) -> bool:
        return self.ends


def test_starts_are_at_equal_intervals_and_missed_ones_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeTime()
    monkeypatch.setattr(loop, "time", clock)
    ticker = Ticker(10.0, clock)  # type: ignore[arg-type]
    starts = []
    for takes in (3.0, 9.5, 0.0, 27.0, 10.0, 1.0):
        assert ticker.wait()
        starts.append(clock.now)
        clock.now += takes
    # The round from 130 to 157 misses two starts and the next begins at once; that one ends at
    # 167, after its successor's start at 160.
    assert starts == [100.0, 110.0, 120.0, 130.0, 157.0, 167.0]


def test_a_service_that_is_to_end_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(loop, "time", clock)
    ticker = Ticker(3600.0, clock)  # type: ignore[arg-type]
    assert ticker.wait()
    clock.ends = True
    assert not ticker.wait() and clock.now == 100.0
    ending = threading.Event()
    fast = Ticker(0.0, ending)
    assert fast.wait()
    ending.set()
    assert not fast.wait()


@pytest.mark.slow
def test_a_refit_makes_a_policy_and_a_restart_around_it_changes_no_byte(tmp_path: Path) -> None:
    """Updates come 2.5 times as often as the problem says: the policy is made anew in round 300."""
    asked: dict[int, Any] = {at: [{"kind": "shift", "updates": 2}] for at in range(1, 312, 4)}
    play_service(tmp_path / "whole", asked, 312, base=DRAWN, **REFIT)
    checkpoint = read_checkpoint(tmp_path / "whole")
    assert checkpoint is not None and checkpoint.facts["live"]["refreshed"] == 300
    for end in (299, 300, 303, None):
        play_service(tmp_path / "parts", asked, 312, base=DRAWN, stop_after=end, **REFIT)
    assert read_run_files(tmp_path / "parts") == read_run_files(tmp_path / "whole")
    plain = {**REFIT, "service": {"refit": False}}
    play_service(tmp_path / "plain", asked, 302, base=DRAWN, **plain)
    kept = read_checkpoint(tmp_path / "plain")
    assert kept is not None and kept.facts["live"]["refreshed"] == 0
