"""The demonstration: what it prints and what it leaves behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from covertfl import cli
from covertfl.policy import HorizonTable, QueueTable
from covertfl.policy_file import read_policy
from covertfl.problem_file import read_problem

pytest.importorskip("matplotlib")

PICTURES = {"queue-policy.png", "horizon-policy.png", "completion.png", "frontier.png"}
FILES = PICTURES | {"problem.toml", "queue-policy.json", "horizon-policy.json"}


def run_demo(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["covertfl", "demo", "--out", str(folder), *options])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


def test_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    run_demo(folder, monkeypatch)
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    for part in (
        "The oracle, fitted to the example log",
        "16 updates in 45 rounds cannot be both covert and certain: 41 to 64% at best",
        "Optimal policy of the queue",
        str(folder),
    ):
        assert part in out
    assert {path.name for path in folder.iterdir()} >= FILES
    for name in PICTURES:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert read_problem(folder / "problem.toml").evidence is not None
    assert isinstance(read_policy(folder / "queue-policy.json"), QueueTable)
    assert isinstance(read_policy(folder / "horizon-policy.json"), HorizonTable)


def test_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_demo(tmp_path, monkeypatch, "--json")
    content = json.loads(capsys.readouterr().out)
    assert content["fit"]["rounds"] == 600
    assert content["queue"]["privacy_cost"] == pytest.approx(0.76843, abs=5e-6)
    assert content["horizon_plan"]["rounds_needed"] == {"0.9": 70, "0.95": 79, "0.99": 99}
    assert content["queue_plan"]["stable"] is True
    assert set(content["files"]) >= FILES
