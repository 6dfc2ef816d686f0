"""Which trajectory a query belongs to: against all divisions, and on runs of the shipped tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings as limits, strategies as st

import covertfl as cf
from covertfl.eavesdroppers.separation import link_queries, measure_distances
from tests.support.seen_queries import Vector
from tests.support.small_runs import HORIZON, merge

DECOYS = ("random", "mirrored", "public", "adversarial")


def walk(seed: int, steps: int, size: float = 0.15) -> list[Vector]:
    """A trajectory: a start of length about 10 and short steps."""
    generator = np.random.default_rng(seed)
    points = [generator.normal(size=100).astype(np.float32)]
    for _ in range(steps - 1):
        step = generator.normal(size=100) * size
        points.append((points[-1] + step).astype(np.float32))
    return points


def interleave(walks: Sequence[Sequence[Vector]], seed: int = 9) -> tuple[list[Vector], list[int]]:
    """Queries of several trajectories in a random order, and the number of each in that order."""
    counts = [len(points) for points in walks]
    owners = np.repeat(np.arange(len(walks)), counts)
    order = np.random.default_rng(seed).permutation(owners).tolist()
    places = [iter(points) for points in walks]
    first_seen = list(dict.fromkeys(order))
    sent = [next(places[trajectory]) for trajectory in order]
    return sent, [first_seen.index(trajectory) for trajectory in order]


def place(weights: Sequence[Vector], trajectories: int | None = None) -> list[int]:
    return [number for number, _ in link_queries(weights, trajectories=trajectories)]


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("is_known", [True, False], ids=["number known", "number unknown"])
def test_interleaved_trajectories_are_told_apart(number: int, is_known: bool) -> None:
    sent, owners = interleave([walk(seed, 30) for seed in range(number)])
    assert place(sent, number if is_known else None) == owners


@pytest.mark.parametrize("number", [2, 4, 8])
def test_images_with_flipped_columns_are_told_apart(number: int) -> None:
    """Trajectories that move in step, each an image of the first by signs of columns."""
    generator = np.random.default_rng(number)
    signs = np.sign(generator.normal(size=(number, 10))).astype(np.float32)
    points = np.stack(walk(1, 20)).reshape(20, 10, 10)
    images = (points[:, np.newaxis] * signs[:, np.newaxis]).reshape(20, number, 100)
    orders = [generator.permutation(number).tolist() for _ in range(20)]
    sent = [images[step, one] for step, order in enumerate(orders) for one in order]
    owners = [orders[0].index(one) for order in orders for one in order]
    assert place(sent, number) == owners


def test_movement_is_the_distance_from_the_last_query() -> None:
    far = np.array([30.0, 40.0], dtype=np.float32)
    near = np.array([33.0, 44.0], dtype=np.float32)
    other = np.array([-30.0, 40.0], dtype=np.float32)
    expected = [(0, None), (1, None), (0, 5.0), (0, 0.0), (1, 0.0)]
    for number in (None, 2):
        assert link_queries([far, other, near, near.copy(), other], trajectories=number) == expected
    # Linked by the second coordinate alone, which leaves the two apart by 0; the first decides.
    assert link_queries([far, other], part=slice(1, 2)) == [(0, None), (1, None)]


def test_few_queries_and_none() -> None:
    (point,) = walk(1, 1)
    assert link_queries([]) == []
    assert link_queries([point], trajectories=3) == [(0, None)]
    assert place([point] * 3) == [0, 0, 0]
    with pytest.raises(cf.InvalidInput, match="at least 1, got 0"):
        link_queries([point], trajectories=0)


def test_distances_survive_cancellation() -> None:
    """The last bit of one weight among large ones, equal vectors, and ordinary distances."""
    generator = np.random.default_rng(0)
    point = (1e3 * generator.normal(size=500)).astype(np.float32)
    other = (1e3 * generator.normal(size=500)).astype(np.float32)
    bit = other.copy()
    bit[7] = np.nextafter(bit[7], np.float32(np.inf))
    points = [point, other, bit, other.copy(), walk(0, 1)[0].repeat(5)]
    exact = [[np.linalg.norm(a.astype(np.float64) - b) for b in points] for a in points]
    found = measure_distances(points)
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=0.0)
    assert found[1, 3] == 0.0 and 0.0 < found[1, 2] < 1e-3


@pytest.mark.parametrize("width", [1, 7, 500])
def test_blocks_do_not_matter(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    points = walk(3, 12)
    whole = measure_distances(points)
    monkeypatch.setattr("covertfl.eavesdroppers.separation.BLOCK", 12 * width)
    np.testing.assert_allclose(measure_distances(points), whole, rtol=1e-12)


# --- against all ways to divide the queries into two chains ------------------------------------


def measure_chains(points: Sequence[Vector], owners: Sequence[int]) -> float:
    """Total length of chains, with the first query of each counted as the module says."""
    total = 0.0
    latest: dict[int, Vector] = {}
    for point, owner in zip(points, owners, strict=True):
        from_start = min(math.dist(point, points[0]), 0.7 * math.hypot(*point))
        total += math.dist(point, latest[owner]) if owner in latest else from_start
        latest[owner] = point
    return total


coordinates = st.integers(min_value=-4, max_value=4).map(float)
queries = st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=7)


@given(queries)
@limits(max_examples=150, deadline=None)
def test_no_two_chains_are_shorter(points: list[tuple[float, float]]) -> None:
    sent = [np.array(point, dtype=np.float32) for point in points]
    placed = link_queries(sent, trajectories=2)
    owners = [number for number, _ in placed]
    shortest = min(measure_chains(sent, way) for way in product((0, 1), repeat=len(sent)))
    assert measure_chains(sent, owners) == pytest.approx(shortest, abs=1e-6)
    assert [moved is None for _, moved in placed] == [
        number not in owners[:place] for place, number in enumerate(owners)
    ]
    assert list(dict.fromkeys(owners)) == list(range(max(owners) + 1))


seeds = st.integers(min_value=0, max_value=10_000)


@given(seeds, st.lists(st.integers(min_value=1, max_value=3), min_size=20, max_size=20))
@limits(max_examples=30, deadline=None)
def test_repeats_and_the_order_of_weights_change_nothing(seed: int, times: list[int]) -> None:
    """Each query is sent once or several times, and the weights are listed in another order."""
    start = walk(seed, 1)[0]
    steps = [walk(seed + one, 10, 0.05) for one in (1, 2)]
    walks = [[start + (point - points[0]) for point in points] for points in steps]
    sent, _ = interleave(walks, seed)
    order = np.random.default_rng(seed).permutation(100)
    once = place(sent, 2)
    assert place([point[order] for point in sent], 2) == once
    copies = [
        point.copy() for point, number in zip(sent, times, strict=True) for _ in range(number)
    ]
    several = place(copies, 2)
    ends = np.cumsum(times) - 1
    moved = [np.any(point != start) for point in sent]
    labels = [(one, several[end]) for one, end, has in zip(once, ends, moved, strict=True) if has]
    assert len(set(labels)) == len({one for one, _ in labels})  # the same up to names


@pytest.mark.parametrize("number", [2, 4])
def test_a_common_start_is_told_apart_by_who_knows_the_number(number: int) -> None:
    """Others take trajectories that start together for one until they are far apart."""
    start = walk(5, 1)[0]
    steps = [walk(one, 30, 0.02) for one in range(number)]
    walks = [[start + (point - points[0]) for point in points[1:]] for points in steps]
    sent, owners = interleave(walks)
    pairs = set(zip(place([start, *sent], number)[1:], owners, strict=True))
    assert len(pairs) == number  # the same up to names
    assert len(set(place([start, *sent]))) == 1


# --- shipped tasks ----------------------------------------------------------------------------

DATA = Path(os.environ.get("COVERTFL_DATA", "."))
needs_text = pytest.mark.skipif(
    not (DATA / "text" / "wiki_davidson_184k.parquet").exists(),
    reason="COVERTFL_DATA has no text/wiki_davidson_184k.parquet",
)
needs_images = pytest.mark.skipif(
    not (DATA / "mnist").is_dir(), reason="COVERTFL_DATA has no mnist folder"
)
SETTINGS: dict[str, dict[str, Any]] = {
    "toxicity": {"data": {}, "federation": {"clients": 20, "participation": [5, 10, 20]}},
    "digits": {"data": {"model": "mlp"}},
    "digits, logistic": {"data": {"model": "logistic"}},
    "digits, fedsgd": {"data": {"model": "mlp"}, "federation": {"algorithm": "fedsgd"}},
    "embeddings": {"data": {}},
    # Few clients among many make short rounds.
    "mnist": {
        "data": {"model": "small-cnn"},
        "federation": {"clients": 200, "participation": [1, 2, 3]},
        "horizon": {"rounds": 5, "updates": 2},
        "policy": {"kind": "random"},
    },
}


def audit_separation(
    name: str, decoy: dict[str, Any], out: Path, **more: Any
) -> tuple[float, bool]:
    """Train a run; return the share of queries on the right trajectory, and whether it warns."""
    settings, task = dict(SETTINGS[name]), name.partition(",")[0]
    if task == "embeddings":
        generator = np.random.default_rng(0)
        labels = generator.integers(2, size=600)
        features = generator.normal(size=(600, 16)) + labels[:, np.newaxis]
        np.savez(out / "mine.npz", features=features, labels=labels)
        settings["data"] = {"path": str(out / "mine.npz")}
    base = {key: value for key, value in HORIZON.items() if key != "data"}
    settings = merge({"horizon": {"rounds": 24, "updates": 8}}, settings)
    federation = {"acceptance": "model", **more}
    changes = {"federation": federation, "task": task, "decoy": decoy}
    cf.Run(**merge(merge(base, settings), changes)).train(out / "run")
    report = cf.audit(out / "run", eavesdroppers=["majority"]).to_dict()
    warned = any("told apart" in warning for warning in report["warnings"])
    return report["separation"]["right_share"], warned


@pytest.mark.parametrize("decoy", DECOYS)
@pytest.mark.parametrize(
    ("name", "gated"),
    [
        pytest.param("toxicity", True, marks=[needs_text, pytest.mark.slow]),
        pytest.param("toxicity", False, marks=[needs_text, pytest.mark.slow]),
        pytest.param("digits", True, marks=pytest.mark.slow),
        ("digits", False),
        # Decoys that move in every round are the harder ones to link.
        pytest.param("digits, logistic", False, marks=pytest.mark.slow),
        pytest.param("digits, fedsgd", False, marks=pytest.mark.slow),
        pytest.param("embeddings", False, marks=pytest.mark.slow),
        pytest.param("mnist", False, marks=[needs_images, pytest.mark.slow]),
    ],
)
def test_decoys_of_shipped_tasks_are_told_apart(
    name: str, decoy: str, gated: bool, tmp_path: Path
) -> None:
    share, is_warned = audit_separation(name, {"kind": decoy, "gated": gated}, tmp_path)
    assert share >= 0.99 and not is_warned


def test_steps_that_are_too_long_are_warned_of(tmp_path: Path) -> None:
    """With such a learning rate a trajectory moves farther than its distance from the other one."""
    wild = {"optimizer": {"name": "sgd", "lr": 300.0}}
    share, is_warned = audit_separation("digits, logistic", {"gated": False}, tmp_path, **wild)
    assert share < 0.99 and is_warned
