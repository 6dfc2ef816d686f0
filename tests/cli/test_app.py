"""The command line: exit status, one JSON object, plain sentences, and no surprises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from covertfl import __version__
from covertfl.cli import app as cli
from covertfl.decision.policy import HorizonTable, QueueTable
from covertfl.decision.policy_file import read_policy
from covertfl.decision.problem import FiniteHorizon, QueueProblem
from covertfl.decision.problem_file import list_presets, read_preset, read_problem
from covertfl.evaluation.horizon import evaluate_horizon_policy
from covertfl.evaluation.queue import evaluate_queue_policy

QUEUE_FILE = """[oracle]
transition = [[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]
success    = [0.1, 0.43, 0.95]

[cost]
privacy  = [1.8, 0.8, 0.3]
learning = { shape = "linear", scale = 0.6, charged = "always" }

[queue]
arrival_prob   = 0.05
arrival_size   = 4
learning_limit = 3.0
capacity       = "auto"
full_cost      = 0.0
minimise       = "privacy"
"""
MATRIX = "[[0.8, 0.2, 0.0], [0.3, 0.5, 0.2], [0.0, 0.2, 0.8]]"
EXAMPLE_LOG = str(resources.files("covertfl") / "data" / "participation.csv")


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def content(self) -> Any:
        """The one JSON object on standard output."""
        assert self.status == 0, self.err
        assert self.out.count("\n") == 1 and self.out.endswith("\n")
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, as the installed script would."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["covertfl", *map(str, arguments)])
        status: Any = 0
        try:
            cli.main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(status, out, err)

    return call


def refuse(outcome: Outcome, status: int) -> str:
    """The sentence of a refusal; nothing else may be printed."""
    assert (outcome.status, outcome.out) == (status, "")
    assert outcome.err.startswith("covertfl: ") and outcome.err.count("\n") == 1
    return outcome.err.removeprefix("covertfl: ").rstrip("\n")


@pytest.fixture
def queue_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.toml"
    path.write_text(QUEUE_FILE)
    return path


# --- help ---------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_has_help_with_an_example(name: str, run: Run) -> None:
    outcome = run(name, "--help")
    assert outcome.status == 0
    assert f"Example: covertfl {name}" in " ".join(outcome.out.split())
    assert "\\[" not in outcome.out
    command = commands()[name]
    for option in command.params:
        if option.param_type_name == "option":
            assert option.help, f"{name} {option.name} has no help"
    assert "json" in " ".join(option.opts[0] for option in command.params)


def test_without_arguments_the_commands_are_listed(run: Run) -> None:
    outcome = run()
    listed = outcome.out + outcome.err
    assert all(f"  {name} " in listed for name in commands())
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


# --- solve --------------------------------------------------------------------------------------


def test_solve_a_queue_file(run: Run, queue_file: Path) -> None:
    content = run("solve", queue_file, "--json").content
    assert content["privacy_cost"] == pytest.approx(0.127196, abs=5e-7)
    assert content["learning_cost"] == pytest.approx(3.0, rel=1e-9)
    assert content["problem"] == "queue" and content["method"] == "exact"
    assert content["capacity"] > 40 and content["full_prob"] < 1e-9
    assert content["structure"]["counterexample"] is None
    assert content["structure"]["assumptions"] == {"M1": True, "M2": True, "M3": True, "M5": True}
    people = run("solve", queue_file)
    assert people.status == 0 and people.err == ""
    assert "0.127196 a round" in people.out


@pytest.mark.parametrize(
    ("preset", "cost", "digits"),
    [
        ("sound/queue", 0.76843, 5e-6),
        ("sound/tracking-before", 0.2208, 5e-5),
        ("sound/tracking-after", 0.3054, 5e-5),
        ("paper-code/tracking-before", 0.2208, 5e-5),
        ("paper-code/tracking-after", 0.3054, 5e-5),
    ],
)
def test_solved_presets(run: Run, preset: str, cost: float, digits: float) -> None:
    content = run("solve", "--preset", preset, "--json").content
    assert content["privacy_cost"] == pytest.approx(cost, abs=digits)


@pytest.mark.parametrize("preset", list_presets())
def test_every_preset_can_be_solved_and_read(run: Run, preset: str) -> None:
    outcome = run("solve", "--preset", preset)
    assert outcome.status == 0 and outcome.err == ""
    assert "What is proven" in outcome.out
    assert all(character == "\n" or character.isprintable() for character in outcome.out)


def test_lp_and_exact_agree(run: Run, queue_file: Path) -> None:
    exact = run("solve", queue_file, "--json").content
    check = run("solve", queue_file, "--method", "lp", "--json").content
    assert check["method"] == "lp"
    assert check["capacity"] == exact["capacity"]
    assert check["privacy_cost"] == pytest.approx(exact["privacy_cost"], rel=1e-8)
    assert check["learning_cost"] == pytest.approx(3.0, rel=1e-8)


def test_lp_is_refused_on_a_horizon(run: Run) -> None:
    message = refuse(run("solve", "--preset", "sound/main", "--method", "lp", "--json"), 2)
    assert "--method lp is for queue problems" in message


def test_a_queue_policy_written_and_read_costs_what_was_said(
    run: Run, queue_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "policy.json"
    content = run("solve", queue_file, "--policy-out", path, "--json").content
    written = json.loads(path.read_text())
    assert written.keys() == {"problem", "learn_prob"} and written["problem"] == "queue"
    assert np.shape(written["learn_prob"]) == (3, 2, content["capacity"] + 1)
    problem, policy = read_problem(queue_file).problem, read_policy(path)
    assert isinstance(problem, QueueProblem) and isinstance(policy, QueueTable)
    evaluation = evaluate_queue_policy(problem.with_capacity(content["capacity"]), policy)
    assert evaluation.privacy_cost == pytest.approx(content["privacy_cost"], rel=1e-12)
    assert evaluation.learning_cost == pytest.approx(content["learning_cost"], rel=1e-12)
    assert evaluation.learn_fraction == pytest.approx(content["learn_fraction"], rel=1e-12)


def test_a_horizon_policy_written_and_read_costs_what_was_said(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    content = run("solve", "--preset", "sound/main", "--policy-out", path, "--json").content
    written = json.loads(path.read_text())
    assert written["problem"] == "horizon"
    assert np.shape(written["learn_prob"]) == (45, 3, 17)
    problem, policy = read_preset("sound/main").problem, read_policy(path)
    assert isinstance(problem, FiniteHorizon) and isinstance(policy, HorizonTable)
    costs = [
        evaluate_horizon_policy(problem, policy, first=np.eye(3)[state]).total_cost
        for state in range(3)
    ]
    assert costs == pytest.approx(content["expected_cost"], rel=1e-12)


def test_a_limit_that_cannot_be_met_names_the_best(run: Run, queue_file: Path) -> None:
    queue_file.write_text(QUEUE_FILE.replace("3.0", "1.5"))
    message = refuse(run("solve", queue_file, "--json"), 3)
    assert message == "learning_limit = 1.5 cannot be met: the best reachable value is 1.65617"
    queue_file.write_text(QUEUE_FILE.replace("3.0", "1.6562"))
    assert run("solve", queue_file, "--json").status == 0


def test_a_queue_that_cannot_be_served_names_the_drift(run: Run, queue_file: Path) -> None:
    queue_file.write_text(QUEUE_FILE.replace("0.05", "0.5"))
    message = refuse(run("solve", queue_file), 3)
    assert "2 updates arrive in a round and at most 0.437143 can be done" in message
    assert "grows by 1.56286 a round" in message


def test_a_problem_comes_from_one_place(run: Run, queue_file: Path) -> None:
    for command in ("solve", "plan"):
        assert "got neither" in refuse(run(command), 2)
        assert "got both" in refuse(run(command, queue_file, "--preset", "sound/queue"), 2)
        assert "got 'sound'" in refuse(run(command, "--preset", "sound"), 2)
        assert "no such file" in refuse(run(command, "nothing.toml"), 2)
        assert "Is a directory" in refuse(run(command, queue_file.parent), 2)


def test_a_policy_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "missing" / "policy.json"
    message = refuse(run("solve", "--preset", "sound/main", "--policy-out", place), 2)
    assert message == f"{place} cannot be written: No such file or directory"


def test_pictures(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for preset in ("sound/queue", "sound/main"):
        path = tmp_path / "policy.png"
        assert run("solve", "--preset", preset, "--plot", path, "--json").content
        assert path.read_bytes().startswith(b"\x89PNG")
    message = refuse(run("solve", "--preset", "sound/main", "--plot", tmp_path / "x.bmp"), 2)
    assert "a picture's name must end in .png, .svg, .pdf" in message
    assert run("plan", "--preset", "paper-code/queue", "--plots", tmp_path / "new").status == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["frontier.png"]
    assert run("plan", "--preset", "sound/main", "--plots", tmp_path / "main").status == 0
    assert {path.name for path in (tmp_path / "main").iterdir()} == {
        "completion.png", "thresholds.png",
    }  # fmt: skip
    message = refuse_after_output(run("plan", "--preset", "sound/main", "--plots", path), 2)
    assert message == f"{path}: File exists"


def refuse_after_output(outcome: Outcome, status: int) -> str:
    assert outcome.status == status and outcome.err.count("\n") == 1
    return outcome.err.removeprefix("covertfl: ").rstrip("\n")


def test_without_matplotlib(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = refuse(run("solve", "--preset", "sound/main", "--plot", tmp_path / "x.png"), 4)
    assert "pip install 'covertfl[report]'" in message
    assert list(tmp_path.iterdir()) == []
    assert run("solve", "--preset", "sound/main", "--json").status == 0


# --- plan ---------------------------------------------------------------------------------------


def test_plan_the_main_experiment(run: Run) -> None:
    content = run("plan", "--preset", "sound/main", "--json").content
    assert content["completion"]["minority"] == pytest.approx([0.409, 0.479, 0.640], abs=5e-4)
    prefix = content["completion"]["prefix_minority"]
    assert prefix == pytest.approx([0.317, 0.340, 0.374], abs=5e-4)
    assert content["rounds_needed"] == {"0.9": 70, "0.95": 79, "0.99": 99}
    assert content["greedy_learning_queries"] == pytest.approx(39.2, abs=0.05)
    low, high = content["best_eavesdropper"]["interval"]
    assert low <= 0.906 <= high
    people = run("plan", "--preset", "sound/main")
    assert people.status == 0 and people.err == ""
    assert people.out.splitlines()[-1] == (
        "16 updates in 45 rounds cannot be both covert and certain: 41 to 64% at best, "
        "depending on the first round; 79 rounds give 95%."
    )


def test_plan_a_queue(run: Run) -> None:
    content = run("plan", "--preset", "sound/queue", "--json").content
    assert content["stable"] is True
    assert content["load"] == pytest.approx(0.4)
    assert content["service_capacity"] == pytest.approx(0.437, abs=5e-4)
    assert content["least_exposure"] == pytest.approx(0.629, abs=5e-4)
    assert content["privacy_cost_bound"] < content["frontier"][-1]["privacy_cost"]
    assert len(content["frontier"]) >= 10
    assert "least exposure" in run("plan", "--preset", "paper-code/queue").out


def test_plan_says_how_many_updates_are_needed(run: Run) -> None:
    arguments = ("plan", "--preset", "sound/main", "--epsilon", ".25")
    assert (
        "more than 1464 with step 1/m (F1), 32 with the best constant step" in run(*arguments).out
    )
    needed = run(*arguments, "--json").content["updates_needed"]
    assert int(needed["decreasing_step"]) == 1464
    assert needed["constant_step"] == pytest.approx(32.0)
    beyond = run("plan", "--preset", "sound/main", "--epsilon", "1e-200", "--json").content
    assert beyond["updates_needed"] == {"decreasing_step": None, "constant_step": None}
    assert "epsilon must be" in refuse(run("plan", "--preset", "sound/main", "--epsilon", "0"), 2)


def test_plan_for_an_exposure(run: Run) -> None:
    queue = run("plan", "--preset", "paper-code/queue", "--exposure", "0.6", "--json").content
    assert queue["exposure"]["setting"] == "learning_limit"
    assert queue["exposure"]["exposure"] == pytest.approx(0.6, abs=1e-5)
    horizon = run("plan", "--preset", "sound/main", "--exposure", "0.4", "--json").content
    assert horizon["exposure"]["setting"] == "scale"
    assert 0.38 < horizon["exposure"]["exposure"] <= 0.4
    message = refuse(run("plan", "--preset", "sound/queue", "--exposure", "0.4"), 3)
    assert "62.9%" in message
    message = refuse(run("plan", "--preset", "sound/main", "--exposure", "40"), 2)
    assert message == "exposure must lie strictly between 0 and 1, got 40"
    people = run("plan", "--preset", "paper-code/queue", "--exposure", "0.6")
    assert "asked for 60.0%" in people.out


def test_plan_of_an_oracle_without_a_stationary_law_names_the_file(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "problem.toml"
    text = QUEUE_FILE[: QUEUE_FILE.index("[queue]")].replace("[0.8, 0.2, 0.0]", "[1.0, 0.0, 0.0]")
    path.write_text(text + "[horizon]\nrounds = 5\nupdates = 2\n")
    assert run("solve", path, "--json").status == 0
    message = refuse(run("plan", path, "--json"), 2)
    assert message.startswith(f"{path}: [oracle] transition must let every state be reached")


def test_the_seed_is_a_whole_number_from_0(run: Run) -> None:
    assert run("plan", "--preset", "sound/main", "--seed", "-1").status == 2
    values = [
        run("plan", "--preset", "sound/main", "--seed", seed, "--json").content["best_eavesdropper"]
        for seed in (3, 3, 4)
    ]
    assert values[0] == values[1] != values[2]


# --- fit ----------------------------------------------------------------------------------------


def test_from_a_log_to_a_policy(run: Run, tmp_path: Path) -> None:
    problem = tmp_path / "problem.toml"
    arguments = ("fit", EXAMPLE_LOG, "--cuts", "8,15", "--min-examples", "6800")
    outcome = run(*arguments, "-o", problem)
    assert outcome.status == 0
    assert f"next: covertfl plan {problem}" in outcome.out
    plan = run("plan", problem, "--json").content
    assert plan["stable"] is True
    solution = run("solve", problem, "--json").content
    assert solution["structure"]["monotone_in_backlog"] is True
    limit = tomllib.loads(problem.read_text())["queue"]["learning_limit"]
    here = next(point for point in plan["frontier"] if point["limit"] == limit)
    assert here["privacy_cost"] == pytest.approx(solution["privacy_cost"], rel=1e-9)
    content = run(*arguments, "--json").content
    assert np.shape(content["transition"]) == (3, 3)
    assert read_problem(problem).problem.oracle.success.tolist() == content["success"]
    assert "[oracle]" in run(*arguments).out


def test_a_fitted_horizon_carries_its_uncertainty_into_the_plan(run: Run, tmp_path: Path) -> None:
    log, problem = tmp_path / "log.csv", tmp_path / "problem.toml"
    lines = [line.rsplit(",", 1)[0] for line in Path(EXAMPLE_LOG).read_text().splitlines()]
    log.write_text("\n".join(lines) + "\n")
    arguments = ("--min-examples", "6800", "-o", problem, "--rounds", "20", "--updates", "4")
    assert run("fit", log, *arguments).status == 0
    completion = run("plan", problem, "--json").content["completion"]
    for prob, (low, high) in zip(
        completion["minority"], completion["minority_interval"], strict=True
    ):
        assert low < prob < high
    assert "95% interval (F11)" in run("plan", problem).out


def test_states_from_a_quality_score(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    generator = np.random.default_rng(0)
    rows = [
        f"{number},20,100,{score:.3f},{int(luck < score)}"
        for number, (score, luck) in enumerate(generator.random((300, 2)), start=1)
    ]
    log.write_text("round,clients,examples,quality,success\n" + "\n".join(rows) + "\n")
    content = run("fit", log, "--column", "quality", "--states", "4", "--json").content
    assert content["column"] == "quality"
    assert len(content["cuts"]) == 3 and content["visits"] == [75] * 4
    assert content["success"] == sorted(content["success"])
    assert "one state" in refuse(run("fit", log, "--json"), 2)  # 20 clients in every round


HEADER = "round,clients,examples\n"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (b"", "is empty"),
        (HEADER.encode(), "has a header only"),
        (b"clients,examples\n3,4\n", "a column named round is needed"),
        (b"round,examples\n1,4\n2,5\n", "has no column clients"),
        (b"round,clients\n1,4\n2,5\n3,4\n4,5\n", "has no column examples"),
        (HEADER.encode() + b"1,5,5\n3,6,6\n", "line 3: round 2 is missing"),
        (HEADER.encode() + b"1,5,5\n1,6,6\n", "line 3: round 1 appears twice"),
        (HEADER.encode() + b"1,five,5\n2,6,6\n", "line 2: clients must be a number, got 'five'"),
        (HEADER.encode() + b"1,5,\n2,6,6\n", "line 2: examples must be a number, got a blank cell"),
        (HEADER.encode() + b"1,5\n2,6,6\n", "line 2: the header has 3 columns, got 2"),
        (HEADER.encode() + b"1,5,5\n2,5,6\n", "clients is 5 in every round"),
        (HEADER.encode() + b"1,5,5\n2,\xff,6\n", "must be UTF-8 text"),
    ],
)
def test_logs_that_cannot_be_used(run: Run, tmp_path: Path, log: bytes, expected: str) -> None:
    path, problem = tmp_path / "log.csv", tmp_path / "problem.toml"
    path.write_bytes(log)
    arguments = ("--states", "2", "--min-examples", "5", "-o", problem)
    message = refuse(run("fit", path, *arguments), 2)
    assert message.startswith(str(path)) and expected in message
    assert not problem.exists()


def test_fit_options_that_cannot_be_used(run: Run, tmp_path: Path) -> None:
    assert "give --min-examples" in refuse(run("fit", EXAMPLE_LOG), 2)
    given = ("fit", EXAMPLE_LOG, "--min-examples", "6800")
    assert "--cuts must be numbers" in refuse(run(*given, "--cuts", "8;15"), 2)
    assert "cuts must increase" in refuse(run(*given, "--cuts", "15,8"), 2)
    assert "exclude each other" in refuse(run(*given, "--cuts", "8", "--states", "2"), 2)
    assert "states must be at least 2" in refuse(run(*given, "--states", "1"), 2)
    assert "no column speed" in refuse(run(*given, "--column", "speed"), 2)
    assert "min-examples must be" in refuse(run("fit", EXAMPLE_LOG, "--min-examples", "-5"), 2)
    assert "no such file" in refuse(run("fit", tmp_path / "nothing.csv"), 2)
    assert "Is a directory" in refuse(run("fit", tmp_path), 2)
    assert run(*given, "--rounds", "0").status == 2


def test_a_fit_that_cannot_be_written_leaves_nothing(run: Run, tmp_path: Path) -> None:
    given = ("fit", EXAMPLE_LOG, "--min-examples", "6800", "-o")
    place = tmp_path / "missing" / "problem.toml"
    assert refuse(run(*given, place), 2) == f"{place} cannot be written: No such file or directory"
    assert "Is a directory" in refuse(run(*given, tmp_path), 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_fit_into_a_folder_that_is_read_only(run: Run, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        given = ("fit", EXAMPLE_LOG, "--min-examples", "6800", "-o")
        assert "Permission denied" in refuse(run(*given, tmp_path / "problem.toml"), 2)
    finally:
        tmp_path.chmod(0o700)


# --- presets ------------------------------------------------------------------------------------


def test_presets(run: Run) -> None:
    assert run("presets").out.split() == list_presets()
    assert run("presets", "--json").content == {"presets": list_presets()}
    content = run("presets", "sound/queue", "--json").content
    assert content["queue"]["learning_limit"] == 25.0
    assert "got 'sound/nothing'" in refuse(run("presets", "sound/nothing"), 2)


# --- odd but allowed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({'"auto"': "1\noverflow_cost = 1.0"}, 0),
        ({'"auto"': "3\noverflow_cost = 1.0"}, 0),  # an arrival does not even fit
        ({"[0.1, 0.43, 0.95]": "[1.0, 1.0, 1.0]"}, 0),
        ({"[0.1, 0.43, 0.95]": "[0.0, 0.0, 0.0]"}, 3),
        ({"[0.1, 0.43, 0.95]": "[0.0, 0.0, 0.0]", '"auto"': "5\noverflow_cost = 0.0"}, 0),
        ({"0.05": "1.0"}, 3),
        ({"0.05": "1.0", '"auto"': "9\noverflow_cost = 0.0", "3.0": "9.0"}, 0),
        ({"[1.8, 0.8, 0.3]": "[1.8e12, 0.8e12, 0.3e12]"}, 0),
        ({"[1.8, 0.8, 0.3]": "[1.8e-12, 0.8e-12, 0.3e-12]"}, 0),
        ({"[1.8, 0.8, 0.3]": "[0.0, 0.0, 0.0]"}, 0),
        ({"scale = 0.6": "scale = 0.6e12", "3.0": "3.0e12"}, 0),
        ({"scale = 0.6": "scale = 0.6e-12", "3.0": "3.0e-12"}, 0),
        ({"3.0": "0.0"}, 3),
        ({"3.0": "8.0"}, 0),  # the best state alone keeps up: the limit does not bind
        ({"learning_limit = 3.0": "privacy_limit = 0.3", '"privacy"': '"learning"'}, 0),
        ({MATRIX: "[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]"}, 0),  # periodic
    ],
)
def test_odd_queues_end_with_an_answer_or_a_sentence(
    run: Run, queue_file: Path, changes: dict[str, str], status: int
) -> None:
    text = QUEUE_FILE
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    queue_file.write_text(text)
    outcome = run("solve", queue_file, "--json")
    if status:
        refuse(outcome, status)
    else:
        assert outcome.content["problem"] == "queue"


def test_scaling_the_privacy_cost_scales_the_optimum(run: Run, queue_file: Path) -> None:
    plain = run("solve", queue_file, "--json").content
    for factor in (1e-12, 1e12):
        costs = [1.8 * factor, 0.8 * factor, 0.3 * factor]
        queue_file.write_text(QUEUE_FILE.replace("[1.8, 0.8, 0.3]", repr(costs)))
        scaled = run("solve", queue_file, "--json").content
        assert scaled["privacy_cost"] == pytest.approx(factor * plain["privacy_cost"], rel=1e-9)


ONE_STATE = """[oracle]
transition = [[1.0]]
success    = [0.5]
[cost]
privacy  = [1.0]
learning = { shape = "linear", scale = 0.6 }
"""


def test_one_oracle_state(run: Run, tmp_path: Path) -> None:
    """Every update takes two queries, so the privacy cost is twice the load whatever the limit."""
    path = tmp_path / "problem.toml"
    path.write_text(
        ONE_STATE + "[queue]\narrival_prob = 0.1\narrival_size = 2\nlearning_limit = 3.0\n"
    )
    content = run("solve", path, "--json").content
    assert content["privacy_cost"] == pytest.approx(0.4, rel=1e-6)
    path.write_text(ONE_STATE + "[horizon]\nrounds = 6\nupdates = 2\n")
    assert run("plan", path, "--json").content["completion"]["minority"] == [pytest.approx(0.25)]


@pytest.mark.parametrize(("rounds", "updates"), [(1, 1), (1, 16), (5, 50), (300, 3)])
def test_odd_horizons(run: Run, tmp_path: Path, rounds: int, updates: int) -> None:
    path = tmp_path / "problem.toml"
    start = QUEUE_FILE[: QUEUE_FILE.index("[queue]")]
    path.write_text(start + f"[horizon]\nrounds = {rounds}\nupdates = {updates}\n")
    content = run("solve", path, "--json").content
    assert np.shape(content["thresholds"]) == (rounds, 3)
    plan = run("plan", path, "--json").content
    if rounds < 2 * updates + 1:
        assert plan["completion"]["minority"] == [0.0] * 3


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
        "from covertfl.cli import app as cli\n"
        f"sys.argv = ['covertfl', 'solve', '--preset', {preset!r}, '--json']\n"
        "try:\n    cli.main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    solved = python(code)
    answer, loaded = solved.stdout.splitlines()
    assert json.loads(answer)["problem"] in {"queue", "horizon"}
    assert loaded == "[]"


SCRIPT = "import sys; from covertfl.cli import app as cli; sys.argv = ['covertfl', *sys.argv[1:]]; cli.main()"


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments], stderr=subprocess.PIPE, **options
    )


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
    assert out.decode().rstrip().endswith("79 rounds give 95%.")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_progress_goes_to_the_terminal_and_the_answer_to_the_pipe() -> None:
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "solve", "--preset", "sound/queue", "--json"],
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
