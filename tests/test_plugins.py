"""Decoys, eavesdroppers and tasks from outside: the examples of docs/extending.md, and mistakes."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import covertfl as cf
from covertfl.auditing.threats import listen
from covertfl.decoys.registry import DECOY_PLUG_INS, make_decoy
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.registry import find_class, make_eavesdropper
from covertfl.runs.run_file import build_run
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings
from covertfl.training import train
from tests import ROOT
from tests.support.commands import Run, refuse
from tests.support.decoy_task import make_small_task
from tests.support.small_runs import Stopped, read_folder, stop_after

PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
MODULES = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
RUN_FILE, PROJECT = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
BROKEN = """
raise OSError("two\\nlines")
"""
WRONG = """
number = 3
def make_number(): return 3
def need_help(settings, more): pass
class Bare:
    needs_replies = False
def fail(task, batch_size, rule): raise KeyError("lost")
from covertfl.eavesdroppers.eavesdropper import Listener
class Silent(Listener):
    threat = "says nothing"
class Nameless(Listener):
    def belief(self): return 1
class Needy(Nameless):
    threat, needs = "wants too much", ("private",)
class Ranked(Nameless):
    threat, tier = "stands apart", "Z"
class Curious(Nameless):
    threat, tier, needs = "has the public set", "B", ("data",)
    def __init__(self, means):
        super().__init__(means)
        self.means = means
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the page's modules, and some that are wrong."""
    for name, code in (*MODULES, ("broken", BROKEN), ("wrong", WRONG)):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    importlib.invalidate_caches()
    return tmp_path


def install(folder: Path, name: str, entries: dict[str, dict[str, str]]) -> None:
    """A distribution as pip leaves it, with its entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items())
        for group, each in entries.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def test_the_examples_are_short() -> None:
    assert [name for name, _ in MODULES] == ["shuffled", "lasting", "planes"]
    assert all(len(code.splitlines()) <= 25 for _, code in MODULES)


def test_the_page_is_true_of_a_run_from_its_file_to_its_audit(folder: Path, run: Run) -> None:
    assert run("train", "run.toml", "--out", "whole").status == 0
    summary = json.loads((folder / "whole/summary.json").read_text())
    assert summary["learner_accuracy"] > 0.8 and summary["rounds"] == 20
    # Resumed by the names in run.toml, the run is the same.
    with pytest.raises(Stopped):
        train(
            build_run(tomllib.loads(RUN_FILE), "run.toml", folder=folder),
            "cut",
            on_round=stop_after(5),
        )
    assert run("train", "cut/run.toml", "--out", "cut", "--resume").status == 0
    assert read_folder(folder / "cut") == read_folder(folder / "whole")
    chosen = [
        item
        for name in ("majority", "lasting:LastingEavesdropper")
        for item in ("--eavesdropper", name)
    ]
    content = run("audit", "whole", *chosen, "--rehearsals", "2", "--json").content
    assert list(content["eavesdroppers"]) == ["majority", "lasting:LastingEavesdropper"]
    found = content["eavesdroppers"]["lasting:LastingEavesdropper"]
    last = json.loads((folder / "whole/private/rounds.jsonl").read_text().splitlines()[-1])
    assert found["names_true"] == float(last["trajectory"] == 0)
    assert found["final_accuracy"] is not None and found["simulated"]["runs"] == 2
    # Code from outside may change: nothing that it found is kept.
    assert not (folder / "whole/private/rehearsals").exists()


def test_the_names_of_an_installed_package(folder: Path) -> None:
    """The page's entry points, in a distribution elsewhere on the path."""
    site = folder / "site"
    install(site, "mine", tomllib.loads(PROJECT)["project"]["entry-points"])
    for name, _ in MODULES:
        shutil.move(f"{name}.py", site)
    sys.path.append(str(site))
    names = {"task": "planes", "decoy": {"kind": "shuffled"}}
    result = cf.Run(**{**tomllib.loads(RUN_FILE), **names}).train(folder / "run")
    assert result.learner_accuracy is not None and result.learner_accuracy > 0.8
    assert 'kind = "shuffled"' in (folder / "run/run.toml").read_text()
    report = cf.audit(folder / "run", eavesdroppers=["lasting"])
    assert report.find("lasting").names_true in (0.0, 1.0)
    assert sys.modules["shuffled"].__file__ == str(site / "shuffled.py")


def test_a_name_that_exists_is_refused(folder: Path) -> None:
    entry = {"covertfl.decoys": {"public": "shuffled:ShuffledDecoy", "own": "broken:Decoy"}}
    install(folder / "one", "one", entry)
    install(folder / "two", "two", {"covertfl.decoys": {"own": "shuffled:ShuffledDecoy"}})
    sys.path.extend([str(folder / "one"), str(folder / "two")])
    with pytest.raises(
        cf.InvalidInput, match=r"decoy public is built in and also a plug-in of one "
    ):
        DECOY_PLUG_INS.find("public", "kind")
    with pytest.raises(
        cf.InvalidInput, match=r"plug-in of one \(broken:Decoy\) and two \(.*keep one"
    ):
        DECOY_PLUG_INS.find("own", "kind")
    assert DECOY_PLUG_INS.find("random", "kind")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("nowhere:Decoy", "decoy nowhere:Decoy cannot be imported: ModuleNotFoundError"),
        ("broken:Decoy", "decoy broken:Decoy cannot be imported: OSError: two lines"),
        ("wrong:Absent", r"decoy wrong:Absent: .*wrong\.py has no Absent"),
        ("wrong:Bare", r"decoy wrong:Bare cannot be made from task, batch_size and rule: TypeErr"),
        ("wrong:fail", "decoy wrong:fail cannot be made .*: KeyError: 'lost'"),
        ("wrong:number", "decoy wrong:number cannot be made"),
        ("wrong:", "decoy kind must be one of random, .*module:name, got 'wrong:'"),
        ("../wrong:Bare", "decoy kind must be one of random, "),
    ],
)
def test_a_decoy_that_cannot_be_used(folder: Path, kind: str, sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence) as refused:
        make_decoy(kind, make_small_task(), batch_size=5)
    assert "\n" not in str(refused.value)


