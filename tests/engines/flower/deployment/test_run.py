"""What is refused before a deployment starts; what the server app is told, and what it tells."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from covertfl import errors
from covertfl.cli.app import app
from covertfl.engines.flower.deployment.bundle import find_own_app
from covertfl.engines.flower.deployment.checks import find_shortage
from covertfl.engines.flower.deployment.processes import DeploymentFailed
from covertfl.engines.flower.deployment.run import Deployment
from covertfl.engines.flower.deployment.server import (
    ProgressReader,
    ServerSettings,
    make_error,
    make_round_callback,
    read_server_settings,
    reporting_failures,
)
from covertfl.errors import InvalidInput
from covertfl.runs.train import RunProgress
from covertfl.training import train
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


def test_another_run_is_not_resumed(tmp_path: Path) -> None:
    train(make_run(**SMALL), tmp_path / "run")
    with pytest.raises(InvalidInput, match="holds another run and cannot be resumed: seed"):
        Deployment(make_run(**SMALL, seed=99), tmp_path / "run", num_nodes=4, resume=True)


def test_options_that_exclude_or_need_each_other(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('task = "digits"\n')
    with pytest.raises(InvalidInput, match="give one of them"):
        app(["deploy-local", str(run), "--resume", "--force"], standalone_mode=False)
    with pytest.raises(InvalidInput, match="go with --app"):
        app(["deploy-local", str(run), "--server", str(tmp_path)], standalone_mode=False)


@pytest.mark.parametrize(
    ("federation", "nodes", "share"),
    [
        # 1290 digits: 65 for each of the first ten clients, of which three batches of 20 are used.
        ({}, 4, 0.186),
        ({}, 5, 0.233),
        ({}, 6, None),
        ({"batch_size": 1}, 4, 0.202),
        ({"min_share": 1.0}, 20, 0.930),
        ({"acceptance": "model"}, 4, None),
        ({"clients": 4, "participation": [1, 2, 4]}, 4, None),
    ],
)
def test_nodes_that_could_never_bring_an_accepted_round(
    federation: dict[str, Any], nodes: int, share: float | None
) -> None:
    default = {"clients": 20, "participation": [5, 10, 20], **federation}
    said = find_shortage(make_run(federation=default), nodes)
    if share is None:
        assert said is None
    else:
        assert said is not None and "\n" not in said
        assert said.startswith(f"run.toml: no round can be accepted: {nodes} nodes")
        assert f"{share:.3f} of the examples" in said


def test_settings_pass_through_the_environment(tmp_path: Path) -> None:
    settings = ServerSettings(
        tmp_path / "run.toml", tmp_path / "out", True, False, 7.5, tmp_path / "n"
    )
    assert read_server_settings(settings.as_environment()) == settings
    assert ServerSettings(Path("r"), Path("o")) == read_server_settings(
        {"COVERTFL_RUN": "r", "COVERTFL_OUT": "o"}
    )
    with pytest.raises(InvalidInput, match="COVERTFL_OUT must be set"):
        read_server_settings({"COVERTFL_RUN": "r"})
    for wrong in ("soon", "0", "nan", "inf"):
        with pytest.raises(InvalidInput, match=f"COVERTFL_TIMEOUT .* got '{wrong}'"):
            read_server_settings(
                {"COVERTFL_RUN": "r", "COVERTFL_OUT": "o", "COVERTFL_TIMEOUT": wrong}
            )


def test_rounds_come_whole_and_failures_stay_on_the_server(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    reader, on_round = ProgressReader(path), make_round_callback(path)
    assert list(reader.read_new()) == []
    assert on_round is not None
    assert make_round_callback(None) is None
    progress = RunProgress(tmp_path, 0, 1, 9, 2, 3, 0.5, 0.7)
    on_round(progress)
    with path.open("ab") as stream:
        stream.write(b'{"progress"')
    assert list(reader.read_new()) == [progress]
    path.write_bytes(path.read_bytes().removesuffix(b'{"progress"'))
    on_round(progress)
    with pytest.raises(RuntimeError, match=r"^the server has stopped$"), reporting_failures(path):
        raise InvalidInput("[decoy] kind is wrong")
    new = reader.read_new()
    assert next(new) == progress
    with pytest.raises(InvalidInput, match=r"^\[decoy\] kind is wrong$"):
        next(new)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_other_failures_are_failures_of_the_deployment() -> None:
    error = make_error({"failed": "ZeroDivisionError", "reason": "division by zero"})
    assert type(error) is DeploymentFailed
    assert error.exit_status == errors.NoSolution.exit_status
    assert "ZeroDivisionError: division by zero" in str(error)


def test_a_run_is_followed_until_it_is_finished(tmp_path: Path) -> None:
    deployment: Any = Deployment(make_run(**SMALL), tmp_path / "out", num_nodes=4)
    found = SimpleNamespace(status="running", sub_status="", details="")
    deployment.federation = SimpleNamespace(
        processes=SimpleNamespace(running={"superlink": 1, "server": 2}, quote=lambda name: name),
        control=SimpleNamespace(find_status=lambda _: found),
        disconnect_ended=lambda: None,
    )
    deployment._progress = SimpleNamespace(read_new=lambda: ["one", "two"])
    told: list[str] = []
    assert not deployment.check(7, told.append)
    found.status, found.sub_status = "finished", "completed"
    assert deployment.check(7, told.append)
    assert told == ["one", "two"] * 2
    found.sub_status, found.details = "failed", "no reason"
    with pytest.raises(DeploymentFailed, match="the run ended as failed: no reason"):
        deployment.check(7)
    del deployment.federation.processes.running["server"]
    with pytest.raises(DeploymentFailed, match="the server of the federation has ended"):
        deployment.check(7)
