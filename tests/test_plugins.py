"""Decoys, eavesdroppers and tasks from outside: the examples of docs/extending.md, and mistakes."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
import covertfl as cf
from tests import ROOT
from tests.support.commands import Run, refuse
from tests.support.small_runs import Stopped, read_folder, stop_after

PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
MODULES = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
RUN_FILE, PROJECT = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
BROKEN = """
raise OSError("two\\nlines")
"""
WRONG = """
import numpy as np
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
    def belief(self): return np.full(len(self._seen), 2.0)
class Needy(Nameless):
    threat, needs = "wants too much", ("private",)
class Ranked(Nameless):
    threat, tier = "stands apart", "Z"
class Odd(Nameless):
    threat = "believes in no trajectory"
class Curious(Odd):
    threat, tier, needs = "has the public set", "B", ("data",)
    def __init__(self, means):
        super().__init__(means)
        self.means = means
    def belief(self):
        assert self.means.data is not None and self.means.trajectories == 2
        assert self.means.fresh is self.means.pivot is self.means.reply is self.means.scheme is None
        return np.eye(len(self._seen))[0]
class Planning:
    needs_replies = False
    def __init__(self, *_): pass
    def plan(self, view, *, generator): return [1]
    def move(self, view, results, *, generator): return view.weights[:2].astype(float)
class Moving(Planning):
    def plan(self, view, *, generator): return []
class Widening(Moving):
    def move(self, view, results, *, generator): return view.weights.astype(float)
"""
SCHEMES = """
from covertfl.schemes.scheduled import Scheduled
class Renamed(Scheduled):
    pass
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the page's modules, and some that are wrong."""
    for name, code in (*MODULES, ("broken", BROKEN), ("wrong", WRONG), ("own", SCHEMES)):
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
        cf.Run.load("run.toml").train("cut", on_round=stop_after(5))
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


def change(text: str, **names: str) -> None:
    """Write the page's run file with another decoy or task."""
    for old, new in names.items():
        found = {"decoy": "shuffled:ShuffledDecoy", "task": "planes:make_planes"}[old]
        assert text.count(found) == 1
        text = text.replace(found, new)
    Path("run.toml").write_text(text)


def test_a_name_that_exists_is_refused(folder: Path, run: Run) -> None:
    entry = {"covertfl.decoys": {"public": "shuffled:ShuffledDecoy", "own": "broken:Decoy"}}
    install(folder / "one", "one", entry)
    install(folder / "two", "two", {"covertfl.decoys": {"own": "shuffled:ShuffledDecoy"}})
    sys.path.extend([str(folder / "one"), str(folder / "two")])
    for name, sentence in (
        ("public", r"decoy public is built in and also a plug-in of one "),
        ("own", r"plug-in of one \(broken:Decoy\) and two \(.*keep one"),
    ):
        change(RUN_FILE, decoy=name)
        assert re.search(sentence, refuse(run("train", "run.toml", "--out", "out"), 2))
    change(RUN_FILE, decoy="random")
    assert run("train", "run.toml", "--out", "out").status == 0


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"decoy": "nowhere:Decoy"}, "decoy nowhere:Decoy cannot be imported: ModuleNotFoundError"),
        ({"decoy": "broken:Decoy"}, "decoy broken:Decoy cannot be imported: OSError: two lines"),
        ({"decoy": "wrong:Absent"}, r"decoy wrong:Absent: .*wrong\.py has no Absent"),
        ({"decoy": "wrong:Bare"}, "wrong:Bare cannot be made from task, batch_size .*: TypeErr"),
        ({"decoy": "wrong:fail"}, "decoy wrong:fail cannot be made .*: KeyError: 'lost'"),
        ({"decoy": "wrong:number"}, "decoy wrong:number cannot be made"),
        ({"decoy": "wrong:"}, "kind must be one of random, .*module:name, got 'wrong:'"),
        ({"decoy": "../wrong:Bare"}, "kind must be one of random, "),
        ({"decoy": "wrong:Planning"}, "wrong:Planning: plan must return a list of LocalJob"),
        ({"decoy": "wrong:Moving"}, r"move must return weights of shape \(\d+,\), got \(2,\)"),
        ({"task": "wrong:number"}, "task wrong:number must be a function, got int"),
        ({"task": "wrong:make_number"}, "wrong:make_number must return a TrainingTask, got int"),
        ({"task": "wrong:need_help"}, "task wrong:need_help cannot be made: TypeError"),
        ({"task": "nowhere:make"}, "task nowhere:make cannot be imported"),
        ({"task": "few:make"}, r"\[federation\] clients must be 3, the number"),
    ],
)
def test_what_a_run_cannot_use(
    folder: Path, run: Run, names: dict[str, str], sentence: str
) -> None:
    (folder / "few.py").write_text(
        "from dataclasses import replace\nfrom planes import make_planes\n"
        "def make(settings):\n    task = make_planes(settings)\n"
        "    return replace(task, clients=task.clients[:3])\n"
    )
    change(RUN_FILE, **names)
    outcome = run("train", "run.toml", "--out", "out")
    # A decoy's mistake shows when rounds are under way, and slow ones are announced.
    assert outcome.status == 2 and re.search(sentence, outcome.err.splitlines()[-1])


