"""Hostile files and folders: one sentence, no hang, and nothing of the user's is deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from safetensors.numpy import save

from covertfl import InvalidInput
from covertfl.cli.app import main
from covertfl.demo.run import Condition, run_demo
from covertfl.kernels.job import name_content
from covertfl.models.contents import read_contents
from covertfl.runs.checkpoint import CHECKPOINT, Checkpoint, read_checkpoint, write_checkpoint
from covertfl.runs.files import ROUNDS
from covertfl.runs.folder import RunFolder
from covertfl.training import train
from tests.support.commands import QUEUE_FILE, RUN_FILE, Outcome, Run, refuse
from tests.support.small_runs import DRAWN_QUEUE, Stopped, make_run, run_small, stop_after

# --- damaged files in a finished run, and files that commands are given ---------------------------
#
# A small finished run is damaged in one place, and the commands that read the place are run on it.


NESTED = "[" * 100_000
PATIENCE = 60  # seconds after which a command counts as hanging

PUBLIC, METRICS, UPDATES = "public/rounds.jsonl", "metrics.jsonl", "private/updates.jsonl"
SUMMARY, AUDIT, SETTINGS = "summary.json", "audit.json", "run.toml"
WEIGHTS = "weights"  # any file of weights that was sent

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its audit, and a run file that continues it."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "run.toml").write_text(RUN_FILE)
    (folder / "longer.toml").write_text(RUN_FILE.replace("rounds = 8", "rounds = 9"))
    patch = pytest.MonkeyPatch()
    for arguments in (
        ["train", folder / "run.toml", "--out", folder / "run"],
        ["audit", folder / "run", "--rehearsals", 0],
    ):
        with patch.context() as patched, pytest.raises(SystemExit) as ended:
            patched.setattr(sys, "argv", ["covertfl", *map(str, arguments)])
            main()
        assert not ended.value.code
    return folder


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, in the sub-folder run, to be damaged."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """A command that waits for a pipe is interrupted."""

    def stop(_number: int, _frame: object) -> None:
        raise AssertionError("the command hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def list_arguments(command: str, place: Path) -> list[object]:
    """Return the arguments of a command on the run in a place."""
    return {
        "audit": ["audit", place / "run", "--rehearsals", 0],
        "report": ["report", place / "run"],
        "export": ["export", place / "run", "-o", place / "model.safetensors"],
        "train": ["train", place / "longer.toml", "--out", place / "run", "--resume"],
    }[command]


def find_file(place: Path, name: str) -> Path:
    if name == WEIGHTS:
        return min((place / "run" / "public" / "weights").iterdir())
    return place / "run" / name


def replace_by(make: Damage) -> Damage:
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


GENERAL: dict[str, Damage] = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("a letter to a friend\n"),
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 20),
    "nested": lambda path: path.write_text(NESTED),
    "folder": replace_by(lambda path: path.mkdir()),
    "pipe": replace_by(os.mkfifo),
    "device": replace_by(lambda path: path.symlink_to("/dev/zero")),
}
# What a command reads and cannot do without.
READ = {
    "audit": (SETTINGS, PUBLIC, WEIGHTS, ROUNDS, METRICS, SUMMARY),
    "report": (SETTINGS, SUMMARY, AUDIT),
    "export": (SETTINGS, CHECKPOINT, "model.json", SUMMARY),
    "train": (SETTINGS, PUBLIC, ROUNDS, METRICS, CHECKPOINT, SUMMARY),
}
# Valid as far as they are read.  Lines beyond those that a checkpoint knows are cut off.
ALLOWED = {
    ("audit", ROUNDS, "empty"),
    ("audit", METRICS, "empty"),
    ("export", SETTINGS, "empty"),
    ("report", SETTINGS, "empty"),
    *(("train", METRICS, name) for name in ("binary", "nested")),
}


def run_damaged(run: Run, command: str, place: Path) -> Outcome:
    outcome = run(*list_arguments(command, place))
    assert outcome.err.count("\n") <= 1, outcome.err
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize("damage", GENERAL)
@pytest.mark.parametrize("command", READ)
def test_files_of_a_run(command: str, damage: str, place: Path, run: Run, tmp_path: Path) -> None:
    for name in READ[command]:
        copy = tmp_path / "again"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        file = find_file(copy, name)
        GENERAL[damage](file)
        outcome = run_damaged(run, command, copy)
        if (command, name, damage) not in ALLOWED:
            assert outcome.status == 2, (name, damage, outcome)
            assert file.name in outcome.err or f"{copy / 'run'} " in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("damage", GENERAL)
def test_lines_that_a_report_leaves_out(damage: str, place: Path, run: Run) -> None:
    for name in (PUBLIC, ROUNDS, METRICS, UPDATES):
        GENERAL[damage](place / "run" / name)
    assert run_damaged(run, "report", place).status in (0, 2)


# --- impossible values ---


IMPOSSIBLE: dict[str, tuple[Any, ...]] = {
    "trajectory": (10**30, 1e30, -1, 2, "0", None, True, [0]),
    "oracle_state": (10**30, 1e30, -1, 3, "0", None, 0.5),
    "arrival": (-1, "0", None, 0.5),
    "accepted": ("yes", 1, None),
    "action": ("wait", None, ["learn"]),
    "clients": ("all", None, [-1], ["0"], 3),
    "round": ("1", -1, None),
}
SPARE = ("learning_cost", "privacy_cost", "batches", "weights", "learn_prob")  # never read again


def change_line(path: Path, key: str, *values: Any) -> None:
    """Change a key of the second line, or remove it; the file keeps its length."""
    first, second, *rest = path.read_text().splitlines(keepends=True)
    record = {name: entry for name, entry in json.loads(second).items() if name not in SPARE}
    del record[key]
    changed = json.dumps(record | dict.fromkeys([key][: len(values)], *values))
    path.write_text("".join([first, changed.ljust(len(second) - 1), "\n", *rest]))


@pytest.mark.slow
@pytest.mark.parametrize("key", IMPOSSIBLE)
@pytest.mark.parametrize("command", ["audit", "train"])
def test_private_records(command: str, key: str, place: Path, run: Run) -> None:
    path = place / "run" / ROUNDS
    before = path.read_bytes()
    for values in ((), *((value,) for value in IMPOSSIBLE[key])):
        path.write_bytes(before)
        change_line(path, key, *values)
        said = refuse(run(*list_arguments(command, place)), 2)
        assert said.startswith(f"{path} line 2: {key} must be "), values


@pytest.mark.parametrize("command", ["report", "train"])
def test_text_in_a_summary(command: str, place: Path, run: Run) -> None:
    path = place / "run" / SUMMARY
    content = json.loads(path.read_text())
    (place / "longer.toml").write_text(RUN_FILE)  # the run that has ended
    for key in content:
        path.write_text(json.dumps(content | {key: "a <b>"}))
        said = refuse(run(*list_arguments(command, place)), 2)
        assert said.startswith(f"{path} is not the summary of a run: {key} must be "), said


@pytest.mark.slow
@pytest.mark.parametrize("value", ["text", {"a": 1}, None])
def test_any_value_in_an_audit(
    value: Any, place: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("scores", "actions", "exposure", "policy", "backlog", "waits", "naming_shares"):
        monkeypatch.setattr(f"covertfl.report.plots.plot_{name}", lambda *_: None)
    path = place / "run" / AUDIT
    content = json.loads(path.read_text())
    content["tiers"] = {"A": content["tiers"]["A"]}
    coalition = content["coalitions"].pop("1")
    for part in (content, coalition):
        part["eavesdroppers"] = {"majority": part["eavesdroppers"]["majority"]}
    content["coalitions"] = {"1": coalition}
    for keys in list_places(content):
        damaged = json.loads(json.dumps(content))
        inner = damaged
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        path.write_text(json.dumps(damaged))
        outcome = run_damaged(run, "report", place)
        assert outcome.status == 0 or str(path) in outcome.err, (keys, outcome)


def list_places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value in JSON objects and of the first entry of lists."""
    entries = content.items() if isinstance(content, dict) else enumerate(content[:1])
    for key, value in entries:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from list_places(value, (*before, key))


