"""The walkthrough does what it says, from an empty folder to a model in use."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import ROOT

for name in ("flwr", "matplotlib", "torch", "wordllama"):
    pytest.importorskip(name)


@pytest.mark.slow
def test_the_walkthrough_can_be_followed() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "newcomer.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
