"""The state of a run between two rounds, and its conversion to and from a checkpoint."""

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
    """The state of a run after a round.

    Parameters
    ----------
    round : number of rounds done
    learner : the true trajectory and the decoys'
    queue : updates owed
    oracle_state : oracle state of the last round, -1 before the first
    learning_queries : number of learning queries so far
    scores : score of the true weights, then of each decoy's
    rejected : number of rejected replies so far, by reason
    totals : sums over rounds of the privacy cost, the learning cost and the backlog; numbers of
        owed updates done and of tasks finished, and the sum of the updates' waits
    seen : oracle state, arriving updates and acceptance of each round; a round without a learning
        query counts as accepted if one would have been
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
        """Share of learning queries among the rounds so far.

        It is the belief of the eavesdropper by proportional sampling, equation (6) of the paper.
        """
        return self.learning_queries / self.round if self.round else 0.0


def pack_state(
    state: RunState,
    layout: Layout,
    kept_arrays: Mapping[str, npt.NDArray[Any]] | None = None,
    kept_facts: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Return the state as a checkpoint.

    Parameters
    ----------
    layout : names and shapes of the model's parameters, kept for export
    kept_arrays, kept_facts : state of those who answer the queries
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
    """Return the state from a checkpoint and the private records of the rounds so far."""
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
