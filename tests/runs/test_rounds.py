"""Whole runs: independent of the policy where they must be, and resumable anywhere."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from covertfl.runs import participation, round as round_module, simulated
from covertfl.runs.records import summarise
from covertfl.runs.round import Begun, draw_arrival, observe
from covertfl.runs.state import pack_state, start_run, unpack_state
from covertfl.schemes import scheduled
from covertfl.seeding import Stream, make_generator, make_generator_and_seed
from tests.support.exchangeable_runs import BASES
from tests.support.played_runs import DRAWN_HORIZON, build, play
from tests.support.small_runs import DRAWN_QUEUE, HORIZON, QUEUE

ALWAYS_SAME = ("round", "oracle_state", "arrival", "clients", "batches", "examples", "accepted")


@pytest.mark.parametrize(
    ("base", "kinds", "changes"),
    [
        (HORIZON, ["optimal", "always-learn", "random", "minority"], {}),
        (HORIZON, ["greedy", "always-obfuscate"], {"federation": {"acceptance": "model"}}),
        (HORIZON, ["greedy", "optimal"], {"decoy": {"kind": "mirrored"}}),
        (QUEUE, ["optimal", "always-learn", "greedy", "always-obfuscate"], {}),
    ],
)
def test_the_federation_does_not_depend_on_the_policy(
    base: dict[str, Any], kinds: list[str], changes: dict[str, Any]
) -> None:
    seen = []
    for kind in kinds:
        _, records, _ = play(build(base, policy={"kind": kind}, **changes))
        seen.append([[record[key] for key in ALWAYS_SAME] for record in records])
        if kind in ("always-learn", "always-obfuscate"):
            assert len({record["action"] for record in records}) == 1
    assert all(other == seen[0] for other in seen)
    assert len({json.dumps(row[1:]) for row in seen[0]}) > 3


@pytest.mark.parametrize("base", [HORIZON, QUEUE])
def test_no_stream_is_drawn_from_twice(
    base: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two draws from one stream would tie, say, who takes part to what is sent."""
    federation = build(
        base, rounds=12, policy={"kind": "greedy"}, federation={"acceptance": "model"}
    )
    opened: Counter[tuple[int, ...]] = Counter()

    def open_stream(seed: int, stream: Stream, *place: int) -> np.random.Generator:
        opened[(stream, *place)] += 1
        return make_generator(seed, stream, *place)

    def open_seeded(seed: int, stream: Stream, *place: int) -> tuple[np.random.Generator, int]:
        opened[(stream, *place)] += 1
        return make_generator_and_seed(seed, stream, *place)

    monkeypatch.setattr(simulated, "make_generator_and_seed", open_seeded)
    for module in (participation, round_module, scheduled):
        monkeypatch.setattr(module, "make_generator", open_stream)
    play(federation)
    assert max(opened.values()) == 1
    used = {stream for stream, *_ in opened}
    assert {Stream.ORACLE, Stream.ACTION, Stream.PARTICIPATION} <= used
    assert {Stream.ACCEPTANCE, Stream.CLIENT, Stream.MOVE, Stream.DECOY} <= used


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (HORIZON, {"policy": {"kind": "greedy"}}),
        (HORIZON, {"federation": {"algorithm": "fedsgd"}, "policy": {"kind": "greedy"}}),
        (QUEUE, {}),
        (DRAWN_QUEUE, {"policy": {"kind": "spga", "refresh": 7}}),
        (DRAWN_QUEUE, {"policy": {"kind": "spga", "refresh": 7, "live": "search"}}),
        (BASES["horizon"], {"exchangeable": {"trajectories": 4}}),
        (BASES["queue"], {"federation": {"algorithm": "fedsgd"}}),
    ],
)
def test_a_run_resumes_from_any_checkpoint(base: dict[str, Any], changes: dict[str, Any]) -> None:
    federation = build(base, **changes)
    final, records, folder = play(federation)
    for checkpoint in folder.checkpoints[:: max(len(records) // 4, 1)]:
        facts = json.loads(json.dumps({**checkpoint.facts, "round": checkpoint.round}))
        state = unpack_state(
            replace(checkpoint, facts=facts), iter(records[: checkpoint.round]), federation
        )
        if state.round == len(records):
            continue
        again, later, _ = play(federation, state)
        assert later == records[state.round :]
        packed, expected = (pack_state(federation, each) for each in (again, final))
        assert packed.facts == expected.facts
        assert packed.arrays.keys() == expected.arrays.keys()
        for name, array in packed.arrays.items():
            assert array.tobytes() == expected.arrays[name].tobytes()
        assert again.seen == final.seen
        assert summarise(federation, again) == summarise(federation, final)


def test_arrivals_have_the_probability_of_the_problem() -> None:
    federation = build(DRAWN_QUEUE)
    sizes = [draw_arrival(federation, number) for number in range(1, 5001)]
    assert set(sizes) == {0, 2}
    assert stats.binomtest(sizes.count(2), 5000, 0.1).pvalue > 1e-3
    assert draw_arrival(build(DRAWN_HORIZON), 1) == 0


def test_an_arrival_that_the_problem_does_not_foresee_has_the_next_larger_index() -> None:
    """From a file of arrivals: 2 is taken as 3, and 9 as the largest."""
    sizes = {"arrival_prob": None, "arrival_size": None, "arrival_sizes": {"1": 0.1, "3": 0.05}}
    federation = replace(build(DRAWN_QUEUE, queue=sizes), arrivals={1: 2, 2: 9, 3: 1})
    state, seen = start_run(federation), []
    for number in range(4):
        begun = Begun(replace(state, round=number), federation.clients)
        found = observe(federation, begun)
        seen.append((found.arrival, found.observation.arrival))
    assert seen == [(2, 2), (9, 2), (1, 1), (0, 0)]
