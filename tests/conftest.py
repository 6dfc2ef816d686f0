"""Settings and fixtures that every test shares."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from hypothesis import settings

from tests.support.commands import Outcome, Run

# The matrices of the tests are small: threads would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The same examples in every run: a failure on another machine can be repeated here.
settings.register_profile("covertfl", deadline=None, derandomize=True, max_examples=40)
# Other examples each time: pytest --hypothesis-profile=explore
settings.register_profile(
    "explore", deadline=None, derandomize=False, print_blob=True, max_examples=400
)
settings.load_profile("covertfl")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, as the installed script would."""

    from covertfl.cli.app import main

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["covertfl", *map(str, arguments)])
        status: Any = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(status, out, err)

    return call
