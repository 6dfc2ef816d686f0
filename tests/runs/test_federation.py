"""A run, round by round: what happens whatever is done, what is decided, and what is recorded."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from scipy import stats

from covertfl.decision.oracle import compute_stationary_distribution
from covertfl.decision.policy import HorizonTable
from covertfl.decision.problem import QueueProblem
from covertfl.engines.simulated import drive
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs import clients as client_answers
from covertfl.runs import federation as federation_module
from covertfl.runs import function as function_answers
from covertfl.runs import world
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.clients import ClientAnswers
from covertfl.runs.federation import (
    ClientWork,
    Federation,
    decide,
    draw_arrival,
    draw_oracle_state,
    run_rounds,
    start_run,
    summarise,
)
from covertfl.runs.folder import RunFolder
from covertfl.runs.function import FunctionAnswers
from covertfl.runs.learner import Reply
from covertfl.runs.state import RunState, pack_state, unpack_state
from covertfl.seeding import Stream, make_generator, make_generator_and_seed
from covertfl.solvers.constrained import solve_queue
from tests.support.small_runs import FUNCTION_QUEUE, HORIZON, QUEUE, make_run

FUNCTION_HORIZON = {
    **{key: value for key, value in HORIZON.items() if key not in ("data", "federation")},
    "task": "function",
}
Records = list[dict[str, Any]]


class MemoryFolder:
    """Takes what a run records, and keeps it in memory."""

    def __init__(self) -> None:
        self.records: dict[str, Records] = {}
        self.checkpoints: list[Checkpoint] = []

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        return vector.tobytes().hex()

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        for record in records:
            self.records.setdefault(name, []).append(json.loads(json.dumps(record)))

    def seal(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.append(checkpoint)


# Final state, private records and folder of a run in memory.
Played = tuple[RunState, Records, MemoryFolder]


def build(base: dict[str, Any] = HORIZON, **changes: Any) -> Federation:
    return build_federation(make_run(base, **changes), KernelCache())


def run(federation: Federation, state: RunState | None = None) -> Played:
    """Final state, private records and folder of a run in memory."""
    folder = MemoryFolder()
    rounds = run_rounds(federation, cast(RunFolder, folder), state or start_run(federation))
    [final] = drive([(federation, rounds)])
    return final, folder.records["private/rounds.jsonl"], folder


def answer(federation: Federation, spoil: Callable[[Reply], Reply]) -> Played:
    """Carry a run out with replies that `spoil` has changed."""
    folder = MemoryFolder()
    rounds = run_rounds(federation, cast(RunFolder, folder), start_run(federation))
    work = next(rounds)
    try:
        while True:
            if isinstance(work, ClientWork):
                size = len(work.weights)
                clients = work.attendance.clients[work.attendance.batches > 0].tolist()
                good = [
                    Reply(client, np.full(size, 0.01, dtype=np.float32), 100) for client in clients
                ]
                work = rounds.send([spoil(reply) for reply in good])
            else:
                work = rounds.send([job.weights for job in work.jobs])
    except StopIteration as stop:
        return stop.value, folder.records["private/rounds.jsonl"], folder


# --- whatever is done ---

ALWAYS_SAME = ("round", "oracle_state", "arrival", "clients", "batches", "examples", "accepted")


@pytest.mark.parametrize(
    ("base", "kinds", "changes"),
    [
        (HORIZON, ["optimal", "always-learn", "random", "minority"], {}),
        (HORIZON, ["greedy", "always-obfuscate"], {"federation": {"acceptance": "model"}}),
        (HORIZON, ["greedy", "optimal"], {"decoy": {"kind": "following", "count": 2}}),
        (QUEUE, ["optimal", "always-learn", "greedy", "always-obfuscate"], {}),
        (FUNCTION_QUEUE, ["optimal", "always-learn", "greedy"], {}),
    ],
)
def test_the_federation_does_not_depend_on_the_policy(
    base: dict[str, Any], kinds: list[str], changes: dict[str, Any]
) -> None:
    seen = []
    for kind in kinds:
        _, records, _ = run(build(base, policy={"kind": kind}, **changes))
        seen.append([[record[key] for key in ALWAYS_SAME] for record in records])
        if kind in ("always-learn", "always-obfuscate"):
            assert len({record["action"] for record in records}) == 1
    assert all(other == seen[0] for other in seen)
    assert len({json.dumps(row[1:]) for row in seen[0]}) > 3


def test_the_oracle_is_the_chain_of_the_problem() -> None:
    federation = build(FUNCTION_QUEUE)
    oracle = federation.problem.oracle
    moves, state = np.zeros((3, 3)), -1
    for number in range(1, 4001):
        after = draw_oracle_state(federation, state, number)
        if state >= 0:
            moves[state, after] += 1
        state = after
    for row, distribution in zip(moves, oracle.transition, strict=True):
        possible = distribution > 0
        assert row[~possible].sum() == 0
        assert stats.chisquare(row[possible], row.sum() * distribution[possible]).pvalue > 1e-3


def test_the_first_oracle_state_has_the_stationary_law() -> None:
    federation = build(FUNCTION_QUEUE)
    counts = np.zeros(3)
    for seed in range(1500):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        counts[draw_oracle_state(seeded, -1, 1)] += 1
    distribution = compute_stationary_distribution(federation.problem.oracle)
    assert stats.chisquare(counts, 1500 * distribution).pvalue > 1e-3


def test_arrivals_come_by_chance() -> None:
    federation = build(FUNCTION_QUEUE)
    sizes = [draw_arrival(federation, number) for number in range(1, 5001)]
    assert set(sizes) == {0, 2}
    assert stats.binomtest(sizes.count(2), 5000, 0.1).pvalue > 1e-3
    assert draw_arrival(build(FUNCTION_HORIZON), 1) == 0


@pytest.mark.parametrize("base", [HORIZON, FUNCTION_HORIZON])
def test_rounds_are_accepted_with_the_chances_of_the_model(base: dict[str, Any]) -> None:
    changes = {} if base is FUNCTION_HORIZON else {"federation": {"acceptance": "model"}}
    federation = build(base, rounds=1500, policy={"kind": "always-obfuscate"}, **changes)
    answerers = federation.answerers
    if base is HORIZON:
        assert isinstance(answerers, ClientAnswers)
        accepted = [
            [answerers.is_accepted(state, number, 500) for number in range(1, 1501)]
            for state in range(3)
        ]
        probs = tuple(federation.settings.problem.oracle.success)
    else:
        assert isinstance(answerers, FunctionAnswers)
        _, records, _ = run(federation)
        accepted = [
            [record["accepted"] for record in records if record["oracle_state"] == state]
            for state in range(3)
        ]
        probs = answerers.task.success
    for outcomes, prob in zip(accepted, probs, strict=True):
        assert stats.binomtest(sum(outcomes), len(outcomes), float(prob)).pvalue > 1e-3


def test_by_data_a_round_is_accepted_when_enough_examples_arrive() -> None:
    federation = build(rounds=60, policy={"kind": "greedy"})
    answerers = federation.answerers
    assert isinstance(answerers, ClientAnswers)
    total = int(answerers.sizes.sum())
    _, records, _ = run(federation)
    for record in records:
        examples = sum(
            min(batches * 20, int(answerers.sizes[client]))
            for client, batches in zip(record["clients"], record["batches"], strict=True)
        )
        assert record["examples"] == examples
        assert record["accepted"] == (examples / total >= 0.25)
        assert len(record["clients"]) == [2, 4, 6][record["oracle_state"]]
    assert {record["accepted"] for record in records} == {True, False}


@pytest.mark.parametrize("base", [HORIZON, QUEUE, FUNCTION_QUEUE])
def test_no_stream_is_drawn_from_twice(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two draws from one stream would tie, say, who takes part to what is sent."""
    federation = build(
        base,
        rounds=12,
        policy={"kind": "greedy"},
        **({} if base is FUNCTION_QUEUE else {"federation": {"acceptance": "model"}}),
    )
    opened: Counter[tuple[int, ...]] = Counter()

    def open_stream(seed: int, stream: Stream, *place: int) -> np.random.Generator:
        opened[(stream, *place)] += 1
        return make_generator(seed, stream, *place)

    def open_seeded(seed: int, stream: Stream, *place: int) -> tuple[np.random.Generator, int]:
        opened[(stream, *place)] += 1
        return make_generator_and_seed(seed, stream, *place)

    monkeypatch.setattr(client_answers, "make_generator_and_seed", open_seeded)
    for module in (client_answers, federation_module, function_answers, world):
        monkeypatch.setattr(module, "make_generator", open_stream)
    run(federation)
    assert max(opened.values()) == 1
    used = {stream for stream, *_ in opened}
    assert {Stream.ORACLE, Stream.ACTION} <= used
    if base is HORIZON:
        assert {Stream.PARTICIPATION, Stream.ACCEPTANCE, Stream.CLIENT} <= used


