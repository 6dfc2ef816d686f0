"""The example for images: its own apps, unchanged, on a grid in this process."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")
pytest.importorskip("sklearn")

from flwr.app import Context, RecordDict

from covertfl.engines.flower.deployment.bundle import build_bundle, find_own_app
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.files.text import parse_toml
from tests import ROOT

EXAMPLE = ROOT / "examples" / "flower_digits"


def test_the_bundle_has_nothing_of_the_server() -> None:
    find_own_app(EXAMPLE / "app", EXAMPLE / "server", None)
    content = build_bundle(EXAMPLE / "app")
    assert b"digit_images/client_app.py" in content
    assert b"digits_server.py" not in content and b"run.toml" not in content


@pytest.mark.slow
def test_the_apps_train_covertly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("app", "server"):
        monkeypatch.syspath_prepend(str(EXAMPLE / folder))
    monkeypatch.setenv("COVERTFL_RUN", str(EXAMPLE / "run.toml"))
    monkeypatch.setenv("COVERTFL_OUT", str(tmp_path / "run"))
    project = parse_toml((EXAMPLE / "app" / "pyproject.toml").read_text(), "pyproject.toml")
    config = project["tool"]["flwr"]["app"]["config"]
    client = importlib.import_module("digit_images.client_app").app
    server = importlib.import_module("digits_server")
    grid = InProcessGrid(client, 4, run_config=config)
    context = Context(0, 0, {}, RecordDict(), dict(config))
    server.app(grid, context)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates_done"] == 5
    assert summary["learner_accuracy"] > 0.85
    lines = (tmp_path / "run" / "private" / "client_metrics.jsonl").read_text().splitlines()
    assert len(lines) == summary["rounds"] and "train-loss" in lines[0]
