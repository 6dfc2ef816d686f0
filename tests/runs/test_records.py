"""What is recorded of a run: backlog, costs, waits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from covertfl.decision.policy import QueueTable
from covertfl.decision.problem import QueueProblem
from covertfl.runs.records import summarise
from covertfl.schemes.scheduled import Scheduled
from covertfl.solvers.constrained import solve_queue
from tests.support.played_runs import build, play, play_queue
from tests.support.small_runs import DRAWN_QUEUE


def test_backlog_follows_the_dynamics_of_the_problem() -> None:
    federation, final, records, updates = play_queue(rounds=400)
    capacity, backlog, lost = 6, 0, 0
    for record in records:
        assert record["backlog"] == backlog
        served = int(record["updated"])
        assert served == (record["action"] == "learn" and record["accepted"] and backlog > 0)
        after = backlog + record["arrival"] - served
        assert record["lost"] == max(after - capacity, 0)
        backlog, lost = min(after, capacity), lost + record["lost"]
        assert record["backlog_after"] == backlog
    summary = summarise(federation, final)
    assert lost == summary["lost_updates"] == final.queue.lost > 0
    assert summary["updates_done"] == len(updates) == sum(record["updated"] for record in records)
    assert summary["updates_missing"] == backlog


def test_costs_are_those_of_the_records() -> None:
    for charged, full in (("always", 0.0), ("when-obfuscating", 2.5)):
        cost = {"learning": {"shape": "linear", "scale": 0.6, "charged": charged}}
        federation, final, records, _ = play_queue(rounds=300, cost=cost, queue={"full_cost": full})
        privacy = learning = 0.0
        for record in records:
            learns = record["action"] == "learn"
            paid = [1.8, 0.8, 0.3][record["oracle_state"]] if learns else 0.0
            owed = 0.6 * record["backlog"] if charged == "always" or not learns else 0.0
            owed += full if not learns and record["backlog"] == 6 else 0.0
            owed += 5.0 * record["lost"]
            assert record["privacy_cost"] == paid
            assert record["learning_cost"] == pytest.approx(owed)
            privacy, learning = privacy + paid, learning + owed
        summary = summarise(federation, final)
        assert summary["average_privacy_cost"] == pytest.approx(privacy / 300)
        assert summary["average_learning_cost"] == pytest.approx(learning / 300)
        assert summary["learning_limit"] == 3.0


def test_costs_by_state_and_arrivals_by_size_are_those_of_the_records() -> None:
    factors, sizes = [0.5, 1.0, 3.0], {"1": 0.1, "3": 0.05}
    cost = {"learning": {"shape": "linear", "scale": 0.6, "by_state": factors}}
    queue = {"arrival_prob": None, "arrival_size": None, "arrival_sizes": sizes}
    federation, final, records, _ = play_queue(rounds=600, cost=cost, queue=queue)
    assert isinstance(federation.scheme, Scheduled)
    policy = federation.scheme.policy.policy
    assert isinstance(policy, QueueTable) and policy.table.shape == (3, 3, 7)
    learning = 0.0
    for record in records:
        owed = factors[record["oracle_state"]] * 0.6 * record["backlog"] + 5.0 * record["lost"]
        assert record["learning_cost"] == pytest.approx(owed)
        index = [0, 1, 3].index(record["arrival"])
        prob = policy.table[record["oracle_state"], index, record["backlog"]]
        assert record["learn_prob"] == prob
        learning += owed
    for size, prob in ((1, 0.1), (3, 0.05)):
        came = sum(record["arrival"] == size for record in records)
        assert stats.binomtest(came, 600, prob).pvalue > 1e-3
    summary = summarise(federation, final)
    assert summary["average_learning_cost"] == pytest.approx(learning / 600)


def test_waits_and_littles_law() -> None:
    """sum of backlogs = waits of those done + waits so far of those still owed, exactly."""
    federation, final, records, updates = play_queue(rounds=500)
    waits = sum(update["done"] - update["came"] for update in updates)
    owed = sum((500 - task.came) * task.left for task in final.queue.tasks)
    backlogs = sum(record["backlog"] for record in records)
    assert backlogs == waits + owed
    summary = summarise(federation, final)
    assert summary["mean_wait"] == pytest.approx(waits / len(updates))
    assert summary["little_wait"] == pytest.approx(backlogs / len(updates))


@pytest.mark.slow
def test_the_two_means_of_waits_come_together() -> None:
    federation, final, _, _ = play_queue(rounds=2000, seed=5)
    summary = summarise(federation, final)
    assert summary["little_wait"] == pytest.approx(summary["mean_wait"], rel=0.05)
    assert summary["mean_wait"] > 3.0


def test_updates_are_done_in_the_order_they_came() -> None:
    _, _, records, updates = play_queue(rounds=500)
    assert [update["came"] for update in updates] == sorted(update["came"] for update in updates)
    assert [update["done"] for update in updates] == [r["round"] for r in records if r["updated"]]
    arrivals = {record["round"] for record in records if record["arrival"]}
    assert {update["came"] for update in updates} <= arrivals


def test_tasks_that_were_lost_are_not_finished() -> None:
    federation, final, records, updates = play_queue(
        rounds=300, policy={"kind": "always-obfuscate"}
    )
    summary = summarise(federation, final)
    assert summary["tasks_arrived"] == sum(record["arrival"] > 0 for record in records) > 10
    assert summary["tasks_finished"] == 0
    assert summary["mean_wait"] is None
    assert summary["lost_updates"] == 2 * summary["tasks_arrived"] - 6
    assert updates == []
    federation, final, records, updates = play_queue(rounds=300, policy={"kind": "greedy"})
    assert summarise(federation, final)["tasks_finished"] == sum(
        update["finished"] for update in updates
    )


@pytest.mark.slow
def test_a_long_run_has_the_averages_of_the_exact_solution() -> None:
    federation = build(DRAWN_QUEUE, rounds=1500)
    problem = federation.problem
    assert isinstance(problem, QueueProblem)
    exact = solve_queue(problem).evaluation
    privacy, learning = [], []
    for seed in range(10):
        final, *_ = play(build(DRAWN_QUEUE, rounds=1500, seed=seed))
        privacy.append(final.totals["privacy_cost"] / final.round)
        learning.append(final.totals["learning_cost"] / final.round)
    for values, expected in ((privacy, exact.privacy_cost), (learning, exact.learning_cost)):
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - expected) < 4.0 * error