# --- models without tensors ---


def reseal(place: Path, **changes: Any) -> None:
    """Write the checkpoint again with other facts or arrays, and with its checksum."""
    found = read_checkpoint(place / "run")
    assert found is not None
    arrays = changes.pop("arrays", found.arrays)
    facts = {key: value for key, value in {**found.facts, **changes}.items() if value is not ...}
    lengths = facts.pop("lengths", {})
    facts.pop("round")
    write_checkpoint(place / "run", Checkpoint(found.round, arrays, facts), lengths)


@pytest.mark.parametrize("command", ["export", "train"])
def test_checkpoints_that_hold_no_model(command: str, place: Path, run: Run) -> None:
    nothing: dict[str, Any] = {}
    damages: dict[str, dict[str, Any]] = {
        "no arrays": {"arrays": nothing},
        "other arrays": {"arrays": {"true": np.zeros((2, 2), dtype=np.float32)}},
    }
    if command == "export":
        damages |= {
            "no parameters": {"parameters": [], "arrays": {"true": np.zeros(0, dtype=np.float32)}},
            "parameters are text": {"parameters": "text"},
            "shapes are text": {"parameters": [["a", "text"]]},
            "parameters are missing": {"parameters": ...},
        }
    else:
        found = read_checkpoint(place / "run")
        assert found is not None
        own = found.facts["scheme"]
        keys = ("scheme", "queue", "scores", "totals", "oracle_state")
        damages |= {f"{key} is text": {key: "text"} for key in keys[:2]}
        damages |= {f"{key} is missing": {key: ...} for key in keys}
        damages |= {f"{key} is text": {"scheme": {**own, key: "text"}} for key in ("moves", "live")}
        damages |= {
            f"{key} is missing": {"scheme": {name: own[name] for name in own if name != key}}
            for key in ("moves", "updates", "live")
        }
    state = (place / "run" / CHECKPOINT).read_bytes()
    for name, damage in damages.items():
        (place / "run" / CHECKPOINT).write_bytes(state)
        reseal(place, **damage)
        said = refuse(run(*list_arguments(command, place)), 2)
        assert "checkpoint" in said or "holds a model of" in said, (name, said)


