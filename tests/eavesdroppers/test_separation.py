from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from covertfl.auditing.folders import audit_folders
from covertfl.auditing.overheard import find_truth, overhear
from covertfl.auditing.summary import LEAST_SEPARATED
from covertfl.decoys.registry import DECOYS
from covertfl.eavesdroppers.separation import Separator
from covertfl.kernels.weights import Vector
from covertfl.runs.files import read_lines
from tests.support.small_runs import HORIZON, merge, run_small


def walk(seed: int, steps: int, size: float = 0.15) -> list[Vector]:
    """A trajectory: a start of length about 10 and short steps."""
    generator = np.random.default_rng(seed)
    points = [generator.normal(size=100).astype(np.float32)]
    for _ in range(steps - 1):
        step = generator.normal(size=100) * size
        points.append((points[-1] + step).astype(np.float32))
    return points


@pytest.mark.parametrize("number", [1, 2, 4])
def test_interleaved_trajectories_are_told_apart(number: int) -> None:
    walks = [walk(seed, 30) for seed in range(number)]
    order = np.random.default_rng(9).permutation(np.repeat(np.arange(number), 30))
    separator, places = Separator(), [iter(points) for points in walks]
    named = [separator.place(next(places[trajectory]))[0] for trajectory in order]
    first_seen = list(dict.fromkeys(order.tolist()))
    assert named == [first_seen.index(trajectory) for trajectory in order]


def test_a_repeated_query_stays_where_it_was() -> None:
    separator, (point, *_) = Separator(), walk(1, 1)
    assert [separator.place(point)[0] for _ in range(3)] == [0, 0, 0]


def test_movement_is_the_distance_from_the_last_query() -> None:
    separator = Separator()
    far = np.array([30.0, 40.0], dtype=np.float32)
    near = np.array([33.0, 44.0], dtype=np.float32)
    other = np.array([-30.0, 40.0], dtype=np.float32)
    placed = [separator.place(weights) for weights in (far, other, near, near, other)]
    assert placed == [(0, None), (1, None), (0, 5.0), (0, 0.0), (1, 0.0)]


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


def run_task(name: str, decoy: dict[str, Any], out: Path) -> Path:
    settings, task = dict(SETTINGS[name]), name.partition(",")[0]
    if task == "embeddings":
        generator = np.random.default_rng(0)
        labels = generator.integers(2, size=600)
        features = generator.normal(size=(600, 16)) + labels[:, np.newaxis]
        np.savez(out / "mine.npz", features=features, labels=labels)
        settings["data"] = {"path": str(out / "mine.npz")}
    changes = merge({"horizon": {"rounds": 24, "updates": 8}}, settings)
    federation = {**changes.get("federation", {}), "acceptance": "model"}
    run_small(
        out / "run",
        {key: value for key, value in HORIZON.items() if key != "data"},
        **{**changes, "federation": federation, "task": task, "decoy": decoy},
    )
    return out / "run"


def audit_separation(run: Path) -> tuple[float, list[str]]:
    """Share of queries on the right trajectory, and the audit's warnings."""
    content = audit_folders([run], names=["majority"]).to_dict()
    return content["separation"]["right_share"], content["warnings"]


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "ungated"])
@pytest.mark.parametrize("decoy", DECOYS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("toxicity", marks=[needs_text, pytest.mark.slow]),
        "digits",
        "digits, logistic",
        "digits, fedsgd",
        "embeddings",
    ],
)
def test_decoys_of_shipped_tasks_are_told_apart(
    name: str, decoy: str, gated: bool, tmp_path: Path
) -> None:
    share, warnings = audit_separation(run_task(name, {"kind": decoy, "gated": gated}, tmp_path))
    assert share >= LEAST_SEPARATED
    assert not any("told apart" in warning for warning in warnings)


@needs_images
@pytest.mark.slow
@pytest.mark.parametrize("decoy", ["random", "mirrored", "public"])
def test_decoys_of_images_are_told_apart(decoy: str, tmp_path: Path) -> None:
    run = run_task("mnist", {"kind": decoy, "gated": False}, tmp_path)
    queries = overhear(run / "public")
    _, astray = find_truth(queries, list(read_lines(run / "private" / "rounds.jsonl")))
    assert {query.trajectory for query in queries} == {0, 1} and astray == 0


def test_several_decoys_are_told_apart(tmp_path: Path) -> None:
    decoy = {"kind": "public", "count": 3, "gated": False}
    share, _ = audit_separation(run_task("digits", decoy, tmp_path))
    assert share >= LEAST_SEPARATED


def test_a_function_is_told_apart_or_the_audit_says_so(tmp_path: Path) -> None:
    """In few dimensions two trajectories may start close to each other."""
    shares = []
    for seed in range(20):
        base = {key: HORIZON[key] for key in ("oracle", "cost", "horizon")}
        run_small(tmp_path / str(seed), {**base, "task": "function"}, seed=seed)
        share, warnings = audit_separation(tmp_path / str(seed))
        assert (share < LEAST_SEPARATED) == any("told apart" in warning for warning in warnings)
        shares.append(share)
    assert np.mean(shares) >= LEAST_SEPARATED


def test_steps_that_are_too_long_are_warned_of(tmp_path: Path) -> None:
    """With such a learning rate a trajectory moves farther than its distance from the other one."""
    wild = {"optimizer": {"name": "sgd", "lr": 300.0}}
    run_small(tmp_path / "run", federation=wild, decoy={"gated": False})
    share, warnings = audit_separation(tmp_path / "run")
    assert share < LEAST_SEPARATED
    assert any("told apart" in warning for warning in warnings)
