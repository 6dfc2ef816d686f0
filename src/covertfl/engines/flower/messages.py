"""Queries and replies as Flower's messages.

Everything that a client receives is made here.  A query holds one record of arrays and one of
settings; names, shapes, kinds, headers and sizes are those of the first arrays in every round,
whatever an aggregation has made of them, and arrays that are not trained (counters, running
statistics) are always sent as they were at first, because they would count a trajectory's visits.

A reply comes from anybody: it is looked at before it is decoded, and what does not fit is named.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from covertfl.errors import InvalidInput
from covertfl.kernels.weights import Layout, Vector
from covertfl.runs.learner import Reply

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
ROUND = "server-round"
EXAMPLES = "num-examples"
# Bytes that the header of an array may take beside its numbers.
HEADER = 4096
# How arrays are turned into bytes.
USUAL = "numpy.ndarray"


class Refused(Exception):
    """A reply that cannot be used; its argument is the reason, one of `learner.REASONS`."""


@dataclass(frozen=True, eq=False)
class ArrayForm:
    """How a model travels.

    Parameters
    ----------
    layout : arrays that are trained
    dtypes : of all arrays, in the order in which they travel
    fixed : arrays that are not trained, as they were at first
    """

    layout: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    fixed: Mapping[str, Array]
    # The weights of each trajectory and their arrays, ready to be sent.  Writing a large model
    # takes long: it is done when a trajectory may move, in every round, and never between the start
    # of a round and its query, where the time would tell who has moved.
    _ready: dict[int, tuple[Vector, dict[str, Array]]] = field(default_factory=dict)

    def write(self, weights: Vector) -> dict[str, Array]:
        """The arrays of some weights: always made here, so their form is always the same."""
        parts = self.layout.split(weights)
        return {
            name: self.fixed[name]
            if name in self.fixed
            else Array(np.asarray(parts[name], dtype=dtype, order="C"))
            for name, dtype in self.dtypes.items()
        }

    def keep(self, trajectory: int, weights: Vector, arrays: dict[str, Array]) -> None:
        """Have what a trajectory has moved to ready; the weights must not be changed afterwards."""
        self._ready[trajectory] = (weights, arrays)

    def find(self, weights: Vector) -> ArrayRecord:
        """The record of weights that a trajectory is at, which nobody has to wait for.

        Raises
        ------
        LookupError
            where no trajectory is there: writing it now would take time
        """
        for known, arrays in self._ready.values():
            if known is weights:
                return ArrayRecord(arrays)
        raise LookupError("weights were not made ready before the round in which they are sent")

    def take(self, record: ArrayRecord) -> Vector:
        """One vector of the trained arrays that an aggregation gave, of whatever kind they are."""
        vector, start = np.empty(self.layout.size, dtype=np.float32), 0
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            values = _view(record[name])
            if values.shape != shape:
                raise InvalidInput(f"{name} must have shape {shape}, got {values.shape}")
            with np.errstate(over="ignore", invalid="ignore"):  # the caller looks at the result
                vector[start : start + values.size] = values.reshape(-1)
            start += values.size
        return vector

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of an array."""
        if name in self.fixed:
            return tuple(self.fixed[name].shape)
        return self.layout.shapes[self.layout.names.index(name)]

    def read(self, record: ArrayRecord) -> dict[str, npt.NDArray[Any]]:
        """The trained arrays of a record that came from a client, as views where that is possible.

        Raises
        ------
        Refused
            where names, shapes, kinds or values are not as they must be
        """
        if set(record) != set(self.dtypes):
            raise Refused("wrong shape")
        parts = {}
        for name, dtype in self.dtypes.items():
            array = record[name]
            if name not in self.fixed:
                parts[name] = _decode(array, dtype, self.shape(name))
        return parts

    def clean(self, record: ArrayRecord) -> dict[str, Array]:
        """The arrays of a record that `read` accepted, with nothing left that a client chose.

        Order of names, order in memory, header and kind of bytes are as usual; arrays that are not
        trained are our own.
        """
        return {
            name: self.fixed[name]
            if name in self.fixed
            else _make_usual(record[name], dtype, self.shape(name))
            for name, dtype in self.dtypes.items()
        }

    def join(self, parts: Mapping[str, npt.NDArray[Any]]) -> Vector:
        """Trained arrays as one vector."""
        return self.layout.join(parts)


