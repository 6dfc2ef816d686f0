"""Every benchmark runs on a small case, and the compared results agree."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import covertfl as cf
from tests import ROOT
from tests.solvers.test_rare_passages import SOLVED

BENCHMARKS = ROOT / "benchmarks"


def test_every_file_can_be_imported(load: Any) -> None:
    names = [path.stem for path in BENCHMARKS.glob("*.py")]
    assert "run" in names
    for name in names:
        assert isinstance(load(name), ModuleType)


def test_exact_agrees_with_highs(load: Any) -> None:
    row = load("exact_against_highs").measure_capacity(5, repeats=1)
    assert row.num_states == 36
    assert row.difference < 1e-8
    assert row.simplex.best <= row.whole_lp.best  # the call is part of the method


def test_watching_linprog_leaves_it_as_it_was(load: Any) -> None:
    from scipy import optimize

    original = optimize.linprog
    with load("exact_against_highs").watch_linprog() as calls:
        optimize.linprog([1.0], A_ub=[[-1.0]], b_ub=[-2.0])
    assert len(calls) == 1
    assert optimize.linprog is original


def test_policy_iteration_agrees_with_mdpsolver(load: Any) -> None:
    pytest.importorskip("mdpsolver")
    run = load("average_cost_against_mdpsolver").solve_with_peer(10, parallel=False, repeats=1)
    assert run["gain_difference"] < 1e-9
    assert run["states_that_differ"] == 0


def test_exact_is_measured_in_a_process_of_its_own(load: Any) -> None:
    row = load("exact_growth").measure_capacity(10, repeats=1)
    assert row.num_states == 66
    assert row.gap < 1e-9
    assert 1e7 < row.peak_memory < 4e9


def test_growth_of_a_power_is_its_exponent(load: Any) -> None:
    growth, measurement = load("exact_growth"), load("measurement")
    sizes = [10, 100, 1000]
    timings = [measurement.Timing((2.0 * size**1.5, size**1.5)) for size in sizes]
    assert growth.fit_growth(sizes, timings) == pytest.approx(1.5)


def test_random_queues_are_solved_in_both_ways(load: Any) -> None:
    queues = load("random_queues")
    outcomes = queues.solve_many(12)
    assert [outcome.kind for outcome in outcomes] == [queues.SOLVED] * 12
    assert max(outcome.difference for outcome in outcomes) < queues.AGREEMENT
    again = queues.solve_many(12)
    assert [outcome.problem.limit for outcome in again] == [
        outcome.problem.limit for outcome in outcomes
    ]
    split = queues.solve_both(SOLVED["one state"].with_capacity(15))
    assert split.kind == queues.BOTH_REFUSE
    assert "keeps the backlog at 15..15" in split.reason


def test_backward_induction_agrees_with_pymdptoolbox(load: Any) -> None:
    pytest.importorskip("mdptoolbox")
    horizon = load("horizon_against_pymdptoolbox")
    solved = horizon.measure_size(6, 3, repeats=1)
    assert solved.row.difference < 1e-12
    assert solved.share_that_differs == 0.0
    assert horizon.measure_plan(6, 3).difference < 1e-12


def test_transitions_of_the_horizon_are_the_rounds(load: Any) -> None:
    problem = load("reference_problem").make_horizon(4, 3)
    obfuscate, learn = load("horizon_against_pymdptoolbox").build_transitions(problem)
    assert np.allclose(learn.sum(axis=1), 1.0)
    # From oracle state 1 and backlog 2: a success (0.43) and a transition to state 2 (0.2).
    assert learn[1 * 4 + 2, 2 * 4 + 1] == pytest.approx(0.43 * 0.2)
    assert obfuscate[1 * 4 + 2, 2 * 4 + 2] == pytest.approx(0.2)


def test_the_loops_of_the_policy_gradient_are_its_algorithm(load: Any) -> None:
    spga, problem = load("spga_against_loops"), load("reference_problem").make_queue(10)
    settings = spga.choose_settings(problem)
    literal, compiled = (run(problem, settings, 2) for run in (spga.run_loops, spga.run_compiled))
    np.testing.assert_allclose(literal, compiled, rtol=0.0, atol=spga.MOST_DIFFERENCE)


def read_block(name: str) -> str:
    """Return a block of docs/spga.md."""
    text = (ROOT / "docs/spga.md").read_text("utf-8")
    return text.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]


def read_rows(block: str) -> list[list[str]]:
    """Return the rows of a table, without its head."""
    lines = [line for line in block.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_sentences_about_the_ablation_are_those_of_its_table(load: Any) -> None:
    ablation, block = load("spga_page"), read_block("ablation")
    rows = read_rows(block)
    said = ablation.describe_rows(rows)
    assert block.rstrip().endswith(f"|\n\n{said}")
    (name, *_), worse = rows[-1], "gap 48.0%, learning cost 9.99 of the limit, kept by 1 of 20"
    other = [*rows[:-1], [name, "48.0%", "9.99", "1 of 20", "gives up", "", "0 of 10"]]
    assert worse in " ".join(ablation.describe_rows(other).split())
    assert worse not in " ".join(said.split())


def test_every_block_of_the_page_about_the_policy_gradient_is_made(load: Any) -> None:
    page = load("spga_page")
    for name in page.BLOCKS:
        block = read_block(name)
        assert "by `python benchmarks/spga_page.py --write" in block
        assert read_rows(block)
    names = [name for name, _ in page.list_variants(page.make_cases(1)[0])]
    assert [row[0] for row in read_rows(read_block("ablation"))] == names


def test_spread_by_hand(load: Any) -> None:
    found = load("spga_page").spread([(0.1, 0.8), (0.3, 1.04), None, (0.2, 1.06)])
    assert found == ["4", "20.0%", "30.0%", "0.80", "1.06", "2 of 4"]


def test_run_that_takes_too_long_is_ended(load: Any, tmp_path: Path) -> None:
    script = tmp_path / "sleeper.py"
    script.write_text("import sys, time\ntime.sleep(float(sys.argv[1]))\nprint('[1]')\n", "utf-8")
    run_apart = load("measurement").run_apart
    assert run_apart(str(script), (60,), limit=0.5) is None
    assert run_apart(str(script), (0,), limit=60.0) == [1]


def test_missing_solver_is_named(load: Any) -> None:
    with pytest.raises(cf.Missing, match="Nobody's solver is not installed"):
        load("measurement").load_peer("nobodys_solver", "Nobody's solver")


def test_numbers_are_short(load: Any) -> None:
    measurement = load("measurement")
    assert str(measurement.Timing((0.0123, 0.0123))) == "12.3 ms"
    assert str(measurement.Timing((1.0, 2.0, 3.0))) == "1 s (2 s)"
    assert [measurement.format_ratio(ratio) for ratio in (0.62, 4.04, 34.7, 3456.0)] == [
        "0.62",
        "4",
        "35",
        "3,500",
    ]


def test_the_page_has_a_place_for_every_section(load: Any) -> None:
    """Under the heading that the section has, unless it is one of the page about scale."""
    pages = {
        name: (ROOT / "docs" / name).read_text("utf-8") for name in ("benchmarks.md", "scale.md")
    }
    for name, place in load("run").BENCHMARKS.items():
        page = pages["scale.md" if name.startswith("flower-") else "benchmarks.md"]
        assert page.count(f"<!-- {name}: begin -->") == page.count(f"<!-- {name}: end -->") == 1
        file, _, function = place.partition(".")
        module = load(file)
        assert callable(getattr(module, function))
    headings = [line[3:] for line in pages["benchmarks.md"].splitlines() if line.startswith("## ")]
    code = "".join(path.read_text("utf-8") for path in BENCHMARKS.glob("*.py"))
    assert all(f'"{heading}"' in code for heading in headings)


def test_report_holds_table_notes_and_verdict(load: Any) -> None:
    section = load("section")
    text = section.render_markdown(
        section.Section(
            "Title",
            ("size", "time"),
            (("1", "2 s"),),
            (section.Check("fast", True), section.Check("small", False)),
            notes=("far",),
            about=("About.",),
        )
    )
    assert text == (
        "About.\n\n| size | time |\n| --- | ---: |\n| 1 | 2 s |\n\n- far\n- yes: fast\n- NO: small"
    )


def test_the_refreshed_policy_is_played_on_the_same_rounds(load: Any) -> None:
    bench = load("live_refresh")
    problem = bench.list_cases()["reference"]
    rounds = bench.draw_rounds(problem, 300, 1)
    live = bench.play(problem, rounds, every=100, looks=(100, 200))
    always = bench.play(problem, rounds, policy=bench.GreedyPolicy())
    assert live.learning[:100].sum() == 0.0
    assert live.learning[100:].sum() > 0.0
    assert always.learning.sum() == 0.0
    assert live.privacy.sum() < always.privacy.sum()
    gap, _ = bench.judge(bench.solve_queue(problem), problem.limit, live.policies[200])
    assert gap < 0.1
    again = bench.play(problem, rounds, every=100)
    assert again.privacy.tobytes() == live.privacy.tobytes()


def test_operations_of_a_convolutional_network(load: Any) -> None:
    """Two convolutions forward and their gradients, and derivatives by the second's inputs."""
    first, second, last = 36 * 8 * 9, 16 * 16 * 72, 64 * 10
    assert load("training_against_peers").count_flops("digit-cnn") == 2 * (
        2 * first + 3 * second + 3 * last
    )


