"""The simulator and Flower in one process: the same run file gives the same bytes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from covertfl.errors import InvalidInput
from covertfl.runs.train import RunProgress
from covertfl.training import train
from tests.support.commands import run_python
from tests.support.slow_cases import mark_slow
from tests.support.small_runs import HORIZON, QUEUE, make_run, merge, read_column, read_folder

FLOWER = {"engine": {"kind": "flower"}}

RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedavg": (HORIZON, {}),
    "fedsgd": (HORIZON, {"federation": {"algorithm": "fedsgd"}}),
    "minority": (HORIZON, {"policy": {"kind": "minority"}}),
    "mirrored, horizon": (HORIZON, {"decoy": {"kind": "mirrored"}}),
    "mirrored": (QUEUE, {"rounds": 20, "decoy": {"kind": "mirrored", "gated": False}}),
    "random": (HORIZON, {"decoy": {"kind": "random"}, "policy": {"kind": "random"}}),
    "adversarial": (HORIZON, {"decoy": {"kind": "adversarial"}, "data": {"model": "mlp"}}),
    "by model": (HORIZON, {"federation": {"acceptance": "model"}, "policy": {"kind": "greedy"}}),
    "refreshed": (QUEUE, {"rounds": 40, "policy": {"kind": "spga", "refresh": 10}}),
    "dropout": ({"task": "toxicity"}, {"rounds": 4, "updates": 2, "policy": {"kind": "greedy"}}),
}


def exchange(trajectories: int, **federation: Any) -> dict[str, Any]:
    """Settings of an exchangeable run, with another federation."""
    return {
        "scheme": "exchangeable",
        "exchangeable": {"trajectories": trajectories},
        "federation": federation,
    }


RUNS |= {
    "2 replicas": (HORIZON, {**exchange(2), "rounds": 20}),
    "4 replicas of a perceptron": (
        HORIZON,
        {**exchange(4), "rounds": 25, "updates": 2, "data": {"model": "mlp"}},
    ),
    "8 replicas": (HORIZON, {**exchange(8), "rounds": 25, "updates": 1}),
    "2 replicas, fedsgd": (HORIZON, {**exchange(2, algorithm="fedsgd"), "rounds": 20}),
    "4 replicas, fedsgd": (
        HORIZON,
        {**exchange(4, algorithm="fedsgd", acceptance="model"), "rounds": 30, "updates": 3},
    ),
    "queue of 2 replicas": (QUEUE, {**exchange(2), "rounds": 40}),
    "queue of 4 replicas": (QUEUE, {**exchange(4, algorithm="fedsgd"), "rounds": 40}),
}


def read_records(out: Path) -> dict[str, bytes]:
    """All files of a run but the one that names its engine."""
    return {name: content for name, content in read_folder(out).items() if name != "run.toml"}


@pytest.mark.parametrize("name", mark_slow(RUNS, ["random", "2 replicas, fedsgd"]))
def test_the_same_bytes(name: str, tmp_path: Path) -> None:
    base, changes = RUNS[name]
    train(make_run(base, **changes), tmp_path / "simulated")
    train(make_run(base, **merge(changes, FLOWER)), tmp_path / "flower")
    simulated, flower = read_records(tmp_path / "simulated"), read_records(tmp_path / "flower")
    assert set(simulated) == set(flower)
    for file in simulated:
        assert flower[file] == simulated[file], file
    assert any(read_column(tmp_path / "flower", "updated")) or "replicas" not in name


class Cut(BaseException):
    """The end of a process, as far as a test can feel it."""


MIRRORED: dict[str, Any] = {"decoy": {"kind": "mirrored"}}
CUT_RUNS: dict[str, dict[str, Any]] = {
    "fedavg": MIRRORED,
    "fedsgd": merge(MIRRORED, {"federation": {"algorithm": "fedsgd"}}),
    "2 replicas": exchange(2, acceptance="model"),
    "4 replicas": {**exchange(4, algorithm="fedsgd"), "updates": 1},
}


@pytest.mark.parametrize("name", mark_slow(CUT_RUNS, []))
def test_the_same_bytes_after_cuts(name: str, tmp_path: Path) -> None:
    changes = CUT_RUNS[name]
    train(make_run(**changes), tmp_path / "simulated")
    settings, out = make_run(**merge(changes, FLOWER)), tmp_path / "flower"
    for stop in (1, 2, 4, 5, 9):

        def cut(progress: RunProgress, stop: int = stop) -> None:
            if progress.round == stop:
                raise Cut

        with pytest.raises(Cut):
            train(settings, out, resume=out.exists(), on_round=cut)
    train(settings, out, resume=True)
    assert read_records(out) == read_records(tmp_path / "simulated")
    assert read_column(out, "round") == list(range(1, 13))


KILLED = """
import os, signal, sys
from pathlib import Path
from covertfl.engines.flower import client_app
from covertfl.training import train
from tests.support.small_runs import make_run

reply = client_app.ClientTrainer.reply
def fatal(self, message, context):
    if message.content["config"]["server-round"] == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return reply(self, message, context)
client_app.ClientTrainer.reply = fatal
train(make_run(engine={"kind": "flower"}), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_the_same_bytes_after_a_kill_in_mid_round(tmp_path: Path) -> None:
    killed = run_python(KILLED, tmp_path / "flower")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "flower" / "checkpoint" / "pending.json").exists()
    train(make_run(**FLOWER), tmp_path / "flower", resume=True)
    train(make_run(), tmp_path / "simulated")
    assert read_records(tmp_path / "flower") == read_records(tmp_path / "simulated")


@pytest.mark.slow
def test_a_finished_run_is_left_alone_and_a_folder_is_not_overwritten(tmp_path: Path) -> None:
    settings = make_run(**FLOWER)
    [first] = train(settings, tmp_path / "run")
    with pytest.raises(InvalidInput, match="exists: resume the run in it"):
        train(settings, tmp_path / "run")
    assert train(settings, tmp_path / "run", resume=True) == [first]
    train(settings, tmp_path / "run", force=True)


@pytest.mark.slow
def test_runs_of_both_engines_side_by_side(tmp_path: Path) -> None:
    summaries = train(make_run(**FLOWER), tmp_path, seeds=2)
    assert [summary.rounds for summary in summaries] == [12, 12]


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (HORIZON, {"federation": {"participation": [2, 2, 6]}}, "participation must increase"),
        (HORIZON, {"engine": {"round_seconds": -1.0}}, "round_seconds must be at least 0"),
    ],
)
def test_run_files_that_flower_cannot_run(
    base: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_run(base, **merge(changes, FLOWER))


WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "flwr" else find(name, *rest)
from covertfl.cli.app import main
sys.argv = ["covertfl", "train", sys.argv[1], "--out", sys.argv[2]]
main()
"""


@pytest.mark.slow
def test_without_flower_it_says_how_to_get_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "digits"\n[engine]\nkind = "flower"\n')
    refused = subprocess.run(
        [sys.executable, "-c", WITHOUT, file, tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 4
    assert "pip install 'covertfl[flower]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "run").exists()
