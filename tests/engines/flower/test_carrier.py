"""Rounds start at fixed times."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("flwr")

from covertfl.engines.flower.carrier import Clock


def test_a_clock_starts_rounds_at_multiples(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    clock = Clock(2.0)
    for work in (0.5, 1.9, 4.5, 0.0):
        clock.wait()
        now[0] += work
    clock.wait()
    assert now[0] == pytest.approx(100.0 + 2.0 * 6)
    assert slept == pytest.approx([1.5, 0.1, 1.5, 2.0])
    Clock(None).wait()
