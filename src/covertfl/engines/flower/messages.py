"""Queries and replies as Flower messages.

Everything a client receives is a message made by `make_queries`, whose arrays are made by
`array_form`.  Replies are checked here; what a client sends must not be able to end a run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message.typeddict import TypedDict

from covertfl.engines.flower.array_form import ArrayForm, RefusedReply
from covertfl.kernels.job import Vector
from covertfl.schemes.replies import Reply

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
ROUND = "server-round"
EXAMPLES = "num-examples"
Kind = TypeVar("Kind", ArrayRecord, MetricRecord)
AggregateMetrics = Callable[[list[RecordDict], str], MetricRecord]
# A reply may have this many times the bytes of the model, and as many more.
SIZE_TIMES, SIZE_EXTRA = 2, 2**20
NOTHING: Vector = np.empty(0, dtype=np.float32)
# Kind of a metric that is not finite.
ODD = "odd"


@dataclass(frozen=True)
class MessageKeys:
    """Names in messages, as the wrapped strategy uses them.

    Parameters
    ----------
    arrays, config : of the records in a query
    examples : of the metric of a reply that holds the number of examples
    """

    arrays: str = ARRAYS
    config: str = CONFIG
    examples: str = EXAMPLES


def make_queries(
    content: RecordDict, nodes: Sequence[int], message_type: str, round_number: int, ttl: float
) -> list[Message]:
    """Return the same message for every node, in the order of the nodes."""
    return [
        Message(content, node, message_type, ttl=ttl, group_id=str(round_number)) for node in nodes
    ]


def copy_config(config: ConfigRecord | None) -> ConfigRecord:
    """Return a copy of a config record that can be added to; an empty one for None."""
    return ConfigRecord(dict(config or {}))


def find_round(message: Message) -> int | None:
    """Return the round that the config of a query names, None if it names none."""
    numbers = (config.get(ROUND) for config in message.content.config_records.values())
    return next((number for number in numbers if type(number) is int), None)


def find_arrays(message: Message) -> ArrayRecord:
    """Return the only array record of a reply, or refuse the reply."""
    records = _select(message, ArrayRecord, MetricRecord)
    if len(records) != 1:
        raise RefusedReply("wrong type")
    return records[0]


def find_metrics(message: Message) -> MetricRecord:
    """Return the only metric record of a reply, or refuse the reply."""
    records = _select(message, MetricRecord, ArrayRecord)
    if len(records) != 1:
        raise RefusedReply("bad example count")
    return records[0]


def _select(message: Message, kind: type[Kind], other: type) -> list[Kind]:
    """Return the records of a kind; most of the others are known by their type, which is faster."""
    records = message.content.values()
    return [record for record in records if type(record) is not other and isinstance(record, kind)]


def find_size_limit(form: ArrayForm) -> int:
    """Return the number of bytes that a reply may have: twice those of the model, and 1 MiB."""
    sizes = (math.prod(form.shape(name)) * dtype.itemsize for name, dtype in form.dtypes.items())
    return SIZE_TIMES * sum(sizes) + SIZE_EXTRA


def is_too_large(message: Message, most_bytes: int) -> bool:
    """Return whether the content of a message takes more bytes, without reading its values."""
    return message.has_content() and count_bytes(message.content) > most_bytes


def count_bytes(value: Any) -> int:
    """Return about how many bytes a record, or a value in one, takes."""
    if isinstance(value, int):
        return 8 + value.bit_length() // 8
    if isinstance(value, ArrayRecord):  # as below, many times as fast
        arrays = value.items()
        return sum([len(key) + len(one.data) + 8 * len(one.shape) for key, one in arrays])
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, TypedDict | dict):  # all records
        return sum([len(key) + count_bytes(item) for key, item in value.items()])
    if isinstance(value, list) and value and isinstance(value[0], bytes | str | int):
        return sum(map(count_bytes, value))
    return 8 * len(value) if isinstance(value, list) else 8


def _view(content: RecordDict, form: ArrayForm) -> tuple[list[Vector] | None, int]:
    """Return what `ArrayForm.view` does for a reply's arrays, and its size in bytes."""
    views, size = None, 0
    for key, record in content.items():
        found = form.view(record) if type(record) is ArrayRecord else None
        size += len(key) + (count_bytes(record) if found is None else form.usual_size)
        views = found or views
    return views, size


