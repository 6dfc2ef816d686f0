"""Flower's simulation runtime: client apps in other processes, the same bytes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from covertfl.errors import Missing
from covertfl.training import train
from tests.support.commands import run_python
from tests.support.small_runs import make_run, read_folder

RUN = """
import sys
from pathlib import Path
from covertfl.training import train
from tests.support.small_runs import make_run

engine = {"kind": "flower", "mode": "simulation"}
train(make_run(rounds=4, updates=2, engine=engine), Path(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
def test_the_same_bytes(tmp_path: Path) -> None:
    done = run_python(RUN, tmp_path / "flower")
    assert done.returncode == 0, done.stderr
    train(make_run(rounds=4, updates=2), tmp_path / "simulated")
    flower, simulated = read_folder(tmp_path / "flower"), read_folder(tmp_path / "simulated")
    del flower["run.toml"], simulated["run.toml"]
    assert flower == simulated


def test_without_ray_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Missing, match="flower,simulation"):
        train(make_run(engine={"kind": "flower", "mode": "simulation"}), tmp_path / "run")
