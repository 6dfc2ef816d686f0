"""Rounds replayed from a log: states, acceptance and attendance as recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from covertfl.decision.states import OracleStates
from covertfl.errors import InvalidInput
from covertfl.fitting.log import read_log
from covertfl.fitting.oracle import fit_oracle
from covertfl.fitting.problem import format_problem
from covertfl.runs.participation import (
    RecordedRounds,
    attend_recorded,
    classify_clients,
    count_batches,
    infer_state,
    read_recorded,
    replay_log,
)
from covertfl.runs.settings import build_run
from tests.support.example_log import EXAMPLE_LOG
from tests.support.small_runs import make_run

STATES = OracleStates("clients", (4.0, 6.0), (2, 5, 6), None, 50.0)


def write(folder: Path, *rows: str, header: str = "round,clients,examples,success,arrival") -> Path:
    path = folder / "log.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rounds_without_cuts_belong_to_the_nearest_state() -> None:
    states = classify_clients([0.0, 5.0, 7.0, 7.5, 8.0, 14.0, 15.0, 16.0, 99.0], [5, 10, 20])
    np.testing.assert_array_equal(states, [0, 0, 0, 0, 1, 1, 1, 2, 2])
    for count in range(100):
        state = int(classify_clients(float(count), [5, 10, 20]))
        distances = np.abs(np.array([5, 10, 20]) - count)
        assert distances[state] == distances.min()


@pytest.mark.parametrize("column", ["clients", "examples"])
@pytest.mark.parametrize("least", [None, 6800.0])
def test_the_log_behind_a_fit_is_replayed_as_it_was_fitted(
    tmp_path: Path, column: str, least: float | None
) -> None:
    text = EXAMPLE_LOG.read_text().splitlines()
    rows = [f"{row},{number % 3 == 0:d}" for number, row in enumerate(text[1:])]
    log = read_log(write(tmp_path, *rows, header=text[0] + ",success"))
    fitted = fit_oracle(log, column=column, min_examples=least)
    recorded = replay_log(log, [5, 10, 20], fitted.meaning)
    np.testing.assert_array_equal(recorded.states, fitted.states)
    np.testing.assert_array_equal(recorded.success, fitted.succeeded)
    np.testing.assert_array_equal(recorded.arrivals, fitted.arrivals)
    np.testing.assert_array_equal(recorded.measure_success(3), fitted.oracle.success)


def test_a_log_is_replayed_column_by_column(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, "1,5,60,0,0", "2,20,40,1,4", "3,11,49,true,0"))
    recorded = replay_log(log, [5, 10, 20])
    np.testing.assert_array_equal(recorded.clients, [5, 20, 11])
    np.testing.assert_array_equal(recorded.states, [0, 2, 1])
    np.testing.assert_array_equal(recorded.success, [0, 1, 1])
    np.testing.assert_array_equal(recorded.arrivals, [0, 4, 0])
    by_cuts = replay_log(log, [5, 10, 20], STATES)
    np.testing.assert_array_equal(by_cuts.states, [1, 2, 2])
    np.testing.assert_array_equal(by_cuts.success, [1, 0, 0])


def test_a_log_may_say_nothing_of_success_and_arrivals(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, "1,5", header="round,clients"))
    recorded = replay_log(log, [5, 10, 20])
    assert recorded.success is None and recorded.arrivals is None and recorded.examples is None
    assert recorded.measure_success(3) is None


def test_a_log_of_quality_needs_no_clients(tmp_path: Path) -> None:
    log = read_log(write(tmp_path, "1,0.1,0", "2,0.9,1", header="round,quality,success"))
    recorded = replay_log(log, [3, 4], OracleStates("quality", (0.5,)))
    np.testing.assert_array_equal(recorded.states, [0, 1])
    np.testing.assert_array_equal(recorded.clients, [3, 4])
    with pytest.raises(InvalidInput, match="no column clients"):
        replay_log(log, [3, 4])


@pytest.mark.parametrize(
    ("row", "states", "said"),
    [
        ("1,4.5,9,1,0", None, "clients must be a whole number to be replayed, got 4.5 in round 1"),
        ("1,0,9,1,0", None, "a success needs clients, got 0 in round 1"),
        ("1,5,9,1,0", OracleStates("quality", (1.0,)), "no column quality to use"),
    ],
)
def test_a_log_that_cannot_be_replayed(
    tmp_path: Path, row: str, states: OracleStates | None, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        replay_log(read_log(write(tmp_path, row)), [5, 10, 20], states)


@given(
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=8),
    batch_size=st.integers(1, 30),
    examples=st.floats(0, 500) | st.none(),
    accepted=st.booleans() | st.none(),
    data=st.data(),
)
def test_the_examples_of_a_round_are_divided_among_its_clients(
    sizes: list[int],
    batch_size: int,
    examples: float | None,
    accepted: bool | None,
    data: st.DataObject,
) -> None:
    count = data.draw(st.integers(0, len(sizes)))
    recorded = RecordedRounds(
        np.array([count]),
        np.array([0]),
        None if examples is None else np.array([examples]),
        None if accepted is None else np.array([accepted]),
    )
    generator = np.random.default_rng(data.draw(st.integers(0, 100)))
    drawn = attend_recorded(np.array(sizes), batch_size, recorded, 1, generator=generator)
    most = count_batches(np.array(sizes)[drawn.clients], batch_size)
    assert len(set(drawn.clients.tolist())) == count
    assert np.all((drawn.batches >= 0) & (drawn.batches <= most))
    if accepted:
        assert drawn.batches.sum() >= min(1, most.sum())
    if examples is not None:
        wanted = max(round(examples / batch_size), bool(accepted))
        assert drawn.batches.sum() == min(wanted, most.sum())
        if drawn.batches.sum() >= np.count_nonzero(most):
            assert np.all(drawn.batches[most > 0] > 0)


def test_which_batches_are_done_is_a_uniform_choice() -> None:
    """Beyond the first batch of each client, against the hypergeometric distribution."""
    recorded = RecordedRounds(np.array([2]), np.array([0]), np.array([60.0]))
    generator = np.random.default_rng(4)
    counts = np.zeros(5)
    for _ in range(4000):
        drawn = attend_recorded(np.array([50, 30]), 10, recorded, 1, generator=generator)
        counts[drawn.batches[0] - 1] += 1
    expected = 4000 * stats.hypergeom(6, 4, 4).pmf(np.arange(5))
    possible = expected > 0
    assert stats.chisquare(counts[possible], expected[possible]).pvalue > 1e-3
    assert counts[~possible].sum() == 0


SECTION: dict[str, Any] = {"column": "clients", "cuts": [4.0, 6.0], "participation": [3, 5, 6]}


def test_the_problem_determines_the_clients_by_state_unless_the_run_file_does() -> None:
    own = make_run(federation={"participation": None}, states=SECTION)
    assert own.sections.federation.participation == [3, 5, 6]
    assert make_run(states=SECTION, federation={"participation": [1, 5, 6]}).states == own.states
    assert [infer_state(own, clients) for clients in range(7)] == [0, 0, 0, 0, 1, 1, 2]
    nearest = make_run(federation={"participation": [3, 5, 6]})
    assert [infer_state(nearest, clients) for clients in range(7)] == [0, 0, 0, 0, 0, 1, 2]
    quality = {"column": "quality", "cuts": [0.2, 0.5]}
    everyone = make_run(federation={"participation": None}, states=quality)
    assert everyone.sections.federation.participation == [6, 6, 6]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": {"participation": [2, 3, 6]}}, r"participation\[1\] .* got 3, .* state 0"),
        ({"federation": {"participation": [2, 6]}}, "must have 3 numbers, one for each"),
        ({"federation": {"participation": [2, 4, 7]}}, "at most clients = 6, got 7"),
        ({"states": {"participation": [3, 5, 9]}}, "at most clients = 6, got 9"),
        ({"states": {"min_examples": 9.0}, "federation": {"min_share": 0.5}}, "exclude each other"),
        ({"states": {"cuts": [4.0]}}, "must have 2 numbers, one more than cuts"),
    ],
)
def test_a_federation_that_does_not_match_its_states_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    base = {"federation": {"participation": None}, "states": SECTION}
    with pytest.raises(InvalidInput, match=said) as caught:
        make_run(**{key: {**base.get(key, {}), **changes.get(key, {})} for key in base})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"states": {"column": "quality", "cuts": [0.2, 0.5]}}, "column must be clients with"),
        ({"federation": {"log": "log.csv"}}, "log is replayed by simulated clients"),
    ],
)
def test_a_deployment_can_only_count_its_nodes(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make_run(**changes, engine={"kind": "flower", "mode": "deployment"})
    make_run(**changes, engine={"kind": "flower"})


def test_a_log_with_gaps_is_replayed_in_the_states_that_it_was_fitted_with(tmp_path: Path) -> None:
    rows = [f"{number},{clients},{100 * clients}" for number, clients in enumerate([5, 9, 20] * 9)]
    rows[4] = "4,,900"
    path = write(tmp_path, *rows[:12], *rows[15:], header="round,clients,examples")
    log = read_log(path, gaps="skip")
    fitted = fit_oracle(log, min_examples=1000.0)
    problem = tmp_path / "problem.toml"
    problem.write_text(format_problem(fitted))
    keys: dict[str, Any] = {"federation": {"log": str(path)}, "problem": str(problem)}
    settings = build_run({"task": "digits", "rounds": 20, **keys}, "run.toml", folder=tmp_path)
    recorded = read_recorded(settings)
    assert recorded is not None
    assert recorded.states.tolist() == fitted.states.tolist()
    assert recorded.success is not None
    assert recorded.success.tolist() == fitted.succeeded.tolist()


def test_a_log_needs_to_know_what_the_states_stand_for(tmp_path: Path) -> None:
    content: dict[str, Any] = {"task": "digits", "federation": {"log": "log.csv"}}
    with pytest.raises(InvalidInput, match=r"run.toml: \[federation\] log needs a problem that"):
        build_run(content, "run.toml", folder=tmp_path)
    content["federation"] = {"log": "log.csv", "participation": [5, 10, 20]}
    assert build_run(content, "run.toml", folder=tmp_path).states is None
