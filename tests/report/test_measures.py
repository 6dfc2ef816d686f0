"""Figures computed from records, against numbers worked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from covertfl.report.measures import (
    average_policy,
    compute_little_wait,
    find_backlog_limit,
    find_guess,
    find_wait_limit,
)
from covertfl.report.records import read_run_records
from tests.support.reports import NUM_ROUNDS, Page


def test_waits_and_little_by_hand(reported: Path) -> None:
    """Four updates owed for rounds 1..6, one less after each of 6, 9 and 12."""
    runs = [read_run_records(reported / "seed-0")]
    assert compute_little_wait(runs) == (4 * 6 + 3 * 3 + 2 * 3) / 3
    assert find_backlog_limit(runs[0]) == 6.0  # 3.0 at 0.5 for each update owed
    assert find_wait_limit(runs[0]) == 15.0  # 6 owed, 0.4 coming a round
    words = Page((reported / "report.html").read_text("utf-8")).words
    assert "9 updates waited 9.0 rounds on average; by Little's law 13.0" in words


def test_policy_map_by_hand(reported: Path) -> None:
    means, rounds = average_policy([read_run_records(reported / "seed-0")])
    assert rounds == NUM_ROUNDS and means.shape == (2, 5)
    # With four owed: rounds 1, 3, 5 see state 1 and 2, 4, 6 state 0; learning in 3 and 6.
    np.testing.assert_allclose(means[:, 4], [1 / 3, 1 / 3])
    np.testing.assert_allclose(means[:, 3], [0.0, 0.5])  # 8 | 7, 9
    np.testing.assert_allclose(means[:, 2], [0.5, 0.0])  # 10, 12 | 11
    assert np.isnan(means[:, :2]).all()


def test_a_guess_among_several_trajectories(folder: Path) -> None:
    assert find_guess(read_run_records(folder / "seed-0")) == 0.5
    path = folder / "seed-0" / "run.toml"
    text = path.read_text()
    own = '[policy]\nkind = "optimal"\n\n[decoy]\nkind = "public"\n'
    assert text.count(own) == text.count('task = "digits"\n') == 1
    text = text.replace('task = "digits"\n', 'task = "digits"\nscheme = "exchangeable"\n')
    path.write_text(text.replace(own, "[exchangeable]\ntrajectories = 4\n"))
    assert find_guess(read_run_records(folder / "seed-0")) == 0.25


def test_waits_are_limited_only_if_the_cost_is_of_the_backlog_alone(folder: Path) -> None:
    path = folder / "seed-0" / "run.toml"
    text = path.read_text()
    sizes = text.replace(
        "arrival_prob = 0.1\narrival_size = 4", "arrival_sizes = { 1 = 0.2, 2 = 0.1 }"
    )
    assert sizes != text
    path.write_text(sizes)
    assert find_wait_limit(read_run_records(folder / "seed-0")) == 6.0 / 0.4
    for factors, allowed in (("[2.0, 2.0]", 3.0), ("[1.0, 2.0]", None), ("[0.0, 0.0]", None)):
        path.write_text(text.replace("scale = 0.5", f"scale = 0.5, by_state = {factors}"))
        assert find_backlog_limit(read_run_records(folder / "seed-0")) == allowed
        wait = find_wait_limit(read_run_records(folder / "seed-0"))
        assert (wait is None) == (allowed is None)
