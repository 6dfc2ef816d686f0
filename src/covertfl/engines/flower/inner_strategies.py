"""The strategies that are wrapped: one for each trajectory, one to speak, one to spare.

A server optimiser remembers where its model went, so the true trajectory and each decoy have a
strategy of their own.  Settings that a strategy sends to clients come from one that never sees any
reply, so they cannot depend on what was done.  Work whose result is not used, done so that every
round takes the same time, falls to a spare one, whose memory is of no consequence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError, InconsistentMessageReplies
from flwr.serverapp.strategy import Bulyan, FedTrimmedAvg, MultiKrum, Strategy

from covertfl.engines.flower.messages import (
    ARRAYS,
    EXAMPLES,
    METRICS,
    ArrayForm,
    copy_config,
    find_arrays,
    is_finite,
    restrict_metrics,
)
from covertfl.errors import InvalidInput
from covertfl.federation import Remembered
from covertfl.weights import Vector

logger = logging.getLogger("flwr")

MakeStrategy = Callable[[], Strategy]
# These choose among replies, so a decoy's one proposal must stand in for as many.
CHOOSERS = (Bulyan, FedTrimmedAvg, MultiKrum)


@contextmanager
def _in_silence() -> Iterator[None]:
    """Keep a strategy from logging how many replies it got: the log may be read by others."""
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class RollCall(Grid):
    """A grid that says how many nodes there are and carries nothing.

    Parameters
    ----------
    number : of nodes
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def get_node_ids(self) -> Iterable[int]:
        """Some numbers."""
        return range(1, self._number + 1)

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Any:
        """There is none."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Carries nothing."""
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Carries nothing."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Carries nothing."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Carries nothing."""
        raise NotImplementedError


class InnerStrategies:
    """A wrapped strategy for each trajectory.

    Parameters
    ----------
    make : makes the strategy, a new one each time
    num_decoys : decoy trajectories
    form : of the arrays
    """

    def __init__(self, make: MakeStrategy, num_decoys: int, form: ArrayForm) -> None:
        self._own = [make() for _ in range(1 + num_decoys)]
        self._spare, self._spokesman, self._untouched = make(), make(), make()
        if len({id(strategy) for strategy in (*self._own, self._spare, self._spokesman)}) == 1:
            raise InvalidInput(
                "make_strategy must make a new strategy each time, got the same one again: "
                "trajectories that share a server optimiser give each other away"
            )
        self._form = form
        self._steps = [0] * (1 + num_decoys)
        speaker = vars(self._spokesman)
        self.arrays_key = str(speaker.get("arrayrecord_key", ARRAYS))
        self.config_key = str(speaker.get("configrecord_key", "config"))
        self.weighted_by = str(speaker.get("weighted_by_key", EXAMPLES))
        self._least = int(
            max(speaker.get("min_available_nodes", 1), speaker.get("min_train_nodes", 1))
        )

    # --- who is asked, and with which settings ---

    @property
    def least_nodes(self) -> int:
        """Nodes that must be connected before a round begins."""
        return self._least

    def count_sampled(self, present: int) -> int:
        """Nodes that are asked out of those that are connected."""
        speaker = vars(self._spokesman)
        fraction = float(speaker.get("fraction_train", 1.0))
        return min(max(int(present * fraction), int(speaker.get("min_train_nodes", 1))), present)

    def speak(
        self, round_number: int, first: ArrayRecord, config: ConfigRecord | None
    ) -> ConfigRecord:
        """The settings that clients are sent: of the round, and of nothing else.

        Parameters
        ----------
        first : any arrays, the same in every round
        """
        if type(self._spokesman).__module__.startswith("flwr."):
            first = ArrayRecord()  # Flower's own strategies do not look at them, only keep them
        with _in_silence():
            messages = list(
                self._spokesman.configure_train(
                    round_number, first, copy_config(config), RollCall(self._least)
                )
            )
        for message in messages:
            for record in message.content.config_records.values():
                return copy_config(record)
        return copy_config(config)

    def aggregate_evaluation(
        self, round_number: int, replies: Sequence[Message]
    ) -> MetricRecord | None:
        """What the wrapped strategy makes of clients' evaluations."""
        return self._spokesman.aggregate_evaluate(round_number, replies)

    # --- moves ---

    def aggregate(
        self, trajectory: int, weights: Vector, replies: Sequence[Message], *, kept: bool
    ) -> tuple[Vector, MetricRecord | None]:
        """Where the wrapped strategy leads from some weights; they stay where it gives nothing.

        Parameters
        ----------
        trajectory : whose strategy is used
        kept : whether the result is used; otherwise the work is done by the spare strategy
        """
        strategy = self._own[trajectory] if kept else self._spare
        number = self._steps[trajectory] + 1
        try:
            with _in_silence():
                strategy.configure_train(
                    number, self._form.write(weights), ConfigRecord(), RollCall(max(self._least, 1))
                )
                arrays, metrics = strategy.aggregate_train(number, replies)
        except (AggregationError, InconsistentMessageReplies) as error:
            # Clients must not be able to end the training; the weights stay as they are.
            logger.warning("the wrapped strategy could not aggregate: %s", error)
            arrays, metrics = None, None
        if kept:
            self._steps[trajectory] = number
        if arrays is None:
            return weights, metrics
        moved = self._form.take(arrays, keeps=kept)
        return (moved if is_finite(moved) else weights), metrics

    def clean(self, replies: Sequence[Message]) -> list[Message]:
        """Valid replies with the records that strategies expect, and nothing else in them."""
        metrics = restrict_metrics(replies, self.weighted_by)
        return [
            _rebuild(reply, find_arrays(reply), record)
            for reply, record in zip(replies, metrics, strict=True)
        ]

    def propose(self, replies: Sequence[Message], proposal: Vector) -> list[Message]:
        """Replies as they would be if clients had led to a decoy's proposal."""
        used = replies if isinstance(self._spare, CHOOSERS) else replies[:1]
        arrays = self._form.write(proposal, keeps=False)
        metrics = restrict_metrics(used, self.weighted_by)
        return [
            _rebuild(reply, arrays, record) for reply, record in zip(used, metrics, strict=True)
        ]

    # --- after a resume ---

    def remember(self) -> Remembered:
        """What the strategies have come to remember since they were made."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        facts: dict[str, Any] = {"steps": list(self._steps), "lost": []}
        fresh = vars(self._untouched)
        for number, strategy in enumerate(self._own):
            for key, value in vars(strategy).items():
                name = f"strategy-{number}/{key}"
                if _is_same(value, fresh.get(key)):
                    continue
                try:
                    facts[name] = _pack(value, name, arrays)
                except TypeError:
                    facts["lost"].append(name)
        return Remembered(arrays, facts)

    def recall(self, kept: Remembered) -> None:
        """Go on from what was remembered."""
        lost = kept.facts.get("lost", [])
        if lost:
            raise InvalidInput(
                f"the run cannot be resumed: its strategy remembers {lost[0]} in a form that "
                "cannot be kept; arrays, numbers, text and lists or tables of them can"
            )
        self._steps = [int(step) for step in kept.facts["steps"]]
        for number, strategy in enumerate(self._own):
            prefix = f"strategy-{number}/"
            for name, packed in kept.facts.items():
                if name.startswith(prefix):
                    setattr(strategy, name.removeprefix(prefix), _unpack(packed, kept.arrays))


def _rebuild(reply: Message, arrays: ArrayRecord, metrics: MetricRecord) -> Message:
    """A reply with other content, its own: some strategies empty what they are given."""
    content = RecordDict({ARRAYS: ArrayRecord(dict(arrays)), METRICS: metrics})
    rebuilt = Message(content, reply_to=reply)
    rebuilt.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return rebuilt


def _is_same(value: Any, fresh: Any) -> bool:
    """Whether a strategy's attribute is as a new strategy has it."""
    if value is fresh or (callable(value) and not isinstance(value, ArrayRecord)):
        return True
    plain = (bool, int, float, str)
    return isinstance(value, plain) and type(value) is type(fresh) and bool(value == fresh)