def test_weights_of_another_kind_of_number_are_taken(folder: Path, run: Run) -> None:
    change(RUN_FILE, decoy="wrong:Widening")
    assert run("train", "run.toml", "--out", "out").status == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("wrong:Silent", "must be a class derived from .*Listener with a method belief"),
        ("wrong:number", "must be a class derived from"),
        ("wrong:Nameless", "must have threat"),
        ("wrong:Needy", "needs must be of kernel, .*, got 'private'"),
        ("wrong:Ranked", "tier must be A, B, C or D, got 'Z'"),
        ("broken:Class", "eavesdropper broken:Class cannot be imported"),
        ("wrong:Odd", "belief of Odd must be probabilities of the 2 trajectories seen"),
    ],
)
def test_an_eavesdropper_that_cannot_be_used(
    folder: Path, finished: Path, run: Run, name: str, sentence: str
) -> None:
    assert re.search(sentence, refuse(run("audit", finished, "--eavesdropper", name), 2))


def test_a_run_under_a_scheme_of_ones_own_is_that_of_the_scheme_it_is_derived_from(
    folder: Path, run: Run
) -> None:
    change(RUN_FILE, decoy="random")
    assert run("train", "run.toml", "--out", "plain").status == 0
    Path("run.toml").write_text('scheme = "own:Renamed"\n' + Path("run.toml").read_text())
    assert run("train", "run.toml", "--out", "own").status == 0
    assert 'scheme = "own:Renamed"' in (folder / "own/run.toml").read_text()
    plain, own = read_folder(folder / "plain"), read_folder(folder / "own")
    assert {name for name in plain if plain[name] != own[name]} == {"run.toml"}
    found = run("audit", "own", "--eavesdropper", "majority", "--rehearsals", "2", "--json").content
    assert found["scheme"] == "own:Renamed"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:Scheme", "scheme nowhere:Scheme cannot be imported: ModuleNotFoundError"),
        ("own:Absent", r"scheme own:Absent: .*own\.py has no Absent"),
        ("own:number", "scheme own:number must be a class derived from covertfl.*Scheme, got 3"),
        ("own:", "scheme must be one of scheduled, exchangeable.*, got 'own:'"),
    ],
)
def test_a_scheme_that_cannot_be_used(folder: Path, run: Run, name: str, sentence: str) -> None:
    Path("run.toml").write_text(f'scheme = "{name}"\n{RUN_FILE}')
    assert re.search(sentence, refuse(run("train", "run.toml", "--out", "out"), 2))


def test_an_eavesdropper_gets_only_what_it_lists(folder: Path, finished: Path) -> None:
    """It would fail if it were handed more."""
    threat = cf.audit(finished, eavesdroppers=["wrong:Curious"]).find("wrong:Curious")
    assert threat.conviction is not None and threat.conviction.favourites == (0,)


def test_what_cannot_be_deployed(folder: Path, run: Run) -> None:
    pytest.importorskip("flwr")
    arguments = ("deploy-local", "run.toml", "--out", "out", "--nodes", "4")
    assert "task = planes:make_planes cannot be deployed" in refuse(run(*arguments), 2)
    change(RUN_FILE, task="digits")
    said = refuse(run(*arguments), 2)
    assert re.search("shuffled:ShuffledDecoy cannot be deployed: .* installed packages only", said)
