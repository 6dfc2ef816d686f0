"""The command `plan`: published numbers, exposures, pictures and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import QUEUE_FILE, Run, refuse, refuse_after_output


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
    lines = people.out.splitlines()
    assert (
        "16 updates in 45 rounds cannot be both covert and certain: 41 to 64% at best, "
        "depending on the first round; 79 rounds give 95%."
    ) in lines
    assert lines[-1] == (
        "2 replicas: an eavesdropper who knows the scheme but has no data is right half the time; "
        "16 updates with 95% take 115 rounds instead of 68."
    )


@pytest.mark.slow
def test_plan_prices_exchangeable_trajectories(run: Run) -> None:
    horizon = run("plan", "--preset", "sound/main", "--json").content["exchangeable"]
    prices = horizon["by_trajectories"]
    assert [price["trajectories"] for price in prices] == [1, 2, 4, 8]
    assert [price["rounds_needed"]["0.95"] for price in prices] == [68, 115, 204, 371]
    assert prices[1]["against_no_secrecy"]["0.95"] == pytest.approx(115 / 68)
    assert prices[1]["against_minority"]["0.95"] == pytest.approx(115 / 79)
    people = run("plan", "--preset", "sound/main").out
    assert "rounds needed for 95%" in people and "1.46 times" in people
    queue = run("plan", "--preset", "sound/queue", "--json").content["exchangeable"]
    assert [price["stable"] for price in queue["by_trajectories"]] == [True, False, False, False]
    assert (queue["most_trajectories"], queue["by_trajectories"][1]["load"]) == (1, 0.8)
    assert run("plan", "--preset", "sound/queue").out.splitlines()[-1] == queue["advice"]


def test_plan_says_that_exchangeable_trajectories_are_out_of_reach(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "problem.toml"
    path.write_text(
        ONE_STATE.replace("success    = [0.5]", "success    = [0.0]")
        + "[horizon]\nrounds = 6\nupdates = 2\n"
    )
    prices = run("plan", path, "--json").content["exchangeable"]["by_trajectories"]
    assert all(set(price["rounds_needed"].values()) == {None} for price in prices)
    people = run("plan", path).out
    assert people.splitlines()[-1].endswith("2 updates with 95% are out of reach.")
    assert "out of reach │" in people


@pytest.mark.slow
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
    assert "more than 1464 with step 1/m, 32 with the best constant step" in run(*arguments).out
    needed = run(*arguments, "--json").content["updates_needed"]
    assert int(needed["decreasing_step"]) == 1464
    assert needed["constant_step"] == pytest.approx(32.0)
    beyond = run("plan", "--preset", "sound/main", "--epsilon", "1e-200", "--json").content
    assert beyond["updates_needed"] == {"decreasing_step": None, "constant_step": None}
    assert "epsilon must be" in refuse(run("plan", "--preset", "sound/main", "--epsilon", "0"), 2)


@pytest.mark.slow
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


@pytest.mark.slow
def test_pictures(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run("plan", "--preset", "paper-code/queue", "--plots", tmp_path / "new").status == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["frontier.png"]
    assert run("plan", "--preset", "sound/main", "--plots", tmp_path / "main").status == 0
    assert {path.name for path in (tmp_path / "main").iterdir()} == {
        "completion.png", "thresholds.png", "exchangeable.png",
    }  # fmt: skip
    path = tmp_path / "main" / "completion.png"
    message = refuse_after_output(run("plan", "--preset", "sound/main", "--plots", path), 2)
    assert message == f"{path}: File exists"


def test_a_queue_without_a_frontier_has_no_picture(
    run: Run, queue_file: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    queue_file.write_text(QUEUE_FILE.replace("0.05", "0.5"))
    outcome = run("plan", queue_file, "--plots", tmp_path / "new", "--json")
    assert outcome.content["stable"] is False
    assert "no frontier to draw" in outcome.err
    assert list((tmp_path / "new").iterdir()) == []


# --- odd but valid ------------------------------------------------------------------------------


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
