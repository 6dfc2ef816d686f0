"""What is refused before anything is started, and how signals end a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl.cli.app import app
from covertfl.engines.flower.deployment.bundle import find_own_app
from covertfl.engines.flower.deployment.run import Deployment
from covertfl.errors import InvalidInput
from tests import ROOT
from tests.support.small_runs import make_run

EXAMPLE = ROOT / "examples" / "flower_toxicity"
SMALL: dict[str, Any] = {"federation": {"clients": 4, "participation": [1, 2, 4]}}


@pytest.mark.parametrize(
    ("changes", "nodes", "said"),
    [
        ({}, 5, "nodes must be 1..4"),
        ({}, 0, "nodes must be 1..4"),
        ({"task": "own"}, 4, "task = own cannot be deployed"),
        ({"federation": {"clients": 4, "participation": [2, 2, 4]}}, 4, "must increase"),
    ],
)
def test_runs_that_cannot_be_deployed(
    tmp_path: Path, changes: dict[str, Any], nodes: int, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        Deployment(make_run(**{**SMALL, **changes}), tmp_path / "out", num_nodes=nodes)
    assert not list(tmp_path.iterdir())


def test_a_task_of_ones_own_goes_with_ones_own_app(tmp_path: Path) -> None:
    own = find_own_app(EXAMPLE / "app", EXAMPLE / "server", None)
    settings = make_run(task="own", federation={"clients": 20, "participation": [5, 10, 20]})
    Deployment(settings, tmp_path / "out", num_nodes=4, app=own)


def test_a_folder_that_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"replace it \(--force\)"):
        Deployment(make_run(**SMALL), tmp_path, num_nodes=4)


def test_options_that_exclude_or_need_each_other(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('task = "digits"\n')
    with pytest.raises(InvalidInput, match="give one of them"):
        app(["deploy-local", str(run), "--resume", "--force"], standalone_mode=False)
    with pytest.raises(InvalidInput, match="go with --app"):
        app(["deploy-local", str(run), "--server", str(tmp_path)], standalone_mode=False)