# --- decisions ---


def test_actions_are_drawn_with_the_chance_the_policy_gives() -> None:
    federation = build(FUNCTION_HORIZON, policy={"kind": "random"}, horizon={"rounds": 10})
    state, learned = start_run(federation), 0
    for seed in range(1000):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        decision = decide(seeded, state, seeded.policy)
        assert decision.learn_prob == pytest.approx(0.4)
        learned += decision.learns
    assert stats.binomtest(learned, 1000, 0.4).pvalue > 1e-3


def test_random_places_every_set_of_rounds_equally_often() -> None:
    federation = build(
        FUNCTION_HORIZON, policy={"kind": "random"}, horizon={"rounds": 5, "updates": 2}
    )
    placed: Counter[tuple[int, ...]] = Counter()
    for seed in range(800):
        seeded = replace(federation, settings=federation.settings.with_seed(seed))
        state, rounds = start_run(federation), []
        for number in range(1, 6):
            decision = decide(seeded, state, seeded.policy)
            if decision.learns:
                rounds.append(number)
            queries = state.learning_queries + decision.learns
            state = replace(state, round=number, learning_queries=queries)
        placed[tuple(rounds)] += 1
    assert len(placed) == 10
    assert stats.chisquare(list(placed.values())).pvalue > 1e-3


