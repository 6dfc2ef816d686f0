"""Policies of runs: what each kind means, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from covertfl.decision.policy import HorizonTable, Observation, QueueTable
from covertfl.decision.policy_file import read_policy, write_policy
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.decision.states import OracleStates
from covertfl.errors import Infeasible, InvalidInput
from covertfl.runs.train import with_success
from covertfl.schemes.policies import PolicyKind, PolicySection, RunPolicy, make_run_policy
from covertfl.schemes.scheduled import Scheduled
from covertfl.solvers.backward_induction import solve_horizon
from covertfl.solvers.constrained import solve_queue
from covertfl.solvers.minority import solve_minority
from covertfl.solvers.spga import settings
from tests.support.played_runs import build
from tests.support.small_runs import DRAWN_QUEUE, HORIZON, QUEUE, make_run

HORIZON_PROBLEM = cast(FiniteHorizon, make_run(HORIZON).problem)
QUEUE_PROBLEM = cast(QueueProblem, make_run(QUEUE).problem)


def make(kind: PolicyKind, problem: Problem = HORIZON_PROBLEM, **keys: Any) -> RunPolicy:
    return make_run_policy(PolicySection(kind=kind, **keys), problem, seed=1)


def ask(run_policy: RunPolicy, **known: int) -> float:
    observation = Observation(**{"oracle_state": 0, "backlog": 1, "rounds_left": 5} | known)
    return float(run_policy.policy.learn_prob(observation))


@pytest.mark.parametrize("problem", [HORIZON_PROBLEM, QUEUE_PROBLEM])
def test_greedy_learns_until_nothing_is_owed(problem: Problem) -> None:
    policy = make("greedy", problem)
    assert [ask(policy, backlog=backlog) for backlog in (0, 1, 4)] == [0.0, 1.0, 1.0]
    assert not policy.updates_unowed
    assert not policy.takes_every_reply


@pytest.mark.parametrize("problem", [HORIZON_PROBLEM, QUEUE_PROBLEM])
def test_always_learn_learns_and_updates_whatever_is_owed(problem: Problem) -> None:
    policy = make("always-learn", problem)
    assert [ask(policy, backlog=backlog) for backlog in (0, 1, 4)] == [1.0, 1.0, 1.0]
    assert policy.updates_unowed
    assert not policy.takes_every_reply


@pytest.mark.parametrize("problem", [HORIZON_PROBLEM, QUEUE_PROBLEM])
def test_always_obfuscate_never_learns(problem: Problem) -> None:
    policy = make("always-obfuscate", problem)
    assert [ask(policy, backlog=backlog) for backlog in (0, 1, 4)] == [0.0, 0.0, 0.0]


def test_random_places_as_many_queries_as_updates_and_takes_every_reply() -> None:
    policy = make("random")
    assert policy.takes_every_reply
    assert policy.updates_unowed
    assert ask(policy, rounds_left=12, learning_queries=0) == pytest.approx(4 / 12)
    assert ask(policy, rounds_left=4, learning_queries=0) == 1.0
    assert ask(policy, rounds_left=4, learning_queries=4) == 0.0
    crowded = make("random", make_run(rounds=2).problem)
    assert ask(crowded, rounds_left=2) == 1.0


def test_optimal_is_the_exact_solution() -> None:
    horizon, queue = make("optimal").policy, make("optimal", QUEUE_PROBLEM).policy
    assert isinstance(horizon, HorizonTable)
    assert isinstance(queue, QueueTable)
    np.testing.assert_array_equal(horizon.table, solve_horizon(HORIZON_PROBLEM).policy.table)
    np.testing.assert_array_equal(queue.table, solve_queue(QUEUE_PROBLEM).policy.table)


def test_minority_is_that_of_the_formula() -> None:
    policy, expected = make("minority").policy, solve_minority(HORIZON_PROBLEM).policy
    for rounds_left in range(1, 13):
        for backlog in range(5):
            for queries in range(13 - rounds_left):
                observation = Observation(1, backlog, 0, rounds_left, queries)
                assert policy.learn_prob(observation) == expected.learn_prob(observation)


@pytest.mark.parametrize("problem", [HORIZON_PROBLEM, QUEUE_PROBLEM])
def test_spga_finds_the_same_for_a_seed_and_never_learns_when_idle(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = partial(settings.horizon_settings, iterations=100)
    monkeypatch.setattr(settings, "horizon_settings", shorter)
    first, second = make("spga", problem), make("spga", problem)
    assert type(first.policy) is (HorizonTable if problem is HORIZON_PROBLEM else QueueTable)
    assert isinstance(first.policy, HorizonTable | QueueTable)
    assert isinstance(second.policy, HorizonTable | QueueTable)
    np.testing.assert_array_equal(first.policy.table, second.policy.table)
    assert ask(first, backlog=0) == 0.0
    assert first.policy.table.max() > 0.0


@pytest.mark.parametrize("kind", ["random", "minority"])
def test_some_kinds_need_a_horizon(kind: PolicyKind) -> None:
    with pytest.raises(InvalidInput, match=rf"\[policy\] kind = {kind} needs"):
        make(kind, QUEUE_PROBLEM)


def test_with_other_success_chances_the_rest_stays() -> None:
    changed = with_success(HORIZON_PROBLEM, np.array([0.0, 0.5, 1.0]))
    assert changed.oracle.success.tolist() == [0.0, 0.5, 1.0]
    assert HORIZON_PROBLEM.oracle.success.tolist() == [0.2, 0.5, 0.9]
    np.testing.assert_array_equal(changed.oracle.transition, HORIZON_PROBLEM.oracle.transition)
    assert isinstance(changed, FiniteHorizon)
    assert changed.rounds == HORIZON_PROBLEM.rounds


# --- files ---


def test_a_policy_file_is_used_as_it_is(tmp_path: Path) -> None:
    table = np.random.default_rng(0).random((12, 3, 5))
    table[:, :, 0] = 0.0
    write_policy(tmp_path / "p.json", HorizonTable(table))
    policy = make("file", path=str(tmp_path / "p.json"))
    assert ask(policy, oracle_state=2, backlog=3, rounds_left=7) == table[6, 2, 3]


@pytest.mark.parametrize(
    ("policy", "problem", "said"),
    [
        (
            QueueTable(np.zeros((3, 2, 7))),
            HORIZON_PROBLEM,
            "for a horizon is needed, got one for a queue",
        ),
        (
            HorizonTable(np.zeros((12, 3, 5))),
            QUEUE_PROBLEM,
            "for a queue is needed, got one for a horizon",
        ),
        (HorizonTable(np.zeros((12, 2, 5))), HORIZON_PROBLEM, "3 oracle states, got 2"),
        (QueueTable(np.zeros((4, 2, 7))), QUEUE_PROBLEM, "3 oracle states, got 4"),
        (HorizonTable(np.zeros((12, 3, 4))), HORIZON_PROBLEM, "backlogs up to 4, got 3"),
    ],
)
def test_a_policy_for_another_problem_is_refused(
    tmp_path: Path, policy: HorizonTable | QueueTable, problem: Problem, said: str
) -> None:
    path = tmp_path / "p.json"
    write_policy(path, policy)
    with pytest.raises(InvalidInput, match=said) as caught:
        make("file", problem, path=str(path))
    assert "p.json" in str(caught.value)


def test_a_policy_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.json"):
        make("file", path=str(tmp_path / "none.json"))


def test_a_policy_for_other_arrivals_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    write_policy(path, QueueTable(np.zeros((3, 3, 7))))
    policy = {"kind": "file", "path": str(path)}
    with pytest.raises(InvalidInput, match="must be for 2 arrival states, none and 1 sizes, got 3"):
        build(DRAWN_QUEUE, policy=policy)
    sizes = {"arrival_prob": None, "arrival_size": None, "arrival_sizes": {"1": 0.1, "3": 0.05}}
    scheme = build(DRAWN_QUEUE, policy=policy, queue=sizes).scheme
    assert isinstance(scheme, Scheduled)
    assert isinstance(scheme.policy.policy, QueueTable)


def test_a_policy_found_on_a_log_is_for_the_states_of_its_fit(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    states = {"column": "clients", "cuts": [3.0, 5.0]}
    table = HorizonTable(np.zeros((12, 3, 5)))
    write_policy(path, table, OracleStates("clients", (3.0, 5.0), min_examples=9.0))
    assert json.loads(path.read_text())["states"] == states
    np.testing.assert_array_equal(read_policy(path).table, table.table)
    section = {"kind": "file", "path": str(path)}
    build(HORIZON, policy=section, states=states)
    with pytest.raises(InvalidInput, match=r"clients cut at \[3.0, 5.0\], got a problem that does"):
        build(HORIZON, policy=section)
    with pytest.raises(InvalidInput, match=r"got a problem with states by clients cut at \[3.0, 6"):
        build(HORIZON, policy=section, states={"column": "clients", "cuts": [3.0, 6.0]})
    path.write_text('{"problem": "horizon", "learn_prob": [], "states": {"cuts": [1]}}')
    with pytest.raises(InvalidInput, match="states must have a column and cuts"):
        build(HORIZON, policy=section, states=states)


def test_a_queue_that_the_federation_cannot_serve_says_how_to_go_on() -> None:
    unserved: dict[str, Any] = {"queue": {"learning_limit": 0.01}, "federation": {"min_share": 0.4}}
    with pytest.raises(Infeasible) as refusal:
        build(QUEUE, **unserved)
    message = str(refusal.value)
    assert message.startswith("run.toml: learning_limit = 0.01 cannot be met")
    assert "in this federation, and 0.2, 0.5, 0.9 in the problem: raise participation" in message
    assert "or set acceptance = model" in message
    unserved["federation"]["acceptance"] = "model"
    with pytest.raises(Infeasible, match=r"^learning_limit = 0.01 cannot be met.*[0-9]$"):
        build(QUEUE, **unserved)
