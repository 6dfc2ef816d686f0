"""How a model travels: its arrays as bytes, always in the form of the first arrays.

Names, order, shapes, dtypes, headers and sizes of the arrays that clients receive are those of the
initial arrays in every round, whatever an aggregation has returned.  Arrays that are no part of the
weights (counters, masks) are always sent with their initial values on every trajectory: a counter
would count how often a trajectory was queried.  Buffers that a model measures, such as running
statistics, are part of the weights; on every trajectory they come from the replies to its query.

Arrays from a client are checked before they are decoded, and a reply that does not fit is refused
with a reason.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from covertfl.errors import InvalidInput
from covertfl.kernels.exact_sum import ExactSum
from covertfl.kernels.job import Float32Array, Layout, Vector
from covertfl.schemes.replies import has_finite_norm, is_finite

if TYPE_CHECKING:
    from torch import nn

# Bytes that the header of an array may take in addition to its values.
HEADER_LIMIT = 4096
# Serialisation type of numpy arrays in Flower.
NUMPY_STYPE = "numpy.ndarray"


class RefusedReply(Exception):
    """A reply that cannot be used; its argument is the reason."""


class ArrayPlan(NamedTuple):
    """What an array of a client must be, found once for all replies; sizes are in bytes."""

    name: str
    dtype: np.dtype[Any]
    dtype_name: str
    shape: tuple[int, ...]
    size: int
    header: bytes
    whole_size: int


@dataclass(frozen=True, eq=False)
class ArrayForm:
    """Names, shapes and dtypes of a model's arrays, and the arrays that are ready to be sent.

    Parameters
    ----------
    layout : arrays that are trained or measured
    dtypes : of all arrays, in the order in which they travel
    fixed : the other arrays, with their initial values
    """

    layout: Layout
    dtypes: Mapping[str, np.dtype[Any]]
    fixed: Mapping[str, Array]
    # Weights and their arrays, ready to be sent.  Encoding a large model takes long.  It is done in
    # every round in which weights may have moved, and never between the start of a round and its
    # query, where the delay would reveal which weights moved.  They must not be changed later.
    _ready: list[tuple[Vector, dict[str, Array]]] = field(default_factory=list)

    def write(self, weights: Vector) -> dict[str, Array]:
        """Encode weights as arrays; no other function makes what clients are sent."""
        parts = self.layout.split(weights)
        return {
            name: self.fixed[name]
            if name in self.fixed
            else _encode(np.asarray(parts[name], dtype=dtype))
            for name, dtype in self.dtypes.items()
        }

    def measure(self, arrays: Mapping[str, Array], record: ArrayRecord) -> dict[str, Array]:
        """Return arrays with what a client measured, from a record that `check` accepted."""
        own = {
            name: _encode_as_usual(record[name], self.dtypes[name], self.shape(name))
            for name in self.layout.names[len(self.layout.trained_names) :]
        }
        return {**arrays, **own}

    def restrict(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return arrays without fixed ones, which no strategy has to aggregate."""
        return {name: array for name, array in arrays.items() if name not in self.fixed}

    def prepare(self, weights: Sequence[Vector], *, renews: bool = False) -> None:
        """Encode and store weights, in the place of those that were stored before.

        Parameters
        ----------
        renews : whether all are encoded, known or given twice, for the time that it takes
        """
        if renews:
            self._ready[:] = [(vector, self.write(vector)) for vector in weights]
            return
        known = {id(vector): (vector, arrays) for vector, arrays in self._ready}
        wanted = {id(vector): vector for vector in weights}
        self._ready[:] = [
            known[key] if key in known else (vector, self.write(vector))
            for key, vector in wanted.items()
        ]

    def find(self, weights: Vector) -> ArrayRecord:
        """Return the stored record of weights, without encoding them.

        Raises
        ------
        LookupError
            if they are not stored: encoding them now would take time
        """
        return ArrayRecord(self.find_arrays(weights))

    def find_arrays(self, weights: Vector) -> dict[str, Array]:
        """Return the stored arrays of weights; raise as `find` does."""
        for known, arrays in self._ready:
            if known is weights:
                return arrays
        raise LookupError("weights were not encoded before the round in which they are sent")

    def flatten(self, record: ArrayRecord) -> Vector:
        """Return the trained arrays of a record, of any dtype, as one vector.

        Raises
        ------
        InvalidInput
            if a shape differs
        """
        vector, start = np.empty(self.layout.size, dtype=np.float32), 0
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            values = _view(record[name])
            if values.shape != shape:
                raise InvalidInput(f"{name} must have shape {shape}, got {values.shape}")
            with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the result
                vector[start : start + values.size] = values.reshape(-1)
            start += values.size
        vector += np.float32(0.0)  # the sign of a zero could tell how it was computed
        return vector

    def average(self, records: Sequence[ArrayRecord], counts: Sequence[int]) -> Vector:
        """Return the mean of the trained arrays of records, weighted by counts, as one vector.

        The sum is exact (`ExactSum`): the order of the records does not matter, and the mean of
        equal numbers is that number.
        """
        total = ExactSum(self.layout.size)
        for record, count in zip(records, counts, strict=True):
            total.add(self.flatten(record), count)
        return total.mean()

    def widen(self, record: ArrayRecord) -> dict[str, Array]:
        """Return the arrays of a record as 64-bit floats, without fixed ones."""
        return {
            name: _encode(np.asarray(_view(array), dtype=np.float64))
            for name, array in self.restrict(record).items()
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array."""
        if name in self.fixed:
            return tuple(self.fixed[name].shape)
        return self.layout.shapes[self.layout.names.index(name)]

    @cached_property
    def _plans(self) -> tuple[ArrayPlan, ...]:
        """Plans of the arrays that are not fixed, in the order of the layout."""
        return tuple(_plan(name, self.dtypes[name], self.shape(name)) for name in self.layout.names)

    @cached_property
    def _are_floats(self) -> bool:
        """Whether all arrays are trained 32-bit floats."""
        return not self.fixed and all(dtype == np.float32 for dtype in self.dtypes.values())

    @cached_property
    def usual_size(self) -> int:
        """Size in bytes of a record whose values `view` returns, as `count_bytes` counts it."""
        return sum(len(plan.name) + plan.whole_size + 8 * len(plan.shape) for plan in self._plans)

    def view(self, record: ArrayRecord) -> list[Vector] | None:
        """Return views of a record's values, in the order of the layout, without checking them.

        None if not all arrays are 32-bit floats with the very headers that the server itself would
        have sent: the record may still be valid.
        """
        if not self._are_floats or len(record) != len(self._plans):
            return None
        arrays, views = dict(record.items()), []
        for name, dtype, dtype_name, shape, _, header, whole_size in self._plans:
            array = arrays.get(name)
            if array is None or array.dtype != dtype_name or array.shape != shape:
                return None
            data = array.data
            if len(data) != whole_size or not data.startswith(header):
                return None
            views.append(np.frombuffer(data, dtype, offset=len(header)))
        return views

    def check(self, record: ArrayRecord) -> None:
        """Check the trained arrays of a client's record.

        Raises
        ------
        RefusedReply
            if a name, shape, dtype or value is not allowed
        """
        if not all(map(is_finite, self._decode_all(record))):
            raise RefusedReply("not finite")

    def read(self, record: ArrayRecord, views: list[Vector] | None = None) -> list[Vector]:
        """Decode the trained arrays of a client's record, each flat; refuse as `check` does.

        The squares of their values add up to a finite number.  `views` are what `view` has
        returned.
        """
        if views is None:
            with np.errstate(over="ignore"):
                views = [np.asarray(part, np.float32) for part in self._decode_all(record)]
        if not has_finite_norm(*views):
            raise RefusedReply("not finite")
        return views

    def _decode_all(self, record: ArrayRecord) -> list[npt.NDArray[Any]]:
        arrays = dict(record.items())
        if arrays.keys() != self.dtypes.keys():
            raise RefusedReply("wrong shape")
        return [_decode(arrays[plan.name], plan) for plan in self._plans]

    def normalise(self, record: ArrayRecord) -> dict[str, Array]:
        """Return the arrays of a record that `check` accepted, without any trace of the client.

        Order of names, memory order, header and serialisation type become the usual ones; arrays
        that are not trained are replaced by the server's own.
        """
        return {
            name: self.fixed[name]
            if name in self.fixed
            else _encode_as_usual(record[name], dtype, self.shape(name))
            for name, dtype in self.dtypes.items()
        }

    def scale(self, record: ArrayRecord, name: str, factors: Float32Array) -> dict[str, Array]:
        """Return what `normalise` does, with the columns of one array multiplied by factors."""
        arrays = self.normalise(record)
        return {**arrays, name: _encode(_view(arrays[name]) * factors)}


def make_form(arrays: Mapping[str, Array], layout: Layout) -> ArrayForm:
    """Return the form of a model from its initial arrays and the layout of its weights.

    Raises
    ------
    InvalidInput
        if a trained array is missing or has another shape
    """
    missing = [name for name in layout.names if name not in arrays]
    wrong = [
        name
        for name, shape in zip(layout.names, layout.shapes, strict=True)
        if name in arrays and tuple(arrays[name].shape) != shape
    ]
    if missing or wrong:
        raise InvalidInput(
            "initial_arrays must hold the parameters and buffers of the task's model; "
            f"missing: {missing}, of another shape: {wrong}"
        )
    fixed = {name: array for name, array in arrays.items() if name not in layout.names}
    dtypes = {name: np.dtype(array.dtype) for name, array in arrays.items()}
    return ArrayForm(layout, dtypes, fixed)


def make_model_form(module: nn.Module, layout: Layout) -> ArrayForm:
    """Return the form of a module's `state_dict`."""
    arrays = {name: Array(values.numpy()) for name, values in module.state_dict().items()}
    return make_form(arrays, layout)


def make_float_form(layout: Layout) -> ArrayForm:
    """Return the form of a model whose arrays are all trained 32-bit floats."""
    return ArrayForm(layout, dict.fromkeys(layout.names, np.dtype(np.float32)), {})


def _plan(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> ArrayPlan:
    size = math.prod(shape) * dtype.itemsize
    header = _encode_header(dtype, shape)
    return ArrayPlan(name, dtype, str(dtype), shape, size, header, len(header) + size)


def _decode(array: Array, plan: ArrayPlan) -> npt.NDArray[Any]:
    """Return the values of a client's array in C order, as a flat view where possible.

    They are read only after their size has been checked.
    """
    data, shape = array.data, plan.shape
    if array.dtype != plan.dtype_name:
        raise RefusedReply("wrong dtype")
    if tuple(array.shape) != shape or not plan.size <= len(data) <= plan.size + HEADER_LIMIT:
        raise RefusedReply("wrong shape")
    start, is_fortran = len(plan.header), False
    if not data.startswith(plan.header):
        start, is_fortran = _find_values(data, plan.dtype, shape)
    if len(data) - start != plan.size:
        raise RefusedReply("wrong shape")
    values = np.frombuffer(data, plan.dtype, offset=start)
    return values.reshape(shape, order="F").reshape(-1) if is_fortran else values


def _encode_as_usual(array: Array, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return a valid array in the form in which the server itself would encode it."""
    if array.stype == NUMPY_STYPE and array.data.startswith(_encode_header(dtype, shape)):
        return array
    return _encode(_decode(array, _plan("", dtype, shape)).reshape(shape))


def _encode(values: npt.NDArray[Any]) -> Array:
    """Return values as Flower's `Array(values)` does for C order, in a fraction of its time."""
    header = _encode_header(values.dtype, values.shape)
    data = b"".join((header, np.ascontiguousarray(values).data))
    return Array(str(values.dtype), values.shape, NUMPY_STYPE, data)


def _view(array: Array) -> npt.NDArray[Any]:
    """Return the values of the server's own array, without a copy where possible."""
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    usual = _encode_header(dtype, shape)
    if not array.data.startswith(usual):
        return array.numpy()
    return np.frombuffer(array.data, dtype=dtype, offset=len(usual)).reshape(shape)


def _find_values(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[int, bool]:
    """Return where the values of an array begin, and whether they are in Fortran order.

    The usual header need not be read: numpy takes as long for it as to add a million numbers.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        declared, is_fortran, kind = readers[version](stream)
    except (ValueError, KeyError) as error:
        raise RefusedReply("wrong type") from error
    if kind != dtype:
        raise RefusedReply("wrong dtype")
    if declared != shape:
        raise RefusedReply("wrong shape")
    return stream.tell(), is_fortran


@lru_cache(maxsize=4096)
def _encode_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header that numpy writes for an array in C order."""
    stream = io.BytesIO()
    described = np.lib.format.dtype_to_descr(dtype)
    content = {"descr": described, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, content)
    return stream.getvalue()
