"""Refits of a service around a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from covertfl.runs.checkpoint import read_checkpoint
from tests.service.test_desk import DRAWN
from tests.support.played_services import play_service, read_run_files

REFIT: dict[str, Any] = {
    "service": {"refit": True},
    "policy": {"kind": "optimal"},
    "oracle": {"success": [0.8, 0.9, 0.95]},
}


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
