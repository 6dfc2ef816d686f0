"""Records of clients in the server's own form are read without decoding their headers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord

from covertfl.engines.flower.array_form import ArrayForm, RefusedReply, make_float_form, make_form
from covertfl.engines.flower.messages import count_bytes
from covertfl.kernels.job import Layout

LAYOUT = Layout(("weight", "bias"), ((2, 3), (2,)))
VALUES = np.arange(8, dtype=np.float32)
FORM = make_float_form(LAYOUT)


def make_record(weight: npt.ArrayLike | None = None, **others: Array) -> ArrayRecord:
    """Return a record of the model's arrays in another order, some of them replaced."""
    first = VALUES[:6].reshape(2, 3) if weight is None else np.asarray(weight)
    return ArrayRecord({"bias": Array(VALUES[6:]), "weight": Array(first), **others})


def make_mixed_form(dtype: str) -> ArrayForm:
    """Return a form with weights of another dtype, or with a counter if that is no float's."""
    arrays = {"weight": Array(VALUES[:6].reshape(2, 3)), "bias": Array(VALUES[6:])}
    other = Array(np.zeros(2, dtype))
    return make_form({**arrays, ("bias" if dtype[0] == "f" else "count"): other}, LAYOUT)


def test_a_usual_record_is_viewed_in_the_order_of_the_layout() -> None:
    record = make_record()
    views = FORM.view(record)
    assert views is not None
    assert np.concatenate(views).tolist() == VALUES.tolist()
    assert FORM.usual_size == count_bytes(record)
    for read in (FORM.read(record, views), FORM.read(record)):
        assert all(part.dtype == np.float32 for part in read)
        assert np.concatenate(read).tolist() == VALUES.tolist()


def test_another_memory_order_is_read_without_a_view() -> None:
    record = make_record(np.asfortranarray(VALUES[:6].reshape(2, 3)))
    assert FORM.view(record) is None
    assert np.concatenate(FORM.read(record)).tolist() == VALUES.tolist()


@pytest.mark.parametrize("dtype", ["f2", "f8", "i8"])
def test_other_forms_have_no_views(dtype: str) -> None:
    form = make_mixed_form(dtype)
    assert form.view(ArrayRecord(form.write(VALUES))) is None
    read = form.read(ArrayRecord(form.write(VALUES)))
    assert all(part.dtype == np.float32 for part in read)
    assert np.concatenate(read).tolist() == VALUES.tolist()


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (make_record(np.zeros((3, 2), np.float32)), "wrong shape"),
        (make_record(np.zeros((2, 3))), "wrong dtype"),
        (make_record(extra=Array(VALUES)), "wrong shape"),
        (make_record(bias=Array("float32", (2,), "numpy.ndarray", b"")), "wrong shape"),
        (make_record(bias=Array("float32", (2,), "numpy.ndarray", bytes(136))), "wrong type"),
    ],
)
def test_what_is_refused_has_no_view(record: ArrayRecord, reason: str) -> None:
    assert FORM.view(record) is None
    for read in (FORM.read, FORM.check):
        with pytest.raises(RefusedReply, match=reason):
            read(record)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_values_of_a_view_are_checked(value: float) -> None:
    record = make_record(np.full((2, 3), value, np.float32))
    with pytest.raises(RefusedReply, match="not finite"):
        FORM.read(record, FORM.view(record))