def test_what_a_decoy_returns_is_checked(folder: Path) -> None:
    (folder / "odd.py").write_text(
        "class Odd:\n"
        "    needs_replies = False\n"
        "    def __init__(self, *_): pass\n"
        "    def plan(self, view, *, generator): return [1]\n"
        "    def move(self, view, results, *, generator): return view.weights[:2].astype(float)\n"
    )
    decoy = make_decoy("odd:Odd", make_small_task(), batch_size=5)
    view: Any = type("View", (), {"weights": np.zeros(3, dtype=np.float32)})
    generator = np.random.default_rng(0)
    with pytest.raises(cf.InvalidInput, match="decoy odd:Odd: plan must return a list of LocalJob"):
        decoy.plan(view, generator=generator)
    with pytest.raises(
        cf.InvalidInput, match=r"move must return weights of shape \(3,\), got \(2,\)"
    ):
        decoy.move(view, [], generator=generator)
    view.weights = np.zeros(2, dtype=np.float32)
    assert decoy.move(view, [], generator=generator).dtype == np.float32


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wrong:Silent", "must be a class derived from .*Listener with a method belief"),
        ("wrong:number", "must be a class derived from"),
        ("wrong:Nameless", "must have threat"),
        ("wrong:Needy", "needs must be of kernel, .*, got 'private'"),
        ("wrong:Ranked", "tier must be A, B, C or D, got 'Z'"),
        ("broken:Class", "eavesdropper broken:Class cannot be imported"),
    ],
)
def test_an_eavesdropper_that_cannot_be_used(folder: Path, name: str, sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        find_class(name)


def test_a_belief_must_be_probabilities(folder: Path) -> None:
    query = SeenQuery(1, 0, np.zeros(2, dtype=np.float32), None)
    with pytest.raises(
        cf.InvalidInput, match="belief of Curious must be probabilities of the 1 traj"
    ):
        listen(
            make_eavesdropper("wrong:Curious", Means(data=make_small_task().public)),
            [query],
            None,
            None,
        )


def test_an_eavesdropper_gets_only_what_it_lists(folder: Path) -> None:
    task = make_small_task()
    known = Means(data=task.public, fresh=task.train, trajectories=2, pivot="0.weight")
    made: Any = make_eavesdropper("wrong:Curious", known)
    assert made.means.data is task.public and made.means.trajectories == 2
    assert made.means.fresh is None and made.means.pivot is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wrong:number", "task wrong:number must be a function, got int"),
        ("wrong:make_number", "task wrong:make_number must return a TrainingTask, got int"),
        ("wrong:need_help", "task wrong:need_help cannot be made: TypeError"),
        ("nowhere:make", "task nowhere:make cannot be imported"),
    ],
)
def test_a_task_that_cannot_be_made(folder: Path, run: Run, name: str, sentence: str) -> None:
    with pytest.raises(cf.InvalidInput, match=sentence):
        make_task(DataSettings(task=name))
    (folder / "run.toml").write_text(RUN_FILE.replace("planes:make_planes", name))
    assert re.search(sentence, refuse(run("train", "run.toml", "--out", "out"), 2))
    assert not (folder / "out").exists()


def test_a_task_with_another_number_of_clients(folder: Path) -> None:
    (folder / "few.py").write_text(
        "from planes import make_planes\nfrom covertfl.tasks.task import DataSettings\n"
        "def make(): return make_planes(DataSettings(task='x', clients=3))\n"
    )
    content = {**tomllib.loads(RUN_FILE), "task": "few:make"}
    with pytest.raises(cf.InvalidInput, match=r"\[federation\] clients must be 3, the number"):
        train(build_run(content, "run.toml", folder=folder), folder / "out")


def test_what_cannot_be_deployed(folder: Path) -> None:
    pytest.importorskip("flwr")
    from covertfl.engines.flower.deployment.checks import check_deployable

    content = tomllib.loads(RUN_FILE)
    settings = build_run(content, "run.toml", folder=folder)
    with pytest.raises(cf.InvalidInput, match="task = planes:make_planes cannot be deployed"):
        check_deployable(settings, 4, has_own_app=False)
    check_deployable(settings, 4, has_own_app=True)
    settings = build_run({**content, "task": "digits"}, "run.toml", folder=folder)
    with pytest.raises(
        cf.InvalidInput, match=r"\[decoy\] kind = shuffled:.* installed packages only"
    ):
        check_deployable(settings, 4, has_own_app=False)
