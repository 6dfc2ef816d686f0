from __future__ import annotations

import numpy as np
import pytest

from covertfl.auditing.coalitions import (
    CoalitionFinding,
    choose_members,
    overhear_together,
    summarise_coalitions,
)
from covertfl.auditing.overheard import find_truth
from covertfl.auditing.threats import Finding
from covertfl.eavesdroppers.eavesdropper import SeenQuery


def make_queries() -> list[SeenQuery]:
    """Two trajectories, far apart, queried in turn."""
    generator = np.random.default_rng(0)
    starts = generator.normal(size=(2, 50))
    queries = []
    for number in range(6):
        weights = (starts[number % 2] + 0.01 * number).astype(np.float32)
        queries.append(SeenQuery(number + 1, number % 2, weights, None if number < 2 else 0.1))
    return queries


RECORDS = [
    {"round": number + 1, "clients": clients, "trajectory": number % 2}
    for number, clients in enumerate([[0], [1], [0, 2], [1], [2], [0]])
]


@pytest.mark.parametrize(
    ("members", "rounds"), [({0}, [1, 3, 6]), ({0, 1}, [1, 2, 3, 4, 6]), ({7}, []), ({2}, [3, 5])]
)
def test_a_coalition_sees_the_rounds_of_its_members(members: set[int], rounds: list[int]) -> None:
    seen, records = overhear_together(make_queries(), RECORDS, members)
    assert [query.round for query in seen] == rounds
    assert [record["round"] for record in records] == rounds


def test_trajectories_are_told_apart_from_what_was_seen() -> None:
    """The first query that a coalition sees begins its first trajectory, whatever came before."""
    seen, _ = overhear_together(make_queries(), RECORDS, {1, 0})
    assert [query.trajectory for query in seen] == [0, 1, 0, 1, 1]
    assert seen[0].moved is None and seen[1].moved is None
    moved = seen[4].moved
    assert moved == pytest.approx(0.02 * np.sqrt(50), rel=1e-4)


def test_a_coalition_tells_trajectories_with_a_common_start_apart() -> None:
    """It misses steps, and one who sent the start too: the only one it saw may be anybody's."""
    generator = np.random.default_rng(1)
    latest = [generator.normal(size=200).astype(np.float32)] * 2
    queries, records = [], []
    for number in range(1, 41):
        trajectory = int(generator.integers(2))
        queries.append(SeenQuery(number, 0, latest[trajectory], None))
        records.append({"round": number, "clients": [number % 3], "trajectory": trajectory})
        step = 0.02 * generator.normal(size=200).astype(np.float32)
        latest[trajectory] = latest[trajectory] + step
    seen, kept = overhear_together(queries, records, {0, 1}, trajectories=2, part=slice(0, 150))
    truth, misplaced = find_truth(seen, kept)
    assert sorted(truth.values()) == [False, True] and misplaced <= 1
    assert find_truth(*overhear_together(queries, records, {0, 1}))[1] > 5  # not knowing how many


def test_members_are_drawn_uniformly_and_by_seed() -> None:
    counts = np.zeros(6)
    for seed in range(3000):
        members = choose_members(6, 2, generator=np.random.default_rng(seed))
        assert len(members) == 2
        counts[list(members)] += 1
    assert np.all(np.abs(counts / 3000 - 1 / 3) < 0.04)


def test_runs_are_put_together_by_size() -> None:
    def finding(size: int, named: float) -> CoalitionFinding:
        return CoalitionFinding(size, 0.5, {"majority": Finding(named, (0.6, 0.8), (1.0,))})

    one, two = summarise_coalitions([(finding(1, 0.0), finding(2, 1.0)), (finding(1, 1.0),)])
    assert (one.size, two.size) == (1, 2)
    (majority,) = one.threats
    assert majority.names_true == 0.5
    assert majority.final_accuracy == pytest.approx(0.8)
    assert majority.interval is not None
    assert majority.interval[0] < 0.5 < majority.interval[1]
    assert summarise_coalitions([]) == ()
