"""What several clients see together."""

from __future__ import annotations

import numpy as np
import pytest

from covertfl.auditing.coalitions import overhear_together
from covertfl.auditing.overheard import find_truth
from tests.support.seen_queries import SeenQuery


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
