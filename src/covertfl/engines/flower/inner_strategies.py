"""Wrapped strategies: one for each trajectory, one to speak, one to hear, one to spare.

A server optimiser remembers where its model went, so the true trajectory and each decoy have a
strategy of their own.  Settings that a strategy sends to clients come from one that never sees any
reply, so they cannot depend on what was done; what clients say of a query that they evaluate is
heard by one that never speaks.  Work whose result is not used, done so that every round takes the
same time, falls to a spare one, whose memory is of no consequence.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import Bulyan, FedTrimmedAvg, MultiKrum, Strategy

from covertfl.engines.flower.messages import (
    ARRAYS,
    EXAMPLES,
    METRICS,
    ArrayForm,
    copy_config,
    find_arrays,
    find_evaluations,
    is_finite,
    restrict_metrics,
)
from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Vector
from covertfl.runs.responder import Remembered

logger = logging.getLogger("flwr")

MakeStrategy = Callable[[], Strategy]
# These choose among replies, so a decoy's one proposal must stand in for as many.
CHOOSERS = (Bulyan, FedTrimmedAvg, MultiKrum)
# How often a strategy asks for the nodes before it is told of more, and before it is refused.
FEW_ASKS, MOST_ASKS = 3, 20
MOST_NODES = 4096


@contextmanager
def _in_silence() -> Iterator[None]:
    """Keep a strategy from saying how many replies it got or what it made of them.

    The log may be read by others.
    """
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class RollCall(Grid):
    """A grid that says how many nodes there are and carries nothing.

    Whoever asks again and again waits for more: each time after the third there are twice as many,
    up to a bound.  Whoever goes on asking then would wait for ever.

    Parameters
    ----------
    number : of nodes
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._asked = 0

    def get_node_ids(self) -> Iterable[int]:
        """Some numbers."""
        self._asked += 1
        if self._asked > MOST_ASKS:
            raise InvalidInput(
                f"the wrapped strategy waits for more than {self.number} nodes: its "
                "min_available_nodes must be an attribute of its own or of one that it wraps"
            )
        if self._asked > FEW_ASKS:
            self.number = max(self.number, min(2 * self.number, MOST_NODES))
        return range(1, self.number + 1)

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
    most_examples : largest number of examples that a client's evaluation is believed
    """

    def __init__(
        self, make: MakeStrategy, num_decoys: int, form: ArrayForm, most_examples: int
    ) -> None:
        self._own = [make() for _ in range(1 + num_decoys)]
        self._spare, self._spokesman, self._hearer, self._untouched = (make() for _ in range(4))
        _require_apart([*self._own, self._spare, self._spokesman, self._hearer, self._untouched])
        self._form, self._most_examples = form, most_examples
        self._steps = [0] * (1 + num_decoys)
        self._named: set[str] = set()
        self.arrays_key = str(self._look_up("arrayrecord_key", ARRAYS))
        self.config_key = str(self._look_up("configrecord_key", "config"))
        self.weighted_by = str(self._look_up("weighted_by_key", EXAMPLES))
        self._least = max(
            int(self._look_up("min_available_nodes", 1)),
            int(self._look_up("min_train_nodes", 1)),
            1,
        )
        self._called = self._least

    def _look_up(self, key: str, default: Any) -> Any:
        """A setting of the wrapped strategy, or else of the one that it wraps itself."""
        for owner in _list_nested(self._untouched).values():
            if key in vars(owner):
                return vars(owner)[key]
        return default

    # --- who is asked, and with which settings ---

    @property
    def least_nodes(self) -> int:
        """Nodes that must be connected before a round begins."""
        return self._least

    def count_sampled(self, present: int) -> int:
        """Nodes that are asked out of those that are connected."""
        fraction = float(self._look_up("fraction_train", 1.0))
        least = int(self._look_up("min_train_nodes", 1))
        return min(max(int(present * fraction), least), present)

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
        try:
            messages = self._configure(self._spokesman, round_number, first, copy_config(config))
        except InvalidInput:
            raise
        except Exception as error:  # a client has no part in this
            raise InvalidInput(
                f"the wrapped strategy cannot configure round {round_number}: "
                f"{type(error).__name__}: {error}"
            ) from error
        for message in messages:
            for record in message.content.config_records.values():
                return copy_config(record)
        return copy_config(config)

    def _configure(
        self, strategy: Strategy, number: int, arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        """What a strategy would send, to as many nodes as it waits for."""
        nodes = RollCall(self._called)
        with _in_silence():
            messages = list(strategy.configure_train(number, arrays, config, nodes))
        self._called = nodes.number
        return messages

    def aggregate_evaluation(
        self, round_number: int, replies: Sequence[Message]
    ) -> MetricRecord | None:
        """What the wrapped strategy makes of clients' evaluations; None where it cannot."""
        valid = find_evaluations(replies, self.weighted_by, self._most_examples)
        metrics = restrict_metrics(valid, self.weighted_by)
        heard = [
            _rebuild(reply, None, record) for reply, record in zip(valid, metrics, strict=True)
        ]
        try:
            with _in_silence():
                return self._hearer.aggregate_evaluate(round_number, heard)
        except Exception as error:  # whatever clients have led it to
            self._name("aggregate evaluations", error)
            return None

    # --- moves ---

    def aggregate(
        self, trajectory: int, weights: Vector, replies: Sequence[Message], *, kept: bool
    ) -> Vector | None:
        """Where the wrapped strategy leads from some weights; None where it fails.

        A strategy that has failed is as it was before.  The same work is done in any case.

        Parameters
        ----------
        trajectory : whose strategy is used
        kept : whether the result is used; otherwise the work is done by the spare strategy
        """
        strategy = self._own[trajectory] if kept else self._spare
        number, before = self._steps[trajectory] + 1, _copy_state(strategy)
        moved = self._move(strategy, number, weights, replies)
        arrays = self._form.write(weights if moved is None else moved)
        if moved is None:
            _restore_state(before)
            return None
        if kept:
            self._steps[trajectory] = number
            self._form.keep(trajectory, moved, arrays)
        return moved

    def _move(
        self, strategy: Strategy, number: int, weights: Vector, replies: Sequence[Message]
    ) -> Vector | None:
        """One aggregation; None where the strategy gives nothing, or nothing of use."""
        try:
            self._configure(strategy, number, self._form.find(weights), ConfigRecord())
            with _in_silence():
                arrays, _ = strategy.aggregate_train(number, replies)
            if arrays is None:
                return None
            moved = self._form.take(arrays)
            if not is_finite(moved):
                raise AggregationError("its result is not finite")
            return moved
        except Exception as error:  # clients must not be able to end the training
            self._name("aggregate", error)
            return None

    def _name(self, what: str, error: Exception) -> None:
        """Say once what went wrong: how often it does may depend on the trajectory."""
        kind = f"{what} {type(error).__name__}"
        if kind not in self._named:
            self._named.add(kind)
            logger.warning(
                "the wrapped strategy could not %s: %s: %s", what, type(error).__name__, error
            )

    def clean(self, replies: Sequence[Message]) -> list[Message]:
        """Valid replies with the records that strategies expect, and nothing else in them."""
        metrics = restrict_metrics(replies, self.weighted_by)
        return [
            _rebuild(reply, self._form.clean(find_arrays(reply)), record)
            for reply, record in zip(replies, metrics, strict=True)
        ]

    def propose(self, replies: Sequence[Message], proposal: Vector) -> list[Message]:
        """Replies as they would be if clients had led to a decoy's proposal."""
        innermost = list(_list_nested(self._untouched).values())[-1]
        used = replies if isinstance(innermost, CHOOSERS) else replies[:1]
        arrays = self._form.write(proposal)
        metrics = restrict_metrics(used, self.weighted_by)
        return [
            _rebuild(reply, arrays, record) for reply, record in zip(used, metrics, strict=True)
        ]

    # --- after a resume ---

    def _list_remembering(self) -> dict[str, Strategy]:
        own = {f"strategy-{number}": strategy for number, strategy in enumerate(self._own)}
        return {**own, "spokesman": self._spokesman, "hearer": self._hearer}

    def remember(self) -> Remembered:
        """What the strategies have come to remember since they were made."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        facts: dict[str, Any] = {"steps": list(self._steps), "lost": []}
        fresh = _list_nested(self._untouched)
        for role, strategy in self._list_remembering().items():
            for place, owner in _list_nested(strategy).items():
                known = vars(fresh[place]) if place in fresh else {}
                for key, value in vars(owner).items():
                    name = f"{role}/{place}{key}"
                    if isinstance(value, Strategy) or _is_same(value, known.get(key)):
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
        for role, strategy in self._list_remembering().items():
            owners = _list_nested(strategy)
            for name, packed in kept.facts.items():
                place, _, key = name.removeprefix(f"{role}/").rpartition("/")
                owner = owners.get(f"{place}/" if place else "")
                if name.startswith(f"{role}/") and owner is not None:
                    setattr(owner, key, _unpack(packed, kept.arrays))


def _list_nested(strategy: Strategy, place: str = "") -> dict[str, Strategy]:
    """A strategy and those that it wraps itself, outermost first, by where they are."""
    nested = {place: strategy}
    for key, value in vars(strategy).items():
        if isinstance(value, Strategy) and value is not strategy:
            nested |= _list_nested(value, f"{place}{key}/")
    return nested


def _require_apart(strategies: Sequence[Strategy]) -> None:
    """Refuse strategies that share a memory."""
    parts = [part for strategy in strategies for part in _list_nested(strategy).values()]
    if len({id(part) for part in parts}) < len(parts):
        raise InvalidInput(
            "make_strategy must make a new strategy each time, got the same one again: "
            "trajectories that share a server optimiser give each other away"
        )


def _copy_state(strategy: Strategy) -> list[tuple[Strategy, dict[str, Any]]]:
    """What a strategy remembers, and those that it wraps."""
    return [
        (owner, {key: _copy(value) for key, value in vars(owner).items()})
        for owner in _list_nested(strategy).values()
    ]


def _copy(value: Any) -> Any:
    if isinstance(value, Strategy) or callable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # a lock, a connection: nothing that an aggregation turns back
        return value


def _restore_state(before: Sequence[tuple[Strategy, dict[str, Any]]]) -> None:
    """Let strategies remember what they did before."""
    for owner, state in before:
        vars(owner).clear()
        vars(owner).update(state)


def _rebuild(reply: Message, arrays: Mapping[str, Array] | None, metrics: MetricRecord) -> Message:
    """A reply with other content, its own: some strategies empty what they are given."""
    content = RecordDict({METRICS: metrics})
    if arrays is not None:
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
        parts = _unpack(content, arrays)
        return ArrayRecord({key: Array(np.ascontiguousarray(part)) for key, part in parts.items()})
    if kind == "table":
        return {key: _unpack(item, arrays) for key, item in content.items()}
    if kind == "list":
        return [_unpack(item, arrays) for item in content]
    return content
