"""The middle of the house stays a page one can read: few files take part in a short training."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST = 50


@pytest.mark.slow
def test_functions_of_few_files_run_in_a_short_training() -> None:
    script = ROOT / "scripts/count_files.py"
    words = [sys.executable, str(script), "train", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    listed = done.stdout.splitlines()
    found = re.fullmatch(r"train: functions of (\d+) files run", listed.pop())
    assert found and {"runs/round.py", "schemes/scheduled.py", "schemes/scheme.py"} <= set(listed)
    assert int(found[1]) == len(listed) <= MOST, done.stdout