def describe_arrays(arrays: ArrayRecord, layout: Layout | None = None) -> ArrayForm:
    """The form of a model from its first arrays.

    Parameters
    ----------
    layout : of what is trained; None: all arrays of floating-point numbers
    """
    if layout is None:
        trained = [name for name, array in arrays.items() if array.dtype.startswith("float")]
        layout = Layout(tuple(trained), tuple(tuple(arrays[name].shape) for name in trained))
    missing = [name for name in layout.names if name not in arrays]
    wrong = [
        name
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        if name in arrays and tuple(arrays[name].shape) != shape
    ]
    if missing or wrong:
        raise InvalidInput(
            "initial_arrays must hold the parameters of the task's model; "
            f"missing: {missing}, of another shape: {wrong}"
        )
    if not layout.names:
        raise InvalidInput("initial_arrays must hold arrays of floating-point numbers, got none")
    fixed = {name: array for name, array in arrays.items() if name not in layout.names}
    dtypes = {name: np.dtype(array.dtype) for name, array in arrays.items()}
    return ArrayForm(layout, dtypes, fixed)


def describe_layout_form(layout: Layout) -> ArrayForm:
    """The form of a model of 32-bit floats."""
    return ArrayForm(layout, dict.fromkeys(layout.names, np.dtype(np.float32)), {})


def join_first(form: ArrayForm, arrays: ArrayRecord) -> Vector:
    """The trained arrays of the first record as one vector."""
    return form.join({name: arrays[name].numpy() for name in form.layout.names})


def _decode(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The numbers of an array, read only once its size is known to be right."""
    if array.dtype != str(dtype):
        raise Refused("wrong dtype")
    size = math.prod(shape) * dtype.itemsize
    if tuple(array.shape) != shape or not size <= len(array.data) <= size + HEADER:
        raise Refused("wrong shape")
    start, is_fortran = _find_start(array.data, dtype, shape)
    if len(array.data) - start != size:
        raise Refused("wrong shape")
    values = np.frombuffer(array.data, dtype=dtype, offset=start)
    values = values.reshape(shape[::-1]).T if is_fortran else values.reshape(shape)
    if not is_finite(values):
        raise Refused("not finite")
    return values


def _make_usual(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """An array that can be decoded as we would have written it."""
    if array.stype == USUAL and array.data.startswith(_write_header(dtype, shape)):
        return array
    return Array(np.asarray(_decode(array, dtype, shape), dtype=dtype, order="C"))


def _view(array: Array) -> npt.NDArray[Any]:
    """The numbers of an array of our own making, without a copy where that is possible."""
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    usual = _write_header(dtype, shape)
    if not array.data.startswith(usual):
        return array.numpy()
    return np.frombuffer(array.data, dtype=dtype, offset=len(usual)).reshape(shape)


def _find_start(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, bool]:
    """Where the numbers of an array begin, and whether its columns come first."""
    usual = _write_header(dtype, shape)
    if data.startswith(usual):  # numpy takes as long to read a header as to add a million numbers
        return len(usual), False
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        declared, is_fortran, kind = readers[version](stream)
    except (ValueError, KeyError) as error:
        raise Refused("wrong type") from error
    if kind != dtype:
        raise Refused("wrong dtype")
    if declared != shape:
        raise Refused("wrong shape")
    return stream.tell(), is_fortran


@lru_cache(maxsize=4096)
def _write_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The header that numpy writes for an array."""
    stream = io.BytesIO()
    described = np.lib.format.dtype_to_descr(dtype)
    content = {"descr": described, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, content)
    return stream.getvalue()


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Whether all are numbers, found in one pass and without a mask: then their sum is finite.

    A sum that is not may only be too large; extremes pass on what is not a number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):
            return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))


