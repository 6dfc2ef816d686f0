"""The paper's scheme: what its policy decides, and which trajectory moves when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats

from covertfl.arrays import FloatArray
from covertfl.decision.policy import HorizonTable, Observation
from covertfl.runs.records import summarise
from covertfl.runs.round import Begun, draw_arrival, observe
from covertfl.runs.settings import RunSettings
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation
from covertfl.schemes.policies import RunPolicy
from covertfl.schemes.replies import SiftedReplies
from covertfl.schemes.scheduled import Scheduled
from covertfl.schemes.scheme import Outcome, Query
from tests.support.played_runs import DRAWN_HORIZON, build, play
from tests.support.small_runs import DRAWN_QUEUE, make_run

KERNELS = KernelCache()
NOBODY = np.zeros(0, dtype=np.int64)
FAILED = Outcome(NOBODY, NOBODY, 0, SiftedReplies((), (), NOBODY, ()), False)


def find_scheme(federation: Federation) -> Scheduled:
    assert isinstance(federation.scheme, Scheduled)
    return federation.scheme


def hide(settings: RunSettings, secret: int | None) -> Federation:
    """Build a run whose clients know its seed, but not the secret."""
    return build_federation(replace(settings, secret=secret), KERNELS)


def reseed(federation: Federation, seed: int) -> Scheduled:
    """Return the scheme of a run with other draws of its own."""
    scheme = find_scheme(federation)
    return replace(scheme, setup=replace(scheme.setup, hidden_seed=seed))


def look(federation: Federation, state: RunState) -> Observation:
    """Return what is observed before the round that follows a state."""
    return observe(federation, Begun(state, federation.clients)).observation


def moves_decoy(federation: Federation, state: RunState, number: int) -> bool:
    """Return whether the decoy moves after a round of its own that has failed."""
    scheme, aggregator = find_scheme(federation), federation.engine.aggregator
    query = Query(number, Observation(0, 1), state.scheme.decoy, 1, 0.5, needs_replies=False)
    learning = scheme.learn(state.scheme, query, FAILED, aggregator)
    try:
        next(learning)  # the work that a move needs
    except StopIteration as stop:
        assert stop.value.state is state.scheme
        return False
    return True


# --- what is decided ------------------------------------------------------------------------------


def test_decisions_and_costs_are_those_of_the_oracle_state() -> None:
    factors = [0.5, 1.0, 3.0]
    cost = {"learning": {"shape": "linear", "scale": 0.6, "by_state": factors}}
    federation = build(DRAWN_QUEUE, rounds=300, cost=cost)
    _, records, _ = play(federation)
    policy = find_scheme(federation).policy.policy
    for record in records:
        state = record["oracle_state"]
        observation = Observation(state, record["backlog"], int(record["arrival"] > 0))
        assert record["learn_prob"] == policy.learn_prob(observation)
        paid = federation.problem.privacy_cost[state]
        assert record["privacy_cost"] == (paid if record["action"] == "learn" else 0.0)
        owed = factors[state] * 0.6 * record["backlog"] + 5.0 * record["lost"]
        assert record["learning_cost"] == pytest.approx(owed)


@pytest.mark.parametrize(("kind", "trajectory"), [("always-learn", 0), ("always-obfuscate", 1)])
def test_a_query_sends_the_weights_of_its_trajectory(kind: str, trajectory: int) -> None:
    federation = build(DRAWN_HORIZON, policy={"kind": kind})
    state = start_run(federation)
    query = find_scheme(federation).ask(state.scheme, 1, look(federation, state))
    assert (query.trajectory, query.learns) == (trajectory, trajectory == 0)
    assert query.payload is (state.scheme.true, state.scheme.decoy)[trajectory]
    assert not np.array_equal(state.scheme.true, state.scheme.decoy)


def test_actions_are_drawn_with_the_probability_of_the_policy() -> None:
    federation = build(DRAWN_HORIZON, policy={"kind": "random"}, horizon={"rounds": 10})
    state, learned = start_run(federation), 0
    seen = look(federation, state)
    for seed in range(1000):
        query = reseed(federation, seed).ask(state.scheme, 1, seen)
        assert query.learn_prob == pytest.approx(0.4)
        learned += query.learns
    assert stats.binomtest(learned, 1000, 0.4).pvalue > 1e-3


def test_a_secret_hides_what_the_learner_draws_from_those_who_know_the_seed() -> None:
    """Actions, moves of decoys, arrivals and first weights follow the secret.

    The federation follows the seed.
    """
    settings = make_run(DRAWN_HORIZON, policy={"kind": "random"}, rounds=40)
    queue = make_run(DRAWN_QUEUE)

    def list_draws(secret: int | None) -> list[list[object]]:
        hidden, waiting = hide(settings, secret), hide(queue, secret)
        state, scheme = start_run(hidden), find_scheme(hidden)
        seen = [look(hidden, replace(state, round=number)) for number in range(40)]
        asked = [scheme.ask(state.scheme, n, one) for n, one in enumerate(seen, start=1)]
        return [
            [one.oracle_state for one in seen],
            [query.learns for query in asked],
            [moves_decoy(hidden, state, number) for number in range(1, 41)],
            [draw_arrival(waiting, number) for number in range(1, 200)],
            [weights.tobytes() for weights in scheme.models(state.scheme)],
        ]

    public, one, other = list_draws(None), list_draws(2), list_draws(4)
    assert one[0] == other[0] == public[0]
    for number in range(1, 5):
        assert one[number] != other[number] != public[number] != one[number]


@pytest.mark.slow
def test_random_places_every_set_of_rounds_equally_often() -> None:
    federation = build(
        DRAWN_HORIZON, policy={"kind": "random"}, horizon={"rounds": 5, "updates": 2}
    )
    placed: Counter[tuple[int, ...]] = Counter()
    for seed in range(800):
        scheme, state, rounds = reseed(federation, seed), start_run(federation), []
        for number in range(1, 6):
            query = scheme.ask(state.scheme, number, look(federation, state))
            if query.learns:
                rounds.append(number)
            queries = (state.queries[0] + query.learns, state.queries[1] + (not query.learns))
            state = replace(state, round=number, queries=queries)
        placed[tuple(rounds)] += 1
    assert len(placed) == 10
    assert stats.chisquare(list(placed.values())).pvalue > 1e-3


def test_minority_never_learns_in_half_of_the_rounds() -> None:
    for seed in range(5):
        final, _, _ = play(build(policy={"kind": "minority"}, seed=seed))
        assert 2 * final.learning_queries < 12


def test_optimal_for_measured_probabilities_is_not_that_for_printed_ones() -> None:
    measured, printed = build(), build(federation={"acceptance": "model"})
    tables = [find_scheme(federation).policy.policy for federation in (measured, printed)]
    assert isinstance(tables[0], HorizonTable)
    assert isinstance(tables[1], HorizonTable)
    assert not np.array_equal(tables[0].table, tables[1].table)
    assert measured.measured is not None
    assert printed.measured is not None
    np.testing.assert_array_equal(measured.problem.oracle.success, measured.measured)
    np.testing.assert_array_equal(printed.problem.oracle.success, [0.2, 0.5, 0.9])
    np.testing.assert_allclose(printed.measured, measured.measured, atol=0.02)


# --- what moves ---------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsgd"])
def test_the_model_moves_in_accepted_learning_rounds_alone(algorithm: str) -> None:
    """Equation (4), with both indicators: no reply of a rejected round is used."""
    changes = {"algorithm": algorithm, "acceptance": "model"}
    federation = build(policy={"kind": "greedy"}, rounds=30, federation=changes)
    final, records, folder = play(federation)
    true = [
        start_run(federation).scheme.true,
        *(kept.arrays["true"] for kept in folder.checkpoints),
    ]
    learned = [record["action"] == "learn" for record in records]
    accepted = [record["accepted"] for record in records]
    for number, record in enumerate(records):
        is_moved = true[number].tobytes() != true[number + 1].tobytes()
        assert is_moved == (learned[number] and accepted[number]), number
        assert is_moved == record["updated"] or not learned[number]
    rejected = [r for r in records if r["action"] == "learn" and not r["accepted"]]
    assert sum(record["examples"] > 0 for record in rejected) > 1
    assert final.updates == sum(map(all, zip(learned, accepted, strict=True))) == 4
    memory = final.scheme.memory
    assert (memory is None) == (algorithm == "fedavg")
    assert memory is None or memory.steps == 4


@pytest.mark.parametrize("method", ["exact", "search"])
def test_a_refreshed_policy_is_cautious_first_and_then_another(method: str) -> None:
    policy = {"kind": "spga", "refresh": 7, "live": method}
    final, records, _ = play(build(DRAWN_QUEUE, policy=policy, queue={"arrival_prob": 0.2}))
    cautious = [float(record["backlog"] > 0) for record in records]
    learn_prob = [record["learn_prob"] for record in records]
    assert learn_prob[:21] == cautious[:21]  # 21 is the first multiple of 7 with rounds enough
    assert learn_prob[21:] != cautious[21:]
    assert final.scheme.live.refreshed == 56
    assert len(final.seen) == len(records)


def test_greedy_stops_when_nothing_is_owed() -> None:
    final, records, _ = play(build(policy={"kind": "greedy"}, rounds=30))
    assert final.queue.backlog == 0
    assert final.updates == 4
    assert all((record["action"] == "learn") == (record["backlog"] > 0) for record in records)


def test_always_learn_continues_when_nothing_is_owed() -> None:
    final, records, _ = play(build(policy={"kind": "always-learn"}, rounds=30))
    accepted = sum(record["accepted"] for record in records)
    assert final.updates == accepted > 4
    assert final.exposure == 1.0
    assert [record["updated"] for record in records] == [record["accepted"] for record in records]


def test_always_obfuscate_never_moves_the_model() -> None:
    federation = build(policy={"kind": "always-obfuscate"}, decoy={"gated": True})
    final, records, _ = play(federation)
    assert final.scheme.true.tobytes() == start_run(federation).scheme.true.tobytes()
    assert final.exposure == 0.0
    assert summarise(federation, final)["updates_missing"] == 4
    moved = sum(record["accepted"] for record in records)
    assert final.scheme.moves == moved


def test_random_uses_every_reply() -> None:
    federation = build(policy={"kind": "random"}, federation={"min_share": 1.0})
    final, records, _ = play(federation)
    learned = [record for record in records if record["action"] == "learn"]
    assert len(learned) == 4
    assert not any(record["accepted"] for record in records)
    assert all(record["updated"] == (record["examples"] > 0) for record in learned)
    assert final.updates > 0


def test_an_ungated_decoy_moves_in_every_obfuscating_round() -> None:
    policy = {"kind": "always-obfuscate"}
    gated, records, _ = play(build(policy=policy, decoy={"gated": True}))
    free, _, _ = play(build(policy=policy, decoy={"gated": False}))
    assert free.scheme.moves == 12
    assert gated.scheme.moves == sum(record["accepted"] for record in records)


@dataclass(frozen=True)
class HalfPolicy:
    """A policy that learns in half of the rounds, whatever it observes."""

    def learn_prob(self, observation: Observation) -> FloatArray:
        return np.full(np.shape(observation.oracle_state), 0.5)


@pytest.mark.parametrize("takes_every_reply", [False, True])
def test_a_matched_decoy_moves_as_often_as_the_truth(takes_every_reply: bool) -> None:
    federation = build(DRAWN_QUEUE, rounds=600)
    half = RunPolicy(HalfPolicy(), updates_unowed=True, takes_every_reply=takes_every_reply)
    final, records, _ = play(
        replace(federation, scheme=replace(find_scheme(federation), policy=half))
    )
    queries = final.learning_queries
    of_truth, of_decoy = final.updates / queries, final.scheme.moves / (600 - queries)
    assert of_decoy == pytest.approx(of_truth, abs=0.08)
    # Now and then all clients are absent.
    assert 0.9 < of_truth < 1.0 if takes_every_reply else 0.3 < of_truth < 0.7
    # It does not repeat the decision of its round, which the policy knows something about.
    accepted = sum(record["accepted"] for record in records if record["action"] == "obfuscate")
    assert final.scheme.moves != accepted


def test_when_a_matched_decoy_moves_follows_from_the_secret() -> None:
    """Clients may know the seed of the data, from which the moves must not be computable."""
    settings = make_run(DRAWN_QUEUE, rounds=40, policy={"kind": "always-obfuscate"})
    moves = []
    for secret, seed in ((1, 3), (2, 3), (1, 4)):
        _, _, folder = play(hide(settings.with_seed(seed), secret))
        moves.append([checkpoint.facts["scheme"]["moves"] for checkpoint in folder.checkpoints])
    assert moves[0] != moves[1]
    assert moves[0] == moves[2]


def test_only_the_trajectory_that_was_queried_moves() -> None:
    _, records, folder = play(build(rounds=30, policy={"kind": "greedy"}))
    arrays = [checkpoint.arrays for checkpoint in folder.checkpoints]
    names = ("true", "decoy-1")
    queried = set()
    for record, before, after in zip(records[1:], arrays, arrays[1:], strict=False):
        for number, name in enumerate(names):
            if number != record["trajectory"]:
                assert before[name].tobytes() == after[name].tobytes()
        queried.add(record["trajectory"])
    assert queried == {0, 1}