def _pack(value: Any, name: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    """A value as JSON holds it, its arrays put aside under names."""
    if value is None or isinstance(value, bool | int | float | str):
        return {"plain": value}
    if isinstance(value, np.generic):
        return {"plain": value.item()}
    if isinstance(value, np.ndarray):
        arrays[name] = value
        return {"array": name}
    if isinstance(value, ArrayRecord):
        parts = {key: array.numpy() for key, array in value.items()}
        return {"record": _pack(parts, name, arrays)}
    if isinstance(value, Mapping):
        return {
            "table": {str(key): _pack(item, f"{name}/{key}", arrays) for key, item in value.items()}
        }
    if isinstance(value, list | tuple):
        return {"list": [_pack(item, f"{name}/{i}", arrays) for i, item in enumerate(value)]}
    raise TypeError(name)


def _unpack(packed: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """The value that `_pack` was given."""
    [(kind, content)] = packed.items()
    if kind == "array":
        return arrays[content]
    if kind == "record":
        from flwr.app import Array

        parts = _unpack(content, arrays)
        return ArrayRecord({key: Array(np.ascontiguousarray(part)) for key, part in parts.items()})
    if kind == "table":
        return {key: _unpack(item, arrays) for key, item in content.items()}
    if kind == "list":
        return [_unpack(item, arrays) for item in content]
    return content