# --- queries ----------------------------------------------------------------------------------


def make_queries(
    content: RecordDict, nodes: Sequence[int], message_type: str, round_number: int, ttl: float
) -> list[Message]:
    """The same message for every node, in the order of the nodes."""
    return [
        Message(content, node, message_type, ttl=ttl, group_id=str(round_number)) for node in nodes
    ]


def copy_config(config: ConfigRecord | None) -> ConfigRecord:
    """Settings that can be added to."""
    return ConfigRecord(dict(config or {}))


# --- replies ----------------------------------------------------------------------------------


def find_arrays(message: Message) -> ArrayRecord:
    """The one record of arrays of a reply."""
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise Refused("wrong type")
    return records[0]


def find_metrics(message: Message) -> MetricRecord:
    """The one record of metrics of a reply."""
    records = list(message.content.metric_records.values())
    if len(records) != 1:
        raise Refused("bad example count")
    return records[0]


def read_reply(
    message: Message, client: int, form: ArrayForm, weighted_by: str, *, joins: bool
) -> Reply | None:
    """What a client sent back; None for one that has nothing to give (no examples this time).

    Parameters
    ----------
    weighted_by : the metric that holds the number of examples
    joins : whether the values are needed as a vector; they are checked in any case
    """
    if message.has_error() or not message.has_content():
        return Reply(client, None, None, "client error")
    try:
        examples = find_metrics(message).get(weighted_by)
        if examples == 0 and not isinstance(examples, bool):
            return None
        parts = form.read(find_arrays(message))
    except Refused as refused:
        return Reply(client, None, None, str(refused))
    except Exception:  # whatever a client has made of its message
        return Reply(client, None, None, "wrong type")
    values = form.join(parts) if joins else np.empty(0, dtype=np.float32)
    return Reply(client, values, examples)


def find_odd(messages: Mapping[int, Message]) -> set[int]:
    """Clients whose metrics lack what most replies have, or hold what is not a number.

    One of them would stop an aggregation that needs, say, everybody's loss.
    """
    kinds = {client: _describe(find_metrics(message)) for client, message in messages.items()}
    counts = Counter(key for kind in kinds.values() for key in kind.items())
    expected = {key for key, count in counts.items() if 2 * count > len(messages)}
    return {
        client
        for client, kind in kinds.items()
        if not expected <= set(kind.items()) or any("odd" in value for value in kind.values())
    }


def _describe(record: MetricRecord) -> dict[str, str]:
    """What kind of value stands under each key."""
    kinds = {}
    for key, value in record.items():
        kind = f"list of {len(value)}" if isinstance(value, list) else "number"
        kinds[key] = kind if _are_numbers(value) else "odd"
    return kinds


def _are_numbers(value: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(value, dtype=np.float64)).all())
    except OverflowError:  # a whole number beyond all others
        return False


def find_evaluations(
    messages: Sequence[Message], weighted_by: str, most_examples: int
) -> list[Message]:
    """Replies to an evaluation that can be used: refused as those to a query are.

    Parameters
    ----------
    weighted_by : the metric that holds the number of examples
    most_examples : largest number of examples that a client can have
    """
    valid: dict[int, Message] = {}
    for place, message in enumerate(messages):
        if message.has_error() or not message.has_content():
            continue
        try:
            examples = find_metrics(message).get(weighted_by)
        except Exception:  # whatever a client has made of its message
            continue
        if type(examples) is int and 1 <= examples <= most_examples:
            valid[place] = message
    odd = find_odd(valid)
    return [message for place, message in valid.items() if place not in odd]


def restrict_metrics(messages: Sequence[Message], weighted_by: str) -> list[MetricRecord]:
    """The metrics that all replies have in the same form, the number of examples among them."""
    records = [find_metrics(message) for message in messages]
    kinds = [set(_describe(record).items()) for record in records]
    shared = {key for key, _ in set.intersection(*kinds)} | {weighted_by} if kinds else set()
    return [MetricRecord({key: record[key] for key in sorted(shared)}) for record in records]
