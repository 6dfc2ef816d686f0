"""Runs played in memory: built, carried out and recorded without files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.engine import ScoreWork, Work, drive
from covertfl.runs.files import ROUNDS, UPDATES
from covertfl.runs.records import MemoryRecords
from covertfl.runs.round import run_rounds
from covertfl.runs.simulated import run_together
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation
from covertfl.schemes.replies import Reply, sift_replies
from covertfl.schemes.scheme import Jobs
from tests.support.small_runs import DRAWN_QUEUE, FEW, HORIZON, make_run

DRAWN_HORIZON: dict[str, Any] = {**HORIZON, "federation": FEW}
Records = list[dict[str, Any]]


class MemoryFolder(MemoryRecords):
    """Keeps checkpoints as well, and what a run records as JSON holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoints: list[Checkpoint] = []

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Keep records as JSON holds them, with the weights that were sent in place of a name."""
        for record in records:
            content = json.loads(json.dumps(record))
            if "weights" in content:
                content["weights"] = self.sent[int(content["weights"])].tobytes().hex()
            self.lines[name].append(content)

    def seal(self, checkpoint: Checkpoint, meanwhile: Callable[[], None] | None = None) -> None:
        """Keep a checkpoint."""
        self.checkpoints.append(checkpoint)


# Final state, private records and folder of a run in memory.
Played = tuple[RunState, Records, MemoryFolder]


def build(base: dict[str, Any] = HORIZON, **changes: Any) -> Federation:
    """Build the federation of a small run with some keys changed."""
    return build_federation(make_run(base, **changes), KernelCache())


def play(federation: Federation, state: RunState | None = None) -> Played:
    """Run a federation in memory."""
    folder = MemoryFolder()
    rounds = run_rounds(federation, folder, state or start_run(federation))
    [final] = run_together([(federation, rounds)])
    return final, folder.lines[ROUNDS], folder


def play_with_faults(federation: Federation, spoil: Callable[[Reply], Reply]) -> Played:
    """Run a federation in memory, with replies that `spoil` has changed."""
    folder = MemoryFolder()

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        return {number: answer_one(work) for number, work in waiting.items()}

    def answer_one(work: Work) -> Any:
        if isinstance(work, ScoreWork):
            return federation.validation.score(work.weights)
        if isinstance(work, Jobs):
            return [job.weights for job in work.plan()]
        clients = work.attendance.clients[work.attendance.batches > 0].tolist()
        values = np.full(len(work.weights), 0.01, dtype=np.float32)
        replies = [spoil(Reply(client, values.copy(), 100)) for client in clients]
        most = int(work.clients.sizes.max())
        return sift_replies(replies if work.needed else (), work.fault, most)

    rounds = run_rounds(federation, folder, start_run(federation))
    [final] = drive([rounds], answer)
    return final, folder.lines[ROUNDS], folder


def play_queue(**changes: Any) -> tuple[Federation, RunState, Records, Records]:
    """Run a queue of few clients; return federation, final state, rounds and updates."""
    federation = build(DRAWN_QUEUE, **changes)
    final, records, folder = play(federation)
    return federation, final, records, folder.lines[UPDATES]