def test_a_checkpoint_with_nested_facts(place: Path, run: Run) -> None:
    path = place / "run" / CHECKPOINT
    path.write_bytes(save({"true": np.zeros(3)}, metadata={"facts": NESTED, "format": "3"}))
    for command in ("export", "train"):
        said = refuse(run(*list_arguments(command, place)), 2)
        assert said.startswith(f"{path} is not a checkpoint of covertfl")


def test_queries_without_tensors(place: Path, run: Run) -> None:
    content = save({})
    folder = place / "run" / "public"
    name = name_content(content)
    (folder / "weights" / f"{name}.safetensors").write_bytes(content)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    changed = [json.dumps(json.loads(line) | {"weights": name}) + "\n" for line in lines]
    (folder / "rounds.jsonl").write_text("".join(changed))
    for audited in (place / "run", folder):
        said = refuse(run("audit", audited, "--rehearsals", 0), 2)
        assert said.endswith(f"{name}.safetensors must hold the tensors of a model, got none")


def test_exported_models(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({}, {"covertfl_format": "3", "covertfl_model": "{}"}))
    with pytest.raises(InvalidInput, match="must hold the tensors of a model, got none"):
        read_contents(path)
    for make in (os.mkfifo, Path.mkdir, Path.touch):
        path = tmp_path / make.__name__
        make(path)
        with pytest.raises(InvalidInput, match=path.name):
            read_contents(path)


# --- files that commands are given ---


@pytest.mark.parametrize("damage", GENERAL)
def test_files_that_commands_are_given(damage: str, run: Run, tmp_path: Path) -> None:
    given = tmp_path / "given.csv"
    given.write_text(QUEUE_FILE)
    GENERAL[damage](given)
    commands: list[list[object]] = [
        ["solve", given],
        ["plan", given],
        ["fit", given],
        ["embed", given, "-o", tmp_path / "out.npz"],
        ["federation", "init", given, "-o", tmp_path / "secret.json"],
        ["audit", "--matrix", given, "--out", tmp_path / "matrix"],
    ]
    for arguments in commands:
        if damage == "empty" and arguments[0] in ("federation", "audit"):
            continue  # a run file of defaults
        outcome = run(*arguments)
        assert outcome.status in (2, 4) and outcome.err.count("\n") == 1, (arguments, outcome)
        assert given.name in outcome.err or outcome.status == 4