def test_simulators_take_turns(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training, measurement = load("training_against_peers"), load("measurement")
    turns = []

    def run_once(simulator: Any, model: str, rounds: int, threads: int) -> Any:
        turns.append(simulator.name)
        if simulator.name == "never":
            return None
        seconds = measurement.Timing((float(len(turns)),) * rounds)
        return training.Measured(seconds, len(turns), np.zeros(1, dtype=np.float32))

    monkeypatch.setattr(training, "run_once", run_once)
    simulators = [
        training.Simulator("often", "", rounds=2, repeats=3),
        training.Simulator("never", "", repeats=2),
    ]
    often, never = training.run_repeats(simulators, "mlp", quick=False)
    assert turns == ["often", "never", "often", "never", "often"]
    assert (often.timing.seconds, often.memory) == ((1.0, 1.0, 3.0, 3.0, 5.0, 5.0), 5)
    assert never is None


def test_the_share_of_a_peak(load: Any) -> None:
    training, measurement = load("training_against_peers"), load("measurement")
    run = training.Measured(measurement.Timing((0.5, 0.25)), 0, np.zeros(1, dtype=np.float32))
    row = training.Row("mlp", training.OURS, run, run)
    # 8,000 examples of 1e6 operations in a quarter of a second
    notes = training.describe_shares([row], {"mlp": 10**6}, 64e9)
    assert notes == ("MLP 784-200-10 at 50% of sgemm peak (64 GFLOP/s)",)
