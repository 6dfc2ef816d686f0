"""Manners of the command line: help, suggestions, completion, progress, interruptions, errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from covertfl.cli import terminal
from tests import ROOT
from tests.support.commands import QUEUE_FILE, Run, refuse

# --- help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("group", [(), ("federation",)])
def test_summaries_in_the_help_are_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch, group: tuple[str, ...], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run(*group, "--help").out
    assert "..." not in shown.split("Commands:")[1]
    for command in re.findall(r"^  ([a-z-]+) {2,}\S", shown.split("Commands:")[1], re.MULTILINE):
        first = run(*group, command, "-h").out.split("\n\n")[1]
        assert " ".join(first.split()) in " ".join(shown.split())


def test_a_short_option_shows_the_help(run: Run) -> None:
    for command in ((), ("solve",), ("federation",), ("federation", "init")):
        assert run(*command, "-h").out == run(*command, "--help").out != ""


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("sovle",), "'solve'"), (("solve", "--metod", "lp"), "'--method'"), (("re",), None)],
)
def test_a_mistyped_name_has_one_suggestion(
    run: Run, arguments: tuple[str, ...], meant: str | None
) -> None:
    message = refuse(run(*arguments), 2)
    assert message.lower().count("did you mean") == (meant is not None)
    assert meant is None or f"Did you mean {meant}?" in message


# --- completion ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(run: Run, shell: str) -> None:
    outcome = run("--show-completion", shell)
    assert (outcome.status, outcome.err) == (0, "")
    assert f"_COVERTFL_COMPLETE=complete_{shell}" in outcome.out


@pytest.mark.parametrize(
    ("words", "completed"), [("so", ["solve"]), ("solve --me", ["--method"]), ("de", 2)]
)
def test_bash_completes_commands_and_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, completed: list[str] | int
) -> None:
    monkeypatch.setenv("_COVERTFL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"covertfl {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    found = run().out.split()
    assert found == (completed if isinstance(completed, list) else ["deploy-local", "demo"])


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("solve", "--preset", "nothing"), 2),
        (("solve", "--nonsense"), 2),
        (("solve", "absent.toml"), 2),
        (("nonsense",), 2),
    ],
)
def test_errors_are_json_where_that_is_asked_for(
    run: Run, arguments: tuple[str, ...], status: int
) -> None:
    plain, outcome = run(*arguments), run(*arguments, "--json")
    assert (plain.status, outcome.status, outcome.err) == (status, status, "")
    message = plain.err.removeprefix("covertfl: ").rstrip("\n")
    assert json.loads(outcome.out) == {"error": {"message": message, "status": status}}


def test_an_infeasible_problem_keeps_its_status_in_json(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "problem.toml"
    path.write_text(QUEUE_FILE.replace("learning_limit = 3.0", "learning_limit = 0.01"))
    outcome = run("solve", path, "--json")
    assert outcome.status == json.loads(outcome.out)["error"]["status"] == 3


def test_an_error_after_the_answer_is_no_second_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["covertfl", "audit", "--json"])
    terminal.await_answer()
    terminal.print_json({"answer": 1})
    terminal.print_error("the folder cannot be written to", 2)
    assert capsys.readouterr() == ('{"answer": 1}\n', "covertfl: the folder cannot be written to\n")


def test_all_unknown_keys_are_named_at_once(run: Run, tmp_path: Path) -> None:
    problem = tmp_path / "problem.toml"
    problem.write_text(QUEUE_FILE.replace("success ", "sucess ") + "colour = 1\n")
    message = refuse(run("solve", problem), 2)
    assert "[oracle] unknown key sucess; allowed are transition, success" in message
    assert "did you mean success?" in message
    assert "[queue] unknown key colour; allowed are arrival_prob" in message

    pytest.importorskip("torch")
    path = tmp_path / "run.toml"
    path.write_text(
        'task = "digits"\nsped = 3\n[federation]\nclinets = 4\nbatchsize = 2\n'
        "[horizon]\nround = 5\nupdates = 2\n"
    )
    message = refuse(run("train", path, "--out", tmp_path / "out"), 2)
    assert "unknown key sped; allowed are task, scheme, problem, seed" in message
    assert "[federation] unknown keys clinets, batchsize; allowed are" in message
    assert "did you mean clients, batch_size?" in message
    assert "[horizon] unknown key round; allowed are rounds, updates; did you mean rounds?" in (
        message
    )


def test_seeds_do_not_go_into_the_folder_of_a_run(run: Run, tmp_path: Path, run_file: Path) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "single"
    folder.mkdir()
    (folder / "run.toml").write_text("format = 1\n")
    for option in ((), ("--resume",), ("--force",)):
        message = refuse(run("train", run_file, "--out", folder, "--seeds", 2, *option), 2)
        assert message.startswith(f"{folder} is the folder of a single run")
    assert [path.name for path in folder.iterdir()] == ["run.toml"]


# --- progress and interruptions -----------------------------------------------------------------


def test_long_work_off_a_terminal_prints_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.01)
    with terminal.show_progress("searching") as update:
        update("cost 1.5", 0.25)
        threading.Event().wait(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert set(lines) == {"searching: cost 1.5, 25% done (0 s)"}


def test_short_work_off_a_terminal_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with terminal.show_progress("searching") as update:
        update("cost 1.5", 0.25)
    assert capsys.readouterr() == ("", "")
    assert threading.active_count() == before


@pytest.mark.parametrize("options", [[], ["--force"], ["--resume"]])
def test_an_interrupted_training_says_how_to_resume(
    run: Run, monkeypatch: pytest.MonkeyPatch, run_file: Path, options: list[str]
) -> None:
    pytest.importorskip("torch")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("covertfl.training.train", interrupt)
    outcome = run("train", run_file, *options, "--out", "two words")
    command = f"covertfl train {run_file} --out 'two words' --resume"
    assert outcome.status == 130
    assert outcome.err.strip() == f"covertfl: interrupted; to continue: {command}"


# --- the example --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_own_task_runs_twice_and_names_missing_updates(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = [sys.executable, str(ROOT / "examples" / "own_task.py"), str(tmp_path / "own")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    shown = [
        subprocess.run(script, capture_output=True, text=True, check=True, env=environment).stdout
        for _ in range(2)
    ]
    assert shown[0] == shown[1]
    assert re.search(r"\d+ updates done, \d+ missing\n$", shown[0])
