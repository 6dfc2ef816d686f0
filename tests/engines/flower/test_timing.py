"""Rounds take the same work whatever was sent; the test of times would notice where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("sklearn")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from covertfl.engines.flower.eavesdropper_app import record_message
from covertfl.engines.flower.grid import InProcessGrid
from tests.support.flower_runs import make_app


def test_a_listener_takes_the_same_time_for_what_it_knows(tmp_path: Path) -> None:
    InProcessGrid(make_app(), 1)  # gives messages their sender
    arrays = ArrayRecord({"w": Array(np.ones(3, dtype=np.float32))})
    written = set()
    for number in (1, 2):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": number})})
        message = Message(content, 1000, "train")
        assert record_message(message, tmp_path, "rounds.jsonl") == number
        [path] = (tmp_path / "weights").iterdir()
        written.add(path.stat().st_mtime_ns)
    assert len(written) == 2


def make_run(folder: Path, rounds: int, delay: float) -> None:
    """What a client noted, with times that are longer after decoys' queries by some delay."""
    generator = np.random.default_rng(1)
    learns = generator.permutation(np.arange(rounds) % 2 == 0)
    at, seen, actions, replies = 1e9, [], [], []
    for number, learn in enumerate(learns.tolist(), start=1):
        metadata = {"created_at": at, "ttl": 60.0, "message_id": "00", "message_type": "train"}
        message: dict[str, Any] = {"received": at + 0.01, "metadata": metadata, "records": ["a"]}
        message |= {"arrays": {"a": [["w", "float32", [3], "numpy.ndarray", 140]]}}
        message |= {"config": {"config": [["server-round", str(number)]]}}
        seen.append(message)
        actions.append({"round": number, "action": "learn" if learn else "obfuscate"})
        replies.append({"round": number, "replied": at + 0.02})
        at += 1.0 + 0.1 * generator.random() + (0.0 if learn else delay)
    for name, lines in (
        ("eavesdropper/metadata.jsonl", seen),
        ("eavesdropper/replies.jsonl", replies),
        ("private/rounds.jsonl", actions),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_delays_are_noticed_and_their_absence_too(load: Any, tmp_path: Path) -> None:
    timing = load("measure_timing")
    best = []
    for place, delay in enumerate((0.0, 0.2)):
        make_run(tmp_path / str(place), 80, delay)
        features, learns = timing.read_sightings(tmp_path / str(place))
        assert learns.sum() == 40
        # Sizes, kinds and times to live never change, and are no features.
        assert np.ptp(features, axis=0).min() > 0.0
        best.append(timing.hold_out(timing.rank(features), learns))
    assert max(best[0].values()) < 0.75
    assert min(best[1].values()) > 0.95
    later, learns = timing.read_sightings(tmp_path / "0", delay=0.2)
    added = timing.hold_out(timing.rank(later), learns)
    assert min(added.values()) > 0.95