def test_several_decoys_are_queried_equally_often() -> None:
    federation = build(decoy={"kind": "random", "count": 3}, policy={"kind": "always-obfuscate"})
    state = start_run(federation)
    counts: Counter[int] = Counter()
    for number in range(1500):
        counts[decide(federation, replace(state, round=number), federation.policy).trajectory] += 1
    assert set(counts) == {1, 2, 3}
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_which_decoy_is_queried_does_not_move_the_actions() -> None:
    actions = [
        [record["action"] for record in run(build(decoy={"count": count}))[1]] for count in (1, 2)
    ]
    assert actions[0] == actions[1]


# --- what each policy does to the model ---


def test_greedy_stops_when_nothing_is_owed() -> None:
    final, records, _ = run(build(policy={"kind": "greedy"}, rounds=30))
    assert final.queue.backlog == 0
    assert final.learner.updates == 4
    assert all((record["action"] == "learn") == (record["backlog"] > 0) for record in records)


def test_always_learn_goes_on_when_nothing_is_owed() -> None:
    final, records, _ = run(build(policy={"kind": "always-learn"}, rounds=30))
    accepted = sum(record["accepted"] for record in records)
    assert final.learner.updates == accepted > 4
    assert final.exposure == 1.0
    assert [record["updated"] for record in records] == [record["accepted"] for record in records]


def test_always_obfuscate_never_moves_the_model() -> None:
    federation = build(policy={"kind": "always-obfuscate"})
    final, records, _ = run(federation)
    assert final.learner.true is not None
    assert final.learner.true.tobytes() == start_run(federation).learner.true.tobytes()
    assert final.exposure == 0.0
    assert summarise(federation, final)["updates_missing"] == 4
    moved = sum(record["accepted"] for record in records)
    assert final.learner.moves == (moved,)


def test_random_uses_every_reply() -> None:
    federation = build(policy={"kind": "random"}, federation={"min_share": 1.0})
    final, records, _ = run(federation)
    learned = [record for record in records if record["action"] == "learn"]
    assert len(learned) == 4
    assert not any(record["accepted"] for record in records)
    assert all(record["updated"] == (record["examples"] > 0) for record in learned)
    assert final.learner.updates > 0


def test_minority_never_learns_in_half_of_the_rounds() -> None:
    for seed in range(5):
        final, _, _ = run(build(policy={"kind": "minority"}, seed=seed))
        assert 2 * final.learning_queries < 12


def test_optimal_with_measured_chances_is_not_that_of_the_printed_ones() -> None:
    measured, printed = build(), build(federation={"acceptance": "model"})
    tables = measured.policy.policy, printed.policy.policy
    assert isinstance(tables[0], HorizonTable)
    assert isinstance(tables[1], HorizonTable)
    assert not np.array_equal(tables[0].table, tables[1].table)
    assert measured.measured is not None
    assert printed.measured is not None
    np.testing.assert_array_equal(measured.problem.oracle.success, measured.measured)
    np.testing.assert_array_equal(printed.problem.oracle.success, [0.2, 0.5, 0.9])
    np.testing.assert_allclose(printed.measured, measured.measured, atol=0.02)


def test_an_ungated_decoy_moves_in_every_obfuscating_round() -> None:
    policy = {"kind": "always-obfuscate"}
    gated, records, _ = run(build(policy=policy))
    free, _, _ = run(build(policy=policy, decoy={"gated": False}))
    assert free.learner.moves == (12,)
    assert gated.learner.moves == (sum(record["accepted"] for record in records),)


def test_only_the_trajectory_that_was_queried_moves() -> None:
    _, records, folder = run(build(decoy={"count": 2}, rounds=30, policy={"kind": "greedy"}))
    arrays = [checkpoint.arrays for checkpoint in folder.checkpoints]
    names = ("true", "decoy-1", "decoy-2")
    queried = set()
    for record, before, after in zip(records[1:], arrays, arrays[1:], strict=False):
        for number, name in enumerate(names):
            if number != record["trajectory"]:
                assert before[name].tobytes() == after[name].tobytes()
        queried.add(record["trajectory"])
    assert queried == {0, 1, 2}


