"""The application: help, refusals in one sentence, exit statuses, and a quick start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from covertfl import __version__
from covertfl.cli.app import app
from tests.support.commands import Run, refuse


def commands() -> dict[str, Any]:
    """Return all commands by name, those of a group as "group command"."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inside = getattr(command, "commands", None)
        found |= (
            {name: command}
            if inside is None
            else {f"{name} {part}": each for part, each in inside.items()}
        )
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_help_with_an_example(name: str, run: Run) -> None:
    outcome = run(*name.split(), "--help")
    assert outcome.status == 0
    assert f"Example: covertfl {name}" in " ".join(outcome.out.split())
    assert "\\[" not in outcome.out
    command = commands()[name]
    for option in command.params:
        if option.param_type_name == "option":
            assert option.help, f"{name} {option.name} has no help"
    assert "json" in " ".join(option.opts[0] for option in command.params)


def test_the_module_is_the_command(run: Run) -> None:
    process = start("--help", stdout=subprocess.PIPE)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.decode() == run("--help").out


def test_without_arguments_the_commands_are_listed(run: Run) -> None:
    outcome = run()
    listed = outcome.out + outcome.err
    assert all(f"  {name.split()[0]} " in listed for name in commands())
    assert run("--version").out == f"covertfl {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "No such command 'nonsense' (see covertfl --help)"),
        (("solve", "--nonsense"), "No such option '--nonsense'"),
        (("solve", "--method", "x"), "Invalid value for '--method': 'x'"),
        (("solve", "--runs", "abc"), "Invalid value for '--runs': 'abc'"),
        (("fit",), "Missing argument"),
    ],
)
def test_mistyped_commands_are_refused(run: Run, arguments: tuple[str, ...], said: str) -> None:
    assert refuse(run(*arguments), 2).startswith(said)


def test_a_problem_comes_from_one_place(run: Run, queue_file: Path) -> None:
    for command in ("solve", "plan"):
        assert "got neither" in refuse(run(command), 2)
        assert "got both" in refuse(run(command, queue_file, "--preset", "sound/queue"), 2)
        assert "got 'sound'" in refuse(run(command, "--preset", "sound"), 2)
        assert "no such file" in refuse(run(command, "nothing.toml"), 2)
        assert "Is a directory" in refuse(run(command, queue_file.parent), 2)


def test_a_problem_that_does_not_fit_into_memory(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("covertfl.decision.problem_file.read_preset", exhaust)
    assert "memory" in refuse(run("solve", "--preset", "sound/main"), 3)


def test_an_interruption_is_not_a_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("covertfl.decision.problem_file.read_preset", interrupt)
    outcome = run("solve", "--preset", "sound/main")
    assert outcome.status == 128 + signal.SIGINT
    assert outcome.out == ""


# --- in a process of its own --------------------------------------------------------------------


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


HEAVY = ("matplotlib", "jinja2", "torch", "flwr")


def test_importing_the_package_loads_nothing_heavy() -> None:
    names = (*HEAVY, "numba", "scipy", "numpy", "pydantic", "rich")
    loaded = python(f"import sys, covertfl; print([n for n in {names} if n in sys.modules])")
    assert loaded.stdout == "[]\n"


@pytest.mark.parametrize("preset", ["sound/queue", "sound/main"])
def test_solving_loads_no_extra(preset: str) -> None:
    code = (
        "import sys\n"
        "from covertfl.cli.app import main\n"
        f"sys.argv = ['covertfl', 'solve', '--preset', {preset!r}, '--json']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    solved = python(code)
    answer, loaded = solved.stdout.splitlines()
    assert json.loads(answer)["problem"] in {"queue", "horizon"}
    assert loaded == "[]"


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "covertfl", *arguments], stderr=subprocess.PIPE, **options
    )


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("plan", "--preset", "sound/main", stdout=writing)
    os.close(writing)
    _, err = process.communicate()
    assert err == b""
    assert process.returncode in {0, 1}


def test_plain_letters_where_nothing_else_can_be_printed() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "COLUMNS": "40"}
    process = start("plan", "--preset", "sound/main", stdout=subprocess.PIPE, env=environment)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out.isascii()
    assert "79 rounds give 95%." in out.decode()
    assert out.decode().rstrip().endswith("115 rounds instead of 68.")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_progress_goes_to_the_terminal_and_the_answer_to_the_pipe() -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "covertfl", "solve", "--preset", "sound/queue", "--json"],
        stdout=subprocess.PIPE,
        stderr=slave,
    )
    out, _ = process.communicate()
    os.close(slave)
    shown = os.read(master, 100_000)
    os.close(master)
    assert process.returncode == 0
    assert json.loads(out)["problem"] == "queue" and b"\x1b" not in out
    assert b"solving" in shown
