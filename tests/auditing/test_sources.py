"""Audits of runs whose task was made in Python, and of public folders with a task."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import covertfl as cf
from covertfl.runs.train import find_task
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


def test_base_lines_by_what_an_eavesdropper_owns(own: Path, task: cf.TrainingTask) -> None:
    """The share of the largest class, or the better of training alone and a logistic fit."""
    linear = pytest.importorskip("sklearn.linear_model")

    def fit(data: cf.Examples) -> float:
        rows = data.features.reshape(len(data), -1).astype(np.float64)
        asked, found = task.validation.features.reshape(len(task.validation), -1), []
        for weight in (None, "balanced"):
            model = linear.LogisticRegression(
                class_weight=weight, solver="newton-cg", max_iter=1000, random_state=3
            )
            answers = model.fit(rows, data.labels.astype(np.int64)).predict(asked)
            found.append(float(np.mean(answers == task.validation.labels)))
        return max(found)

    found = describe(cf.audit(own, task=task))["eavesdroppers"]
    bases = {name: entry["final_accuracy"] - entry["gain"] for name, entry in found.items()}
    largest = np.unique(task.validation.labels, return_counts=True)[1].max()
    for name in ("majority", "unlabelled"):
        assert bases[name] == pytest.approx(largest / len(task.validation))
    alone = max(found["train-alone"]["final_accuracy"], fit(task.public))
    for name in ("validation", "alignment", "train-alone"):
        assert bases[name] == pytest.approx(alone)
    rows = task.clients[0][:5]
    assert len(np.unique(task.train.labels[rows])) > 1
    few = cf.Examples(task.train.features[rows], task.train.labels[rows])
    assert fit(few) - 1e-9 <= bases["fresh-labels-5"] < 1.0
    alone_asked = cf.audit(own, eavesdroppers=["validation"], task=task).find("validation")
    assert alone_asked.gain == pytest.approx(found["validation"]["gain"])


def test_data_of_a_single_class_are_answered_with_that_class(
    own: Path, task: cf.TrainingTask
) -> None:
    """Who trains alone on ones does no better than the answer that all are ones."""
    ones = cf.Examples(task.public.features, np.ones_like(task.public.labels))
    found = cf.audit(
        own, eavesdroppers=["validation"], task=dataclasses.replace(task, public=ones)
    ).find("validation")
    assert found.final_accuracy is not None and found.gain is not None
    base = found.final_accuracy - found.gain
    assert base >= float(np.mean(task.validation.labels == 1)) - 1e-9


def test_without_its_task_the_audit_says_what_is_missing(own: Path) -> None:
    found = cf.audit(own)
    assert {threat.name for threat in found.threats} == {*LISTENERS, "rounding"}
    assert all(threat.names_true is not None for threat in found.threats)
    assert all(threat.final_accuracy is None for threat in found.threats)
    assert any("made in Python" in note for note in found.notes)
    assert found.not_tried["validation"] == "a model and labelled data"
    assert any("--task" in note for note in found.notes)


def test_an_own_task_is_rehearsed_and_nothing_is_kept(own: Path, task: cf.TrainingTask) -> None:
    found = cf.audit(own, eavesdroppers=["majority"], task=task, rehearsals=2)
    simulated = found.find("majority").simulated
    assert simulated is not None and simulated.num_runs == 2
    assert not (own / "private/rehearsals").exists()


def test_a_server_task_has_no_data_of_clients(own: Path, task: cf.TrainingTask) -> None:
    nothing = cf.Examples(task.train.features[:0], task.train.labels[:0])
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
    nothing = cf.Examples(task.public.features[:0], task.public.labels[:0])
    server = dataclasses.replace(task, train=nothing, validation=nothing, public=nothing)
    shutil.copytree(own, own.parent / "mirrored")
    text = (own / "run.toml").read_text().replace('kind = "public"', 'kind = "mirrored"')
    (own.parent / "mirrored" / "run.toml").write_text(text)
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


@pytest.mark.parametrize("wrong", [3, "poetry", "nowhere:make"])
def test_a_task_that_is_none(own: Path, wrong: Any) -> None:
    with pytest.raises(cf.InvalidInput, match=r"^task "):
        cf.audit(own, task=wrong)


def test_a_task_that_does_not_fit(own: Path, task: cf.TrainingTask, tmp_path: Path) -> None:
    fewer = dataclasses.replace(task, clients=task.clients[:2])
    with pytest.raises(cf.InvalidInput, match=r"\[federation\] clients must be 2, "):
        cf.audit(own, task=fewer)
    shutil.copytree(own, tmp_path / "run")
    text = (own / "run.toml").read_text().replace('task = "own"', 'task = "digits"')
    (tmp_path / "run" / "run.toml").write_text(text)
    with pytest.raises(cf.InvalidInput, match="task = digits is known from the run file"):
        cf.audit(tmp_path / "run", task=task)
