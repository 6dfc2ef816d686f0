"""The state of a run as a checkpoint, and back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from covertfl.decoys.replica import Replicas
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout
from covertfl.runs.checkpoint import WRONG_CONTENT, Checkpoint
from covertfl.runs.federation import RunState
from covertfl.runs.generations import Generation, recall
from covertfl.runs.learner import LearnerState, ServerMemory
from covertfl.runs.live import LiveState
from covertfl.runs.queue import OwedTask, UpdateQueue
from covertfl.runs.responder import Remembered

NOTHING = Remembered()


def pack_state(
    state: RunState, layout: Layout, kept: Remembered = NOTHING, *, replicas: Replicas | None = None
) -> Checkpoint:
    """Return the state as a checkpoint.

    Parameters
    ----------
    layout : names and shapes of the model's parameters, kept for export
    kept : state of those who answer the queries
    replicas : of an exchangeable run, whose decoys are images of the truth and need not be kept
    """
    learner = state.learner
    arrays = {"true": learner.true}
    if learner.sent is None:
        arrays |= {f"decoy-{number}": weights for number, weights in enumerate(learner.decoys, 1)}
    elif learner.sent[0] is not learner.true:
        arrays["shown"] = learner.sent[0]
    if learner.memory is not None:
        arrays |= {"memory-mean": learner.memory.mean, "memory-square": learner.memory.square}
    shapes = zip(layout.names, map(list, layout.shapes), strict=True)
    facts = {
        "parameters": [list(entry) for entry in shapes],
        "updates": learner.updates,
        "moves": list(learner.moves),
        "memory_steps": None if learner.memory is None else learner.memory.steps,
        **_pack_queue(state.queue),
        "oracle_state": state.oracle_state,
        "learning_queries": state.learning_queries,
        "scores": list(state.scores),
        "rejected": dict(state.rejected),
        "totals": dict(state.totals),
        "seen": len(state.seen),
        "live": dict(vars(state.live)),
    }
    facts |= {"kept": kept.facts} if kept.facts else {}
    if replicas is not None:
        facts["flips"] = replicas.fingerprint
        facts["generation"], generation = state.generation.pack(learner.true)
        arrays |= generation
    return Checkpoint(state.round, {**arrays, **kept.arrays}, facts)


def _pack_queue(queue: UpdateQueue) -> dict[str, Any]:
    """Return the queue as JSON values; tasks in a row that differ in their numbers alone are one.

    Thousands may wait, and a checkpoint is written in every round.
    """
    firsts: list[OwedTask] = []
    counts: list[int] = []
    content, following = None, 0
    for task in queue.tasks:
        if task.task == following and task.content == content:
            counts[-1] += 1
        else:
            firsts.append(task)
            counts.append(1)
            content = task.content
        following = task.task + 1
    rows = [[first.task, *first.content] for first in firsts]
    return {
        "queue": [_shorten(row) for row in rows],
        **({"queue_counts": counts} if len(rows) < len(queue.tasks) else {}),
        "arrived": queue.arrived,
        "lost": queue.lost,
    }


def _shorten(row: list[Any]) -> list[Any]:
    """Return a task without the fields that only tasks of a service use, where it does not."""
    return row[:4] if row[4:] == [0, 0, None] else row


def _unpack_queue(facts: Mapping[str, Any]) -> UpdateQueue:
    counts = facts.get("queue_counts", [1] * len(facts["queue"]))
    tasks = (
        OwedTask(first + place, *others)
        for (first, *others), count in zip(facts["queue"], counts, strict=True)
        for place in range(count)
    )
    return UpdateQueue(tuple(tasks), facts["arrived"], facts["lost"])


def unpack_state(
    checkpoint: Checkpoint, records: Iterator[Mapping[str, Any]], replicas: Replicas | None = None
) -> RunState:
    """Return the state from a checkpoint and the private records of the rounds so far.

    Raises
    ------
    InvalidInput
        if the replicas have other flips than before, which would give the truth away, or the
        checkpoint lacks a part
    """
    # One pass that keeps little: the records of a service grow for ever.
    most = checkpoint.facts.get("seen")
    latest: deque[Mapping[str, Any]] = deque(maxlen=most if type(most) is int else 0)
    sent: Counter[int] = Counter()
    for record in records:
        sent[int(record["trajectory"])] += 1
        latest.append(record)
    try:
        return _unpack(checkpoint, sent, latest, replicas)
    except InvalidInput:
        raise
    except WRONG_CONTENT as error:
        reason = f"{type(error).__name__} {error}"
        raise InvalidInput(f"the checkpoint does not hold the state of a run: {reason}") from error


def _unpack(
    checkpoint: Checkpoint,
    sent: Mapping[int, int],
    latest: Iterable[Mapping[str, Any]],
    replicas: Replicas | None,
) -> RunState:
    facts, arrays = checkpoint.facts, checkpoint.arrays
    if replicas is not None and facts.get("flips") != replicas.fingerprint:
        raise InvalidInput(
            "the run cannot be resumed: its flips are not those of the checkpoint, so the secret "
            "of the federation, or its public set, has changed since the run began"
        )
    memory = None
    if facts["memory_steps"] is not None:
        memory = ServerMemory(facts["memory_steps"], arrays["memory-mean"], arrays["memory-square"])
    moves = tuple(facts["moves"])
    numbers = range(1, 1 + len(moves)) if replicas is None else ()
    decoys = tuple(arrays[f"decoy-{number}"] for number in numbers)
    learner = LearnerState(arrays["true"], decoys, facts["updates"], moves, memory)
    if replicas is not None:
        learner = recall(learner, replicas, arrays.get("shown"))
    return RunState(
        round=checkpoint.round,
        learner=learner,
        queue=_unpack_queue(facts),
        oracle_state=facts["oracle_state"],
        queries=tuple(sent.get(number, 0) for number in range(1 + len(learner.decoys))),
        scores=tuple(facts["scores"]),
        rejected=facts["rejected"],
        totals=facts["totals"],
        seen=tuple(
            (int(record["oracle_state"]), int(record["arrival"]), bool(record["accepted"]))
            for record in latest
        ),
        live=LiveState.from_dict(facts["live"]),
        generation=Generation.from_checkpoint(facts.get("generation", {}), arrays),
    )
