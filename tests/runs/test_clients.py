"""Which rounds are accepted, and what becomes of faulty replies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from covertfl.decision.policy import Observation
from covertfl.runs.records import summarise
from covertfl.runs.simulated import SimulatedEngine, make_client_job
from covertfl.runs.state import Federation, start_run
from covertfl.runs.train import KernelCache, build_federation
from covertfl.schemes.replies import SiftedReplies
from covertfl.schemes.scheme import Outcome, Query
from tests.support.played_runs import build, play, play_with_faults
from tests.support.small_runs import make_run

NO_ONE = np.empty(0, np.int64)
NO_REPLIES = SiftedReplies((), (), NO_ONE, ())


def find_engine(federation: Federation) -> SimulatedEngine:
    assert isinstance(federation.engine, SimulatedEngine)
    return federation.engine


def accepts(federation: Federation, state: int, number: int) -> bool:
    """Return whether a round with 500 examples is accepted."""
    acceptance, sizes = find_engine(federation).acceptance, federation.clients.sizes
    return acceptance.accepts(sizes, state, number, 500)


def test_rounds_are_accepted_with_the_probabilities_of_the_model() -> None:
    federation = build(federation={"acceptance": "model"})
    for state, prob in enumerate(federation.settings.problem.oracle.success.tolist()):
        accepted = [accepts(federation, state, number) for number in range(1, 1501)]
        assert stats.binomtest(sum(accepted), len(accepted), prob).pvalue > 1e-3


def test_a_secret_hides_acceptance_and_decoys_but_not_the_clients_own_work() -> None:
    """Clients know the seed: with it they reproduce their own jobs, and nothing of the learner."""
    settings = make_run(federation={"acceptance": "model"}, decoy={"kind": "random", "gated": True})
    kernels = KernelCache()
    state = start_run(build_federation(settings, kernels)).scheme
    query = Query(3, Observation(1, 1), state.decoy, 1, 0.5, needs_replies=False)
    outcome = Outcome(NO_ONE, NO_ONE, 0, NO_REPLIES, True)

    def look(secret: int | None) -> list[object]:
        hidden = build_federation(replace(settings, secret=secret), kernels)
        moving = hidden.scheme.learn(state, query, outcome, hidden.engine.aggregator)
        (job, *_) = next(moving).plan()
        with pytest.raises(StopIteration) as moved:
            moving.send([state.decoy + np.float32(0.1), state.decoy + np.float32(0.2)])
        own = make_client_job(hidden.settings, hidden.task, 2, 2, state.true, 3)
        return [
            (own.seed, own.rows.tobytes()),
            [accepts(hidden, 1, number) for number in range(1, 50)],
            (job.seed, job.rows.tobytes()),
            moved.value.value.state.decoy.tobytes(),
        ]

    public, one, other = look(None), look(1), look(2)
    assert public[0] == one[0] == other[0]
    for number in (1, 2, 3):
        assert one[number] != other[number] != public[number] != one[number]


def test_each_client_has_its_own_seed_in_each_round() -> None:
    """The seed decides about dropout: with one seed for all, their noise would not average out."""
    federation = build()
    weights = start_run(federation).scheme.true
    places = [(client, number) for client in range(6) for number in range(1, 6)]
    seeds = [
        make_client_job(federation.settings, federation.task, client, 1, weights, number).seed
        for client, number in places
    ]
    assert len(set(seeds)) == len(places)


def test_by_data_a_round_is_accepted_when_enough_examples_arrive() -> None:
    federation = build(rounds=60, policy={"kind": "greedy"})
    sizes = federation.clients.sizes
    total = int(sizes.sum())
    _, records, _ = play(federation)
    for record in records:
        examples = sum(
            min(batches * 20, int(sizes[client]))
            for client, batches in zip(record["clients"], record["batches"], strict=True)
        )
        assert record["examples"] == examples
        assert record["accepted"] == (examples / total >= 0.25)
        assert len(record["clients"]) == [2, 4, 6][record["oracle_state"]]
    assert {record["accepted"] for record in records} == {True, False}


def test_a_round_with_nothing_valid_is_failed_and_moves_nothing() -> None:
    federation = build(policy={"kind": "greedy"})
    final, records, _ = play_with_faults(
        federation, lambda reply: replace(reply, values=np.full_like(reply.values, np.nan))
    )
    assert not any(record["accepted"] or record["updated"] for record in records)
    assert final.scheme.true.tobytes() == start_run(federation).scheme.true.tobytes()
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
    final, records, _ = play_with_faults(
        federation, lambda reply: faults.get(reply.client, lambda good: good)(reply)
    )
    by_reason = Counter(reason for record in records for _, reason in record["rejected"])
    assert summarise(federation, final)["rejected_by_reason"] == by_reason
    assert set(by_reason) == {"wrong dtype", "wrong shape", "bad example count", "wrong type"}
    for record in records:
        present = dict(zip(record["clients"], record["batches"], strict=True))
        assert record["examples"] == (100 if present.get(5, 0) > 0 else 0)
        assert not (record["updated"] and record["examples"] == 0)
    assert final.updates > 0
    np.testing.assert_array_equal(final.scheme.true, np.full_like(final.scheme.true, 0.01))
