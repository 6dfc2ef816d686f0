"""Runs played in memory: built, carried out and recorded without files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from covertfl.engines.simulated import run_together
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.driver import drive
from covertfl.runs.federation import Federation, RunState, start_run
from covertfl.runs.folder import RunFolder
from covertfl.runs.learner import Reply
from covertfl.runs.responder import ClientWork, Work
from covertfl.runs.rounds import run_rounds
from tests.support.small_runs import FUNCTION_QUEUE, HORIZON, make_run

FUNCTION_HORIZON = {
    **{key: value for key, value in HORIZON.items() if key not in ("data", "federation")},
    "task": "function",
}
Records = list[dict[str, Any]]


class MemoryFolder:
    """Keeps what a run records in memory."""

    def __init__(self) -> None:
        self.records: dict[str, Records] = {}
        self.checkpoints: list[Checkpoint] = []

    def write_weights(self, layout: Layout, vector: Vector) -> str:
        """Return the weights themselves, in place of the name of a file."""
        return vector.tobytes().hex()

    def append(self, name: str, *records: Mapping[str, Any]) -> None:
        """Keep records as JSON holds them."""
        for record in records:
            self.records.setdefault(name, []).append(json.loads(json.dumps(record)))

    def note(self, decision: Mapping[str, Any]) -> None:
        """Do nothing: these runs are not interrupted."""

    def read_note(self) -> None:
        """Return None: these runs are not interrupted."""

    def begin_query(self, layout: Layout, vector: Vector, ahead: Mapping[str, Vector]) -> None:
        """Do nothing: nothing is written."""

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
    rounds = run_rounds(federation, cast(RunFolder, folder), state or start_run(federation))
    [final] = run_together([(federation, rounds)])
    return final, folder.records["private/rounds.jsonl"], folder


def play_with_faults(federation: Federation, spoil: Callable[[Reply], Reply]) -> Played:
    """Run a federation in memory, with replies that `spoil` has changed."""
    folder = MemoryFolder()

    def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
        return {number: answer_one(work) for number, work in waiting.items()}

    def answer_one(work: Work) -> list[Any]:
        if not isinstance(work, ClientWork):
            return [job.weights for job in work.jobs]
        clients = work.attendance.clients[work.attendance.batches > 0].tolist()
        values = np.full(len(work.weights), 0.01, dtype=np.float32)
        return [spoil(Reply(client, values.copy(), 100)) for client in clients]

    rounds = run_rounds(federation, cast(RunFolder, folder), start_run(federation))
    [final] = drive([rounds], answer)
    return final, folder.records["private/rounds.jsonl"], folder


def play_queue(**changes: Any) -> tuple[Federation, RunState, Records, Records]:
    """Run the function's queue; return federation, final state, rounds and updates."""
    federation = build(FUNCTION_QUEUE, **changes)
    final, records, folder = play(federation)
    return federation, final, records, folder.records.get("private/updates.jsonl", [])