def read_reply(
    message: Message,
    client: int,
    form: ArrayForm,
    examples_key: str,
    *,
    keeps_values: bool,
    most_bytes: int,
    most_examples: int,
) -> Reply | None:
    """Return a client's reply; None from a client that had no examples in this round.

    The values are checked in any case, and kept, array by array, only if they are needed.
    A reply of more than `most_bytes`, or that claims more than `most_examples`, is not decoded.
    """
    if message.has_error() or not message.has_content():
        return Reply(client, None, None, "client error")
    try:
        views, size = _view(message.content, form)
        if size > most_bytes:
            raise RefusedReply("too large")
        examples = find_metrics(message).get(examples_key)
        if examples == 0 and not isinstance(examples, bool):
            return None
        if type(examples) is not int or examples < 1:
            raise RefusedReply("bad example count")
        if examples > most_examples:
            raise RefusedReply("too many examples")
        arrays, values = find_arrays(message), [NOTHING]
        if keeps_values:
            values = form.read(arrays, views)
        else:
            form.check(arrays)
    except RefusedReply as refused:
        return Reply(client, None, None, str(refused))
    except Exception:  # a client may send anything
        return Reply(client, None, None, "wrong type")
    return Reply(client, values, examples)


def find_odd_metrics(records: Mapping[int, MetricRecord]) -> set[int]:
    """Return the clients whose metrics lack a key that most replies have, or are not finite.

    One such reply would stop an aggregation that needs, for example, the loss of every client.
    """
    kinds = {client: _describe(record) for client, record in records.items()}
    counts: Counter[tuple[str, str]] = Counter()
    alike = Counter(kinds.values())
    for kind, number in alike.items():
        counts.update(dict.fromkeys(kind, number))
    expected = {key for key, count in counts.items() if 2 * count > len(records)}
    odd = {kind for kind in alike if not expected <= kind or _is_odd(kind)}
    return {client for client, kind in kinds.items() if kind in odd}


def has_odd_metrics(record: MetricRecord) -> bool:
    """Return whether a metric is not finite."""
    return not all(map(_are_finite, record.values()))


def find_evaluations(
    messages: Sequence[Message], examples_key: str, most_examples: int
) -> list[Message]:
    """Return the usable replies to an evaluation; the others are left out as in training.

    No client can have more than `most_examples`.
    """
    valid: dict[int, MetricRecord] = {}
    for place, message in enumerate(messages):
        if message.has_error() or not message.has_content():
            continue
        try:
            metrics = find_metrics(message)
            examples = metrics.get(examples_key)
        except Exception:  # a client may send anything
            continue
        if type(examples) is int and 1 <= examples <= most_examples:
            valid[place] = metrics
    odd = find_odd_metrics(valid)
    return [messages[place] for place in valid if place not in odd]


def restrict_metrics(records: Sequence[MetricRecord], examples_key: str) -> list[MetricRecord]:
    """Return the metrics that all replies have in the same form, the example count included."""
    kinds = {_describe(record) for record in records}
    shared = {key for key, _ in frozenset.intersection(*kinds)} | {examples_key} if kinds else set()
    return [MetricRecord({key: record[key] for key in sorted(shared)}) for record in records]


def has_more(record: MetricRecord) -> bool:
    """Return whether metrics hold more than the number of examples, as those of few clients do."""
    return len(record) > 1


def combine_metrics(
    records: Sequence[MetricRecord], examples_key: str, aggregate: AggregateMetrics
) -> MetricRecord | None:
    """Return the metrics of valid replies, aggregated; None where there are none."""
    if not any(map(has_more, records)):
        return None
    records = restrict_metrics(records, examples_key)
    if len(records[0]) < 2:
        return None
    return aggregate([RecordDict({METRICS: record}) for record in records], examples_key)


def _describe(record: MetricRecord) -> frozenset[tuple[str, str]]:
    """Return each key with the kind of its value: a number, a list of some length, or odd."""
    return frozenset((key, _describe_value(value)) for key, value in record.items())


def _describe_value(value: Any) -> str:
    kind = f"list of {len(value)}" if isinstance(value, list) else "number"
    return kind if _are_finite(value) else ODD


def _is_odd(kinds: frozenset[tuple[str, str]]) -> bool:
    return any(kind == ODD for _, kind in kinds)


def _are_finite(value: Any) -> bool:
    try:
        if isinstance(value, int | float):
            return math.isfinite(value)
        return bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except OverflowError:  # an integer too large for a float
        return False
