"""The parts of a run that never change, its state between two rounds, and the checkpoint of it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from covertfl.arrays import FloatArray
from covertfl.decision.problem import FiniteHorizon, Problem
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Layout, LocalKernel, Vector
from covertfl.runs.checkpoint import WRONG_CONTENT, Checkpoint
from covertfl.runs.engine import Engine, Validation
from covertfl.runs.participation import Clients, RecordedRounds
from covertfl.runs.queue import OwedTask, UpdateQueue
from covertfl.runs.settings import RunSettings
from covertfl.schemes.scheme import Packed, Scheme, SeenRound, State, read_count
from covertfl.tasks.task import TrainingTask

TOTALS = ("privacy_cost", "learning_cost", "backlog", "served", "wait", "finished", "replies")


@dataclass(frozen=True, eq=False)
class Federation:
    """The parts of a run, none of which ever changes.

    Parameters
    ----------
    problem : with the success probabilities in force
    scheme : what clients are sent, and what their replies do
    engine : who answers
    clients : with the data that they hold at the beginning
    kernel : how the model is trained
    measured : success probabilities measured for the federation, whichever are in force
    recorded : participation to replay, None to draw it
    arrivals : number of updates that arrive by round, None to draw it
    """

    settings: RunSettings
    problem: Problem
    scheme: Scheme
    engine: Engine
    clients: Clients
    kernel: LocalKernel
    measured: FloatArray | None = None
    recorded: RecordedRounds | None = None
    arrivals: Mapping[int, int] | None = None

    @property
    def task(self) -> TrainingTask:
        """What is trained."""
        return self.clients.task

    @property
    def layout(self) -> Layout:
        """Names and shapes of the model's parameters."""
        return self.kernel.layout

    @cached_property
    def validation(self) -> Validation:
        """The examples on which models are scored."""
        return Validation(self.task, self.kernel)


@dataclass(frozen=True, eq=False)
class RunState:
    """The state of a run after a round.

    Parameters
    ----------
    round : number of rounds done
    scheme : the scheme's own state
    updates : number of updates of the owner's model
    oracle_state : oracle state of the last round, -1 before the first
    queries : number of queries of the owner's model, then of each other trajectory
    scores : score of the owner's model, then of each other trajectory
    rejected : number of rejected replies so far, by reason
    totals : sums over rounds of the privacy cost, the learning cost and the backlog; numbers of
        owed updates done and of tasks finished, the sum of the updates' waits, and the number of
        replies that were needed or rejected
    seen : oracle state, arriving updates and acceptance of the latest rounds, as many as are
        needed; a round without a learning query counts as accepted if one would have been
    data : round whose requests the clients' data are as of, 0 for those of the beginning
    """

    round: int
    scheme: State
    queue: UpdateQueue
    updates: int
    oracle_state: int
    queries: tuple[int, ...]
    scores: tuple[float, ...]
    rejected: Mapping[str, int]
    totals: Mapping[str, float]
    seen: tuple[SeenRound, ...] = ()
    data: int = 0

    @property
    def learning_queries(self) -> int:
        """Number of rounds in which the owner's model was sent."""
        return self.queries[0]

    @property
    def exposure(self) -> float:
        """Share of learning queries among the rounds so far.

        It is the belief of the eavesdropper by proportional sampling, equation (6) of the paper.
        """
        return self.learning_queries / self.round if self.round else 0.0


def start_run(
    federation: Federation, first: Vector | None = None, *, is_fresh: bool = False
) -> RunState:
    """Return the state before the first round; `first` and `is_fresh` as in `Scheme.start`."""
    scheme, queue = federation.scheme, UpdateQueue()
    state = scheme.start(federation.engine.aggregator, first, is_fresh=is_fresh)
    if isinstance(federation.problem, FiniteHorizon):
        queue = queue.admit(federation.problem.updates, 0, None)
    models = scheme.models(state)
    return RunState(
        round=0,
        scheme=state,
        queue=queue,
        updates=0,
        oracle_state=-1,
        queries=(0,) * len(models),
        scores=tuple(federation.validation.score(weights) for weights in models),
        rejected={},
        totals=dict.fromkeys(TOTALS, 0.0),
    )


def pack_state(federation: Federation, state: RunState) -> Checkpoint:
    """Return the state as a checkpoint; the names and shapes of parameters are for export."""
    scheme, engine = federation.scheme.pack(state.scheme), federation.engine.remember()
    layout = federation.layout
    shapes = zip(layout.names, map(list, layout.shapes), strict=True)
    facts = {
        "parameters": [list(entry) for entry in shapes],
        "scheme": dict(scheme.facts),
        "updates": state.updates,
        **_pack_queue(state.queue),
        "oracle_state": state.oracle_state,
        "learning_queries": state.learning_queries,
        "scores": list(state.scores),
        "rejected": dict(state.rejected),
        "totals": dict(state.totals),
        "seen": len(state.seen),
        "data": state.data,
    }
    facts |= {"kept": engine.facts} if engine.facts else {}
    return Checkpoint(state.round, {**scheme.arrays, **engine.arrays}, facts)


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
    checkpoint: Checkpoint, records: Iterator[Mapping[str, Any]], federation: Federation
) -> RunState:
    """Return the state from a checkpoint and the private records of the rounds so far.

    Raises
    ------
    InvalidInput
        if the scheme refuses it, the checkpoint lacks a part, or it is of another model
    """
    # One pass that keeps little: the records of a service grow for ever.
    most = checkpoint.facts.get("seen")
    latest: deque[Mapping[str, Any]] = deque(maxlen=most if type(most) is int else 0)
    sent: Counter[int] = Counter()
    for record in records:
        sent[int(record["trajectory"])] += 1
        latest.append(record)
    try:
        scheme = unpack_scheme(checkpoint, federation.scheme)
        return _unpack(checkpoint, scheme, federation.settings.num_trajectories, sent, latest)
    except InvalidInput:
        raise
    except WRONG_CONTENT as error:
        reason = f"{type(error).__name__} {error}"
        raise InvalidInput(f"the checkpoint does not hold the state of a run: {reason}") from error


def unpack_scheme(checkpoint: Checkpoint, scheme: Scheme) -> State:
    """Return the scheme's part of a checkpoint."""
    return scheme.unpack(Packed(checkpoint.arrays, checkpoint.facts["scheme"]))


def _unpack(
    checkpoint: Checkpoint,
    scheme: State,
    trajectories: int,
    sent: Mapping[int, int],
    latest: Iterable[Mapping[str, Any]],
) -> RunState:
    facts = checkpoint.facts
    return RunState(
        round=checkpoint.round,
        scheme=scheme,
        queue=_unpack_queue(facts),
        updates=read_count(facts, "updates"),
        oracle_state=facts["oracle_state"],
        queries=tuple(sent.get(number, 0) for number in range(trajectories)),
        scores=tuple(facts["scores"]),
        rejected=facts["rejected"],
        totals=facts["totals"],
        seen=tuple(
            (int(record["oracle_state"]), int(record["arrival"]), bool(record["accepted"]))
            for record in latest
        ),
        data=read_count(facts, "data"),
    )