@pytest.mark.parametrize("damage", GENERAL)
@pytest.mark.parametrize(
    "section",
    [
        '[policy]\nkind = "file"\npath = "{}"\n',
        'problem = "{}"\n',
        'scheme = "exchangeable"\n[federation]\nsecret = "{}"\n',
    ],
)
def test_files_that_a_run_file_names(section: str, damage: str, run: Run, tmp_path: Path) -> None:
    named = tmp_path / "named.json"
    named.write_text("")
    named.chmod(0o600)
    GENERAL[damage](named)
    text = RUN_FILE.replace('[policy]\nkind = "greedy"\n', "")
    text = text.replace('[decoy]\nkind = "random"\n', "")
    if "[federation]" in section:
        text = text.replace("[federation]\n", f'[federation]\nsecret = "{named}"\n')
        section = section.partition("[federation]")[0]
    file = tmp_path / "run.toml"
    parts = (text, section) if section.startswith("[") else (section, text)  # top-level keys first
    file.write_text("".join(parts).format(named))
    if damage == "empty" and "problem" in section:
        pytest.skip("an empty problem file is named by what it lacks")
    outcome = run("train", file, "--out", tmp_path / "out")
    assert outcome.status == 2 and outcome.err.count("\n") == 1, outcome
    assert named.name in outcome.err, outcome.err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"round": 3}', "cannot be repeated as it was"),
        ("[" * 100_000, "nested too deeply"),
        ("PIPE", "regular file"),
        ({"trajectory": 7}, "pending.json: trajectory must be at most 1, got 7"),
        ({"trajectory": "truth"}, "trajectory must be a whole number from 0, got truth"),
        ({"trajectory": 2}, "pending.json: trajectory must be at most 1, got 2"),
        ({"arrival": "one"}, "arrival must be a whole number from 0, got one"),
        ({"observation": {"oracle_state": -1, "backlog": 1}}, "oracle_state must be a whole"),
        ({"observation": {"state": 0}}, "cannot be repeated as it was"),
        (
            {"observation": {"oracle_state": 10**30, "backlog": 1}},
            "pending.json: oracle_state must be at most 2, got 10000",
        ),
    ],
)
def test_a_decision_that_cannot_be_repeated(
    content: str | dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    settings, path = make_run(), tmp_path / "out" / "checkpoint" / "pending.json"
    with pytest.raises(Stopped):
        train(settings, tmp_path / "out", on_round=stop_after(2))
    decided = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    if content == "PIPE":
        os.mkfifo(path)
    else:
        path.write_text(
            content if isinstance(content, str) else json.dumps({**decided, "round": 3, **content})
        )
    with pytest.raises(InvalidInput, match=sentence):
        train(settings, tmp_path / "out", resume=True)


# --- `--force` on folders that never held a run ---------------------------------------------------


SMALL = {**DRAWN_QUEUE, "rounds": 3}


def fill(folder: Path) -> Path:
    """Make a user's folder with names that a run's folder has."""
    for name in (
        *("public/index.html", "private/letters.txt", "public/weights/.own.backup"),
        *("public/weights/own.safetensors", "metrics.jsonl", "summary.json", "map.safetensors"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def add_run_file(folder: Path) -> Path:
    (fill(folder) / "run.toml").write_text(RUN_FILE)
    return folder


def add_checkpoints(folder: Path) -> Path:
    (add_run_file(folder) / "checkpoint").mkdir()
    (folder / "checkpoint" / "model.pt").write_text("mine")
    (folder / "checkpoint" / ".model.pt").write_text("mine")
    return folder


def add_lock(folder: Path) -> Path:
    (add_checkpoints(folder) / "checkpoint" / "lock").write_text("mine")
    return folder


def copy_settings(folder: Path) -> Path:
    """The settings of a run, copied as a run file, are not a run."""
    run_small(folder.parent / "other", SMALL)
    (fill(folder) / "run.toml").write_bytes((folder.parent / "other" / "run.toml").read_bytes())
    return folder


def link_settings(folder: Path) -> Path:
    run_small(folder.parent / "other", SMALL)
    fill(folder)
    (folder / "checkpoint").mkdir()
    for name in ("run.toml", "checkpoint/lock"):
        (folder / name).symlink_to(folder.parent / "other" / name)
    return folder


def write_damaged(folder: Path) -> Path:
    (add_lock(folder) / "run.toml").write_bytes(b"\xff\x00[[[")
    return folder


FOLDERS = (
    *(fill, add_run_file, add_checkpoints, add_lock),
    *(copy_settings, link_settings, write_damaged),
)


def read_all(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of everything in a folder; of a link, where it points to."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()).encode()
            if path.is_symlink()
            else path.read_bytes()
            if path.is_file()
            else b"",
        )
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("make", FOLDERS)
@pytest.mark.parametrize("way", ["force", "resume"])
def test_a_folder_of_a_user_is_left_alone(
    make: Callable[[Path], Path], way: str, tmp_path: Path
) -> None:
    folder = make(tmp_path / "mine")
    before = read_all(folder)
    with pytest.raises(InvalidInput) as refused:
        train(make_run(SMALL), folder, force=way == "force", resume=way == "resume")
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InvalidInput):
        made = RunFolder(folder)
        made.create("", force=True) if way == "force" else made.resume("")
    assert read_all(folder) == before


def test_of_several_seeds_none_is_begun(tmp_path: Path) -> None:
    train(make_run(SMALL), tmp_path, seeds=2)
    fill(tmp_path / "seed-2")
    before = read_all(tmp_path)
    with pytest.raises(InvalidInput, match=r"seed-2 holds files but no run of covertfl"):
        train(make_run(SMALL), tmp_path, seeds=3, force=True)
    assert read_all(tmp_path) == before


@pytest.mark.parametrize("name", ["public", "private", "public/weights", "checkpoint"])
def test_what_links_point_to_is_left_alone(name: str, tmp_path: Path) -> None:
    run_small(tmp_path / "run", SMALL)
    elsewhere = fill(tmp_path / "elsewhere")
    (tmp_path / "run" / name).rename(tmp_path / "moved")
    (tmp_path / "run" / name).symlink_to(elsewhere)
    if name == "checkpoint":
        (elsewhere / "lock").touch()
    before = read_all(tmp_path)
    with pytest.raises(InvalidInput, match=r"is a symbolic link"):
        train(make_run(SMALL), tmp_path / "run", force=True)
    assert read_all(tmp_path) == before


def test_links_inside_a_run_are_removed_alone(tmp_path: Path) -> None:
    run_small(tmp_path / "run", SMALL)
    elsewhere = fill(tmp_path / "elsewhere")
    before = read_all(elsewhere)
    (tmp_path / "run" / "private" / "more").symlink_to(elsewhere)
    (tmp_path / "run" / "public" / "weights" / "more.safetensors").symlink_to(
        elsewhere / "metrics.jsonl"
    )
    train(make_run(SMALL), tmp_path / "run", force=True)
    assert read_all(elsewhere) == before
    assert not (tmp_path / "run" / "private" / "more").exists()


def test_runs_are_replaced(tmp_path: Path) -> None:
    """Finished ones, interrupted ones, and those that ended before their first file."""
    run_small(tmp_path / "run", SMALL)
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    for place in ("run", "link"):
        train(make_run(SMALL), tmp_path / place, force=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    begun = tmp_path / "begun" / "checkpoint"
    begun.mkdir(parents=True)
    (begun / "lock").touch()
    train(make_run(SMALL), begun.parent, force=True)
    assert (begun.parent / "summary.json").exists()
    (tmp_path / "empty").mkdir()
    train(make_run(SMALL), tmp_path / "empty", force=True)


def test_a_replacement_that_is_cut_off_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(tmp_path, SMALL)

    def cut(path: Path) -> None:
        raise KeyboardInterrupt

    for place in ("covertfl.runs.folder.shutil.rmtree", "covertfl.runs.folder._remove_leftovers"):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(place, cut)
            train(make_run(SMALL), tmp_path, force=True)
    train(make_run(SMALL), tmp_path, force=True)
    assert (tmp_path / "summary.json").exists()


def test_the_demonstration_deletes_nothing_either(tmp_path: Path) -> None:
    condition = Condition(1, "scheduled", "greedy", "public")
    mine = fill(tmp_path / "runs" / condition.folder / "seed-0")
    before = read_all(tmp_path)
    with pytest.raises(InvalidInput, match="holds files but no run of covertfl"):
        run_demo(tmp_path, seeds=1, conditions=[condition])
    assert read_all(tmp_path) == before and mine.exists()


@pytest.mark.parametrize("command", ["train", "deploy-local"])
def test_commands_refuse_in_one_sentence(command: str, run: Run, tmp_path: Path) -> None:
    file, mine = tmp_path / "run.toml", fill(tmp_path / "mine")
    file.write_text(RUN_FILE)
    before = read_all(mine)
    said = refuse(run(command, file, "--out", mine, "--force"), 2)
    assert said.startswith(f"{mine} holds files but no run of covertfl")
    assert read_all(mine) == before


def test_a_user_app_is_not_deployed_there_either(run: Run, tmp_path: Path) -> None:
    file, mine = tmp_path / "run.toml", fill(tmp_path / "mine")
    file.write_text(RUN_FILE)
    (mine / "eavesdropper").mkdir()
    (mine / "eavesdropper" / "notes.txt").write_text("mine")
    (tmp_path / "app").mkdir()
    before = read_all(mine)
    refuse(run("deploy-local", file, "--out", mine, "--force", "--app", tmp_path / "app"), 2)
    assert read_all(mine) == before