# --- faulty clients ---


def test_a_round_with_nothing_valid_is_failed_and_moves_nothing() -> None:
    federation = build(policy={"kind": "greedy"})
    final, records, _ = answer(
        federation, lambda reply: replace(reply, values=np.full_like(reply.values, np.nan))
    )
    assert not any(record["accepted"] or record["updated"] for record in records)
    assert final.learner.true.tobytes() == start_run(federation).learner.true.tobytes()
    assert final.queue.backlog == 4
    sent = sum(sum(batches > 0 for batches in record["batches"]) for record in records)
    summary = summarise(federation, final)
    assert summary["rejected_replies"] == sent > 10
    assert summary["rejected_by_reason"] == {"not finite": sent}
    assert not summary["completed"]
    for record in records:
        present = [c for c, b in zip(record["clients"], record["batches"], strict=True) if b > 0]
        assert record["rejected"] == [[client, "not finite"] for client in present]
        assert record["examples"] == 0


@pytest.mark.parametrize("acceptance", ["data", "model"])
def test_refused_replies_bring_no_examples_and_leave_no_trace(acceptance: str) -> None:
    faults = {
        0: lambda reply: replace(reply, values=reply.values.astype(np.float64)),
        1: lambda reply: replace(reply, values=reply.values[:-1]),
        2: lambda reply: replace(reply, examples=True),
        3: lambda reply: replace(reply, values=[1.0]),
        4: lambda reply: replace(reply, examples=10**12),
    }
    federation = build(
        policy={"kind": "always-learn"},
        rounds=30,
        federation={"acceptance": acceptance, "min_share": 0.05},
    )
    final, records, _ = answer(
        federation, lambda reply: faults.get(reply.client, lambda good: good)(reply)
    )
    by_reason = Counter(reason for record in records for _, reason in record["rejected"])
    assert summarise(federation, final)["rejected_by_reason"] == by_reason
    assert set(by_reason) == {"wrong dtype", "wrong shape", "bad example count", "wrong type"}
    for record in records:
        present = dict(zip(record["clients"], record["batches"], strict=True))
        assert record["examples"] == (100 if present.get(5, 0) > 0 else 0)
        assert not (record["updated"] and record["examples"] == 0)
    assert final.learner.updates > 0
    np.testing.assert_array_equal(final.learner.true, np.full_like(final.learner.true, 0.01))


# --- the queue ---


def play_queue(**changes: Any) -> tuple[Federation, RunState, Records, Records]:
    federation = build(FUNCTION_QUEUE, **changes)
    final, records, folder = run(federation)
    return federation, final, records, folder.records.get("private/updates.jsonl", [])


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
    federation = build(FUNCTION_QUEUE, rounds=1500)
    problem = federation.problem
    assert isinstance(problem, QueueProblem)
    exact = solve_queue(problem).evaluation
    privacy, learning = [], []
    for seed in range(10):
        final, *_ = run(build(FUNCTION_QUEUE, rounds=1500, seed=seed))
        privacy.append(final.totals["privacy_cost"] / final.round)
        learning.append(final.totals["learning_cost"] / final.round)
    for values, expected in ((privacy, exact.privacy_cost), (learning, exact.learning_cost)):
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - expected) < 4.0 * error


# --- states ---


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (HORIZON, {"decoy": {"count": 2}, "policy": {"kind": "greedy"}}),
        (HORIZON, {"federation": {"algorithm": "fedsgd"}, "policy": {"kind": "greedy"}}),
        (QUEUE, {}),
        (FUNCTION_QUEUE, {}),
    ],
)
def test_a_run_goes_on_from_any_checkpoint(base: dict[str, Any], changes: dict[str, Any]) -> None:
    federation = build(base, **changes)
    final, records, folder = run(federation)
    for checkpoint in folder.checkpoints[:: max(len(records) // 4, 1)]:
        facts = json.loads(json.dumps({**checkpoint.facts, "round": checkpoint.round}))
        state = unpack_state(replace(checkpoint, facts=facts), iter(records[: checkpoint.round]))
        if state.round == len(records):
            continue
        again, later, _ = run(federation, state)
        assert later == records[state.round :]
        assert again.learner.true.tobytes() == final.learner.true.tobytes()
        layout = federation.answerers.layout
        assert pack_state(again, layout).facts == pack_state(final, layout).facts
        assert again.seen == final.seen
        assert summarise(federation, again) == summarise(federation, final)
