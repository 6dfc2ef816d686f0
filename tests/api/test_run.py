"""`cf.Run`, training it, and what comes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings
from tests import ROOT
from tests.support.commands import Run
from tests.support.small_runs import HORIZON, read_folder

KEYS = {key: value for key, value in HORIZON.items() if key != "task"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> cf.TrainingResult:
    return cf.Run("digits", **KEYS).train(str(tmp_path_factory.mktemp("runs") / "a"), seeds=2)


def test_keys_are_found_in_their_sections() -> None:
    run = cf.Run(
        "digits",
        model="logistic",
        policy="minority",
        decoy="mirrored",
        rounds=30,
        updates=4,
        clients=6,
        participation=(2, 4, 6),
        optimizer={"name": "sgd", "lr": 0.1},
        split={"dirichlet": 0.5},
    )
    sections = run.to_dict()
    assert sections["policy"]["kind"] == "minority"
    assert sections["federation"]["participation"] == [2, 4, 6]
    assert sections["federation"]["optimizer"]["lr"] == 0.1
    assert sections["data"]["split"] == {"dirichlet": 0.5}
    assert (sections["rounds"], sections["updates"]) == (30, 4)
    assert "scheme scheduled, policy minority" in repr(run) and "<table>" in run._repr_html_()


def test_keys_of_a_scheme_are_found_in_its_sections() -> None:
    run = cf.Run("digits", scheme="exchangeable", trajectories=4, model="mlp")
    sections = run.to_dict()
    assert (sections["scheme"], sections["exchangeable"]) == ("exchangeable", {"trajectories": 4})
    assert "policy" not in sections and "decoy" not in sections
    assert sections["data"] == {**sections["data"], "model": "mlp", "map": "public"}
    assert "scheme exchangeable, trajectories 4" in repr(run)


def test_a_run_is_that_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('task = "digits"\nrounds = 30\n[policy]\nkind = "greedy"\n')
    assert (
        cf.Run.load(str(file)).to_dict() == cf.Run("digits", rounds=30, policy="greedy").to_dict()
    )


@pytest.mark.parametrize("preset", ["sound/main", "sound/queue", "paper-code/queue"])
def test_a_problem_may_be_an_object(preset: str) -> None:
    given = cf.Run("toxicity", problem=cf.load_problem(preset)).settings
    named = cf.Run("toxicity", problem=preset).settings
    assert type(given.problem) is type(named.problem)
    assert given.rounds == named.rounds
    assert cf.solve(given.problem).cost == cf.solve(named.problem).cost


def test_a_problem_may_be_a_preset_or_fitted() -> None:
    assert cf.Run("toxicity", problem="sound/main").to_dict()["problem"] == "sound/main"
    log = ROOT / "src/covertfl/data/participation.csv"
    fitted = cf.fit(log, min_examples=6800).make_problem()
    run = cf.Run("toxicity", problem=fitted)
    assert cf.solve(run.problem).cost == cf.solve(fitted).cost


def test_numbers_of_numpy_are_numbers() -> None:
    run = cf.Run("digits", rounds=np.int64(30), participation=np.array([2, 4, 6]), clients=6)
    sections = run.to_dict()
    assert (sections["rounds"], sections["federation"]["participation"]) == (30, [2, 4, 6])


def test_training_is_that_of_the_command(
    trained: cf.TrainingResult, tmp_path: Path, run: Run
) -> None:
    """The settings that a run keeps are a run file themselves."""
    file = Path(shutil.copy(trained.folder / "seed-0/run.toml", tmp_path / "run.toml"))
    assert run("train", file, "--out", tmp_path / "b", "--seeds", 2).status == 0
    assert read_folder(tmp_path / "b") == read_folder(trained.folder)


def test_a_result_holds_means_and_runs(trained: cf.TrainingResult) -> None:
    assert len(trained.runs) == 2
    accuracies = [run.learner_accuracy or 0.0 for run in trained.runs]
    assert trained.learner_accuracy == pytest.approx(np.mean(accuracies))
    assert trained.exposure == pytest.approx(np.mean([run.exposure for run in trained.runs]))
    assert trained.updates_done + trained.updates_missing == pytest.approx(4.0)
    assert 0.0 <= trained.completed <= 1.0
    assert trained.rounds == 12.0 and trained.rejected_replies == 0.0
    assert trained.learning_queries == pytest.approx(12.0 * trained.exposure)
    assert "runs 2" in repr(trained) and "<table>" in trained._repr_html_()
    summary = json.loads((trained.folder / "seed-0" / "summary.json").read_text())
    assert trained.to_dict()["runs"][0] == summary


def test_one_seed_goes_into_the_folder_itself(tmp_path: Path) -> None:
    result = cf.Run("digits", **KEYS).train(tmp_path / "one")
    assert (tmp_path / "one" / "summary.json").is_file()
    assert len(result.runs) == 1


def test_a_plot_is_a_figure(trained: cf.TrainingResult) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    assert isinstance(trained.plot(), figure.Figure)


def test_a_task_of_ones_own(tmp_path: Path) -> None:
    task = make_task(DataSettings(task="digits", seed=3, clients=6, model="logistic"))
    assert isinstance(task, cf.TrainingTask)
    own = {key: value for key, value in KEYS.items() if key != "data"}
    result = cf.Run(task, **own).train(tmp_path / "own")
    assert result.learner_accuracy is not None and result.learner_accuracy > 0.2


def test_a_run_cannot_be_changed() -> None:
    run = cf.Run("digits")
    with pytest.raises(AttributeError):
        run.settings = None  # type: ignore[assignment, misc]
    with pytest.raises(AttributeError):
        del run.settings


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"task": 5}, "task must be"),
        ({"task": "nonsense"}, "task must be one of"),
        ({"polcy": "minority"}, "unknown key polcy; did you mean policy"),
        ({"xyzzy": 1}, "unknown key xyzzy; allowed are"),
        ({"path": "mine.npz"}, "path is a key of several sections; give it as data="),
        ({"policy": "guess"}, r"\[policy\] kind must be one of"),
        ({"policy": 5}, "policy must be a table of keys"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"decoy": "nope"}, r"\[decoy\] kind must be one of"),
        ({"problem": ""}, "must name a file or folder"),
        ({"problem": "sound/man"}, "problem must be a preset, one of sound/queue, .* or the path"),
        ({"problem": 5}, "problem must be text"),
        ({"policy": {"preset": "sound/main"}}, r"\[policy\] preset .*at the top: problem"),
        ({"scheme": "nope"}, "scheme must be one of"),
        ({"scheme": 5}, "scheme must be one of"),
        (
            {"scheme": "exchangeable", "policy": "greedy"},
            r"\[policy\] belongs to scheme = scheduled, got scheme = exchangeable",
        ),
        ({"federation": {"clients": 5}, "clients": 6}, "clients must be given once"),
    ],
)
def test_wrong_keys_are_refused_in_a_sentence(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        cf.Run(**{"task": "digits", **keys})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"out": 5}, "out must be a path"),
        ({"out": ""}, "out must name a file or folder"),
        ({"out": "x", "seeds": 0}, "seeds must be a whole number of at least 1"),
        ({"out": "x", "seeds": 1.5}, "seeds must be a whole number"),
        ({"out": "x" * 5000}, "out must name a file or folder"),
        ({"out": "\ud800"}, "out must name a file or folder"),
        ({"out": "x", "on_round": 5}, "on_round must be callable"),
        ({"out": "x", "resume": True, "force": True}, "choose one of them"),
    ],
)
def test_wrong_arguments_of_training_are_refused(arguments: Any, sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        cf.Run("digits", **KEYS).train(**arguments)
