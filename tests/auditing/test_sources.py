"""Audits of runs whose task was made in Python, and of public folders with a task."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
import covertfl as cf
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.runs.files import SETTINGS
from covertfl.runs.run_file import read_run
from covertfl.runs.task import find_task
from tests.support.commands import Run
from tests.support.small_runs import HORIZON, make_run

LISTENERS = ["majority", "minority", "early-stop", "change-point", "repeat", "step-shape"]


@pytest.fixture(scope="module")
def task() -> cf.TrainingTask:
    return find_task(make_run())


@pytest.fixture(scope="module")
def own(task: cf.TrainingTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "run"
    cf.Run(**{**HORIZON, "task": task, "data": {}}).train(path)
    return path


def describe(report: cf.AuditReport) -> dict[str, Any]:
    return json.loads(json.dumps(report.to_dict()))  # type: ignore[no-any-return]


def test_an_own_task_is_audited_as_if_it_were_built_in(
    own: Path, task: cf.TrainingTask, tmp_path: Path
) -> None:
    cf.Run(**HORIZON).train(tmp_path / "built-in")
    names = ["majority", "likelihood", "validation", "train-alone", "alignment", "fresh-labels"]
    expected = describe(cf.audit(tmp_path / "built-in", eavesdroppers=names))
    found = describe(cf.audit(own, eavesdroppers=names, task=task))
    assert list(found["eavesdroppers"]) == names and found == expected
    assert found["learner"]["accuracy"] is not None and found["bound"] is not None


def test_without_its_task_the_audit_says_what_is_missing(own: Path) -> None:
    found = cf.audit(own)
    assert {threat.name for threat in found.threats} == {*LISTENERS, "rounding"}
    assert found.not_tried["validation"] == "a model and labelled data"
    assert any("--task" in note for note in found.notes)


def test_an_own_task_is_rehearsed_and_nothing_is_kept(own: Path, task: cf.TrainingTask) -> None:
    found = cf.audit(own, eavesdroppers=["majority"], task=task, rehearsals=2)
    simulated = found.find("majority").simulated
    assert simulated is not None and simulated.num_runs == 2
    assert not (own / "private/rehearsals").exists()


def test_a_server_task_has_no_data_of_clients(own: Path, task: cf.TrainingTask) -> None:
    nothing = Examples(task.train.features[:0], task.train.labels[:0])
    server = dataclasses.replace(task, train=nothing, validation=nothing)
    full = cf.audit(own, eavesdroppers=["likelihood", "validation"], task=task)
    names = ["likelihood", "validation", "alignment", "fresh-labels"]
    found = cf.audit(own, eavesdroppers=names, task=server, rehearsals=None)
    assert [threat.name for threat in found.threats] == ["likelihood", "validation"]
    for name in ("likelihood", "validation"):
        assert found.find(name).conviction == full.find(name).conviction
        assert found.find(name).final_accuracy is None
    assert found.not_tried == {
        "alignment": "to be a client",
        "fresh-labels": "examples that the learner does not know",
    }
    assert any("the task has no data of clients" in note for note in found.notes)


def test_an_own_flower_app(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.serverapp.strategy import FedAvg

    from tests.support.flower_runs import make_task, run_covert

    run_covert(tmp_path / "run", lambda: FedAvg(fraction_evaluate=0.0), learns=[1, 3])
    found = cf.audit(tmp_path / "run", task=make_task())
    for name in ("majority", "likelihood", "validation", "train-alone"):
        assert found.find(name).names_true is not None
        assert found.find(name).final_accuracy is not None
    assert found.learner.accuracy is not None
    assert found.not_tried["alignment"] == "to be a client"


def test_without_public_examples_nobody_owns_data(own: Path, task: cf.TrainingTask) -> None:
    nothing = Examples(task.public.features[:0], task.public.labels[:0])
    server = dataclasses.replace(task, train=nothing, validation=nothing, public=nothing)
    shutil.copytree(own, own.parent / "mirrored")
    text = (own / SETTINGS).read_text().replace('kind = "public"', 'kind = "mirrored"')
    (own.parent / "mirrored" / SETTINGS).write_text(text)
    found = cf.audit(own.parent / "mirrored", task=server)
    assert found.not_tried["validation"] == "labelled data"
    assert found.find("likelihood").conviction is not None


def test_a_task_beside_a_public_folder(own: Path, task: cf.TrainingTask, tmp_path: Path) -> None:
    """Who has the task's model and public set believes what it believes of the whole run."""
    shutil.copytree(own / "public", tmp_path / "only")
    names = ["last-layer", "validation", "fine-tune"]
    expected = cf.audit(own, eavesdroppers=names, task=task)
    found = cf.audit(tmp_path / "only", eavesdroppers=names, task=task, trajectories=2)
    for name in ("last-layer", "validation"):
        believed, known = found.find(name).conviction, expected.find(name).conviction
        assert believed is not None and known is not None and believed.named is None
        assert believed.favourites == known.favourites
        assert believed.probability == pytest.approx(known.probability)
    assert not found.not_tried


def test_a_public_folder_on_the_console(own: Path, tmp_path: Path, run: Run) -> None:
    shutil.copytree(own / "public", tmp_path / "only")
    shown = run("audit", tmp_path / "only").out
    assert "Trajectories found" in shown and "last seen" in shown
    assert "What eavesdroppers believe, 1 run" in shown
    assert "Not tried, needs the scheme: likelihood, attendance." in shown
    assert "cannot be judged" not in shown and "unknown" not in shown
    assert not (tmp_path / "only/audit.json").exists()


@pytest.mark.parametrize("wrong", [3, "poetry", "nowhere:make"])
def test_a_task_that_is_none(own: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^task "):
        cf.audit(own, task=wrong)


def test_a_task_that_does_not_fit(own: Path, task: cf.TrainingTask, tmp_path: Path) -> None:
    fewer = dataclasses.replace(task, clients=task.clients[:2])
    with pytest.raises(InvalidInput, match=r"\[federation\] clients must be 2, "):
        cf.audit(own, task=fewer)
    shutil.copytree(own, tmp_path / "run")
    text = (own / SETTINGS).read_text().replace('task = "own"', 'task = "digits"')
    (tmp_path / "run" / SETTINGS).write_text(text)
    assert read_run(tmp_path / "run" / SETTINGS).sections.task == "digits"
    with pytest.raises(InvalidInput, match="task = digits is known from the run file"):
        cf.audit(tmp_path / "run", task=task)
