"""Commands run in this process, the files they read, and code in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from unittest import mock

from tests import ROOT

QUEUE_FILE = """[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]

[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, charged = "always" }

[queue]
arrival_prob   = 0.05
arrival_size   = 4
learning_limit = 3.0
capacity       = "auto"
full_cost      = 0.0
minimise       = "privacy"
"""
RUN_FILE = """
task = "digits"
rounds = 8
updates = 3
[federation]
clients = 4
participation = [1, 2, 4]
batch_size = 20
[policy]
kind = "greedy"
[decoy]
kind = "random"
"""
EXAMPLE_LOG = str(resources.files("covertfl") / "data" / "participation.csv")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def content(self) -> Any:
        """The one JSON object on standard output."""
        assert self.status == 0, self.err
        assert self.out.count("\n") == 1 and self.out.endswith("\n")
        return json.loads(self.out)


Run = Callable[..., Outcome]


def invoke(*arguments: object) -> Outcome:
    """Run a command in this process, as the installed script would."""
    from covertfl.cli.app import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    status: Any = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["covertfl", *map(str, arguments)]),
    ):
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
    for stream in (out, err):
        stream.seek(0)
    outcome = Outcome(status, out.read(), err.read())
    assert "Traceback" not in outcome.err
    return outcome


def run_python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run code that may import the tests in a process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def refuse(outcome: Outcome, status: int) -> str:
    """Return the sentence of a refusal; nothing else may be printed.

    With --json it is a JSON object on standard output.
    """
    if outcome.out:
        error = json.loads(outcome.out)["error"]
        assert (outcome.status, error["status"], outcome.err) == (status, status, "")
        return str(error["message"])
    return refuse_after_output(outcome, status)


def refuse_after_output(outcome: Outcome, status: int) -> str:
    """Return the sentence of a refusal that comes after a result."""
    assert outcome.status == status
    assert outcome.err.startswith("covertfl: ") and outcome.err.count("\n") == 1
    return outcome.err.removeprefix("covertfl: ").rstrip("\n")
