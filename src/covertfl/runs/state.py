"""The state of a run between two rounds, and its form in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from covertfl.kernels.weights import Layout
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.learner import LearnerState, ServerMemory
from covertfl.runs.queue import UpdateQueue, unpack_queue


@dataclass(frozen=True, eq=False)
class RunState:
    """A run after some rounds.

    Parameters
    ----------
    round : rounds done
    learner : both trajectories
    queue : updates owed
    oracle_state : of the last round, -1 before the first
    learning_queries : sent so far
    scores : of the true weights and of each decoy's
    rejected : replies refused so far, by reason
    totals : privacy cost, learning cost and backlog summed over rounds; updates that were owed and
        served, their waits, and tasks that were finished
    seen : oracle state, arrival and would-be success of each round
    """

    round: int
    learner: LearnerState
    queue: UpdateQueue
    oracle_state: int
    learning_queries: int
    scores: tuple[float, ...]
    rejected: Mapping[str, int]
    totals: Mapping[str, float]
    seen: tuple[tuple[int, int, bool], ...]

    @property
    def exposure(self) -> float:
        """Learning queries over all rounds so far (F3)."""
        return self.learning_queries / self.round if self.round else 0.0


def pack_state(
    state: RunState,
    layout: Layout,
    kept_arrays: Mapping[str, npt.NDArray[Any]] | None = None,
    kept_facts: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """The state as a checkpoint holds it, with the names that make a model of its weights.

    Parameters
    ----------
    kept_arrays, kept_facts : what those who answer must find again
    """
    learner = state.learner
    arrays = {"true": learner.true}
    arrays |= {f"decoy-{number}": weights for number, weights in enumerate(learner.decoys, 1)}
    if learner.estimate is not None:
        arrays["estimate"] = learner.estimate
    if learner.memory is not None:
        arrays |= {"memory-mean": learner.memory.mean, "memory-square": learner.memory.square}
    shapes = zip(layout.names, map(list, layout.shapes), strict=True)
    facts = {
        "parameters": [list(entry) for entry in shapes],
        "updates": learner.updates,
        "moves": list(learner.moves),
        "memory_steps": None if learner.memory is None else learner.memory.steps,
        "queue": state.queue.pack(),
        "arrived": state.queue.arrived,
        "lost": state.queue.lost,
        "oracle_state": state.oracle_state,
        "learning_queries": state.learning_queries,
        "scores": list(state.scores),
        "rejected": dict(state.rejected),
        "totals": dict(state.totals),
    }
    arrays |= kept_arrays or {}
    facts |= {"kept": kept_facts} if kept_facts else {}
    return Checkpoint(state.round, arrays, facts)


def unpack_state(checkpoint: Checkpoint, records: Iterator[Mapping[str, Any]]) -> RunState:
    """The state from a checkpoint and the private records so far."""
    facts, arrays = checkpoint.facts, checkpoint.arrays
    memory = None
    if facts["memory_steps"] is not None:
        memory = ServerMemory(facts["memory_steps"], arrays["memory-mean"], arrays["memory-square"])
    decoys = tuple(arrays[f"decoy-{number}"] for number in range(1, len(facts["moves"]) + 1))
    seen = tuple(
        (int(record["oracle_state"]), int(record["arrival"]), bool(record["accepted"]))
        for record in records
    )
    return RunState(
        round=checkpoint.round,
        learner=LearnerState(
            arrays["true"],
            decoys,
            facts["updates"],
            tuple(facts["moves"]),
            memory,
            arrays.get("estimate"),
        ),
        queue=unpack_queue(facts["queue"], facts["arrived"], facts["lost"]),
        oracle_state=facts["oracle_state"],
        learning_queries=facts["learning_queries"],
        scores=tuple(facts["scores"]),
        rejected=facts["rejected"],
        totals=facts["totals"],
        seen=seen,
    )
