"""Generated replies and bytes: the reader refuses or accepts, and nothing else happens."""

from __future__ import annotations

import io
import pickle
import resource
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.superlink.grid import http_grid
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from covertfl.engines.flower.array_form import RefusedReply, make_float_form
from covertfl.engines.flower.exchange import PullLimits
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.messages import (
    EXAMPLES,
    find_evaluations,
    find_metrics,
    find_odd_metrics,
    find_size_limit,
    read_reply,
    restrict_metrics,
)
from covertfl.kernels.job import Layout
from covertfl.schemes.replies import Reply, find_fault, sift_replies
from tests.support.flower_runs import make_app

LAYOUT = Layout(("w", "b"), ((3, 2), (2,)))
FORM = make_float_form(LAYOUT)
MOST_BYTES, MOST_EXAMPLES = find_size_limit(FORM), 40
REASONS = {
    "client error", "wrong type", "wrong dtype", "wrong shape", "not finite",
    "bad example count", "too many examples", "too large",
}  # fmt: skip
PICKLED = Path("/tmp/covertfl-unpickled")  # never created: only a pickle that is loaded would


class Bomb:
    """An object whose unpickling leaves a file behind."""

    def __reduce__(self) -> Any:
        return (Path.touch, (PICKLED,))


def make_npy(descr: Any, shape: Any, body: bytes, *, fortran: bool = False) -> bytes:
    """Return an array file whose header says what it likes."""
    head = f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) % 2**16) + head + body


def save(values: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=True)
    return stream.getvalue()


GOOD = {
    name: np.ones(shape, np.float32)
    for name, shape in zip(LAYOUT.names, LAYOUT.shapes, strict=True)
}
OBJECTS = [save(np.array([Bomb()] * 6, dtype=object).reshape(3, 2)), pickle.dumps(Bomb())]
SIZES = st.one_of(st.integers(-(2**70), 2**70), st.integers(-3, 3))
SHAPES = st.one_of(
    st.sampled_from([(3, 2), (2,), (6,), (), (0,), (3, 0), (2**40, 2**40), (-1, 2), (2, 3)]),
    st.lists(SIZES, max_size=5).map(tuple),
)
DTYPES = st.sampled_from(
    ["float32", "<f4", ">f4", "float64", "float16", "int64", "object", "|O", "bool", "<U9",
     "complex64", "V8", "", "float32,float32", "datetime64[s]", "\ud800", "os.system"]
)  # fmt: skip
NUMBERS = st.one_of(
    st.floats(width=32), st.just(float("nan")), st.just(3e38), st.just(float("inf"))
)
BODIES = st.one_of(
    st.binary(max_size=64),
    st.lists(NUMBERS, min_size=6, max_size=6).map(lambda xs: np.array(xs, np.float32).tobytes()),
    st.sampled_from([bytes(24), bytes(8), bytes(23), b"", bytes(2**21), *OBJECTS]),
)
FILES = st.one_of(
    st.builds(make_npy, DTYPES, SHAPES, BODIES, fortran=st.booleans()),
    st.builds(lambda kind, body: make_npy("<f4", kind, body), SHAPES, BODIES),
    st.sampled_from([(3, 2), (2,)]).flatmap(
        lambda shape: st.builds(
            lambda cut, rest: save(np.ones(shape, np.float32))[:cut] + rest,
            st.integers(0, 200),
            st.binary(max_size=8),
        )
    ),
    BODIES,
)
ARRAYS = st.one_of(
    st.builds(
        Array,
        st.one_of(st.just("float32"), DTYPES),
        SHAPES,
        st.sampled_from(["numpy.ndarray", "pickle", "", "torch"]),
        FILES,
    ),
    st.sampled_from([Array(values) for values in GOOD.values()]),
    st.sampled_from([Array(np.asfortranarray(values)) for values in GOOD.values()]),
)
TEXT = st.lists(st.sampled_from("wb\0é\ud800\U0010ffff"), max_size=4).map("".join)
NAMES = st.one_of(st.sampled_from(["w", "b", "", "w ", "\ud800", "../w", "__class__"]), TEXT)
RECORDS = st.one_of(
    st.dictionaries(NAMES, ARRAYS, max_size=3),
    st.fixed_dictionaries({"w": ARRAYS, "b": ARRAYS}),
    st.builds(lambda w: {"w": w, "b": Array(GOOD["b"])}, ARRAYS),
    st.just({name: Array(values) for name, values in GOOD.items()}),
)
COUNTS: st.SearchStrategy[Any] = st.one_of(
    st.integers(1, 40),
    st.integers(),
    st.floats(),
    st.sampled_from([0, 0.0, -0.0, 40.0, 10**400, -1, 2**63, [40], [], [10**400], [1.5, 2.0]]),
    st.lists(st.floats(), max_size=3),
)
METRICS = st.one_of(
    st.dictionaries(st.one_of(st.just(EXAMPLES), NAMES), COUNTS, max_size=3),
    st.builds(lambda count, more: {**more, EXAMPLES: count}, COUNTS,
              st.dictionaries(NAMES, COUNTS, max_size=2)),
)  # fmt: skip
CONFIGS = st.dictionaries(
    NAMES, st.one_of(TEXT, st.binary(), st.booleans(), st.lists(TEXT)), max_size=2
)


def force(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a record with these values, without the checks of its constructor."""
    record = kind()
    for key, value in values.items():
        try:
            record[key] = value
        except (TypeError, ValueError):  # a modified client would have sent it all the same
            record.__dict__.get("_data", {})[key] = value
    return record


def make_content(arrays: Any, metrics: Any, extra: Any, kept: Any) -> RecordDict:
    content = RecordDict()
    for key, kind, values in (
        ("arrays", ArrayRecord, arrays),
        ("metrics", MetricRecord, metrics),
        ("config", ConfigRecord, extra),
    ):
        if key in kept:
            content[key] = force(kind, values)
    if "twice" in kept:
        content["again"] = force(ArrayRecord, arrays)
        content["more"] = force(MetricRecord, metrics)
    return content


CONTENTS = st.builds(
    make_content,
    RECORDS,
    METRICS,
    CONFIGS,
    st.one_of(
        st.just({"arrays", "metrics"}),
        st.sets(st.sampled_from(["arrays", "metrics", "config", "twice"])),
    ),
)
InProcessGrid(make_app(), 1)  # sets the identity that messages need
QUERY = Message(RecordDict(), 1000, "train")


def read(content: RecordDict) -> Reply | None:
    """Read a reply as a carrier does, to the end."""
    message = Message(content, reply_to=QUERY)
    reply = read_reply(
        message,
        0,
        FORM,
        EXAMPLES,
        keeps_values=True,
        most_bytes=MOST_BYTES,
        most_examples=MOST_EXAMPLES,
    )
    find_evaluations([message], EXAMPLES, MOST_EXAMPLES)
    if reply is None:
        return None
    if reply.fault is None:
        reply = replace(reply, values=np.concatenate(reply.values))
    sifted = sift_replies([reply], partial(find_fault, size=LAYOUT.size), MOST_EXAMPLES)
    if reply.fault is None:
        metrics = find_metrics(message)
        odd = find_odd_metrics({0: metrics})
        if not odd:
            restrict_metrics([metrics], EXAMPLES)
            FORM.normalise(next(iter(content.array_records.values())))
    if sifted.clients:
        assert sifted.stack().shape == (1, LAYOUT.size) and np.isfinite(sifted.stack()).all()
        assert 1 <= sifted.total <= MOST_EXAMPLES
    else:
        assert {reason for _, reason in sifted.rejected} <= REASONS
    return reply


def attack(examples: int, strategy: st.SearchStrategy[Any], body: Any) -> None:
    """Run a body on so many generated values, without shrinking what passes."""
    PICKLED.unlink(missing_ok=True)
    settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )(given(strategy)(body))()
    assert not PICKLED.exists()


seen: dict[str, int] = {}


def note(content: RecordDict) -> None:
    reply = read(content)
    reason = "absent" if reply is None else reply.fault or "accepted"
    seen[reason] = seen.get(reason, 0) + 1


@pytest.mark.parametrize(
    "examples", [pytest.param(300), pytest.param(6000, marks=pytest.mark.slow)]
)
def test_no_generated_reply_escapes(examples: int) -> None:
    seen.clear()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    attack(examples, CONTENTS, note)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kibibytes
    # The fuzz reaches every reason but one that needs an otherwise faultless reply, and what is
    # fine still passes.
    rare = {"client error", "not finite"}
    assert {*REASONS - rare, "accepted", "absent"} <= set(seen) or examples < 1000
    assert seen.get("accepted", 0) > 0


def deflate(content: RecordDict) -> tuple[str, dict[str, bytes]]:
    message = Message(content, reply_to=QUERY)
    objects = get_all_nested_objects(message)
    return message.object_id, {name: obj.deflate() for name, obj in objects.items()}


NAME, UPLOADED = deflate(
    RecordDict({
        "arrays": ArrayRecord({name: Array(values) for name, values in GOOD.items()}),
        "metrics": MetricRecord({EXAMPLES: 40}),
    })
)  # fmt: skip
CHANGES = st.lists(
    st.tuples(
        st.integers(0, len(UPLOADED) - 1),  # which object
        st.integers(0, 400),  # where
        st.integers(0, 40),  # how many bytes are taken away
        st.one_of(st.binary(max_size=12), st.sampled_from([b"[" * 9999, b"0," * 500, b"\0", b" "])),
    ),
    min_size=1,
    max_size=4,
)


def unpack(changes: list[tuple[int, int, int, bytes]]) -> None:
    contents = dict(UPLOADED)
    for which, start, length, put in changes:
        name = list(contents)[which]
        old = contents[name]
        contents[name] = old[:start] + put + old[start + length :]
    try:
        with PullLimits(MOST_BYTES, time.monotonic() + 1.0):
            message = vars(http_grid)["inflate_object_from_contents"](NAME, contents)
        is_message = message.has_content()  # as `exchange` and the reader ask it
    except RefusedReply as refused:
        reason = str(refused)
    except Exception:  # what `exchange` counts as the node's own fault
        reason = "unreadable"
    else:
        assert isinstance(message, Message)
        if is_message:
            note(message.content)
        return
    seen[reason] = seen.get(reason, 0) + 1


@pytest.mark.parametrize(
    "examples", [pytest.param(300), pytest.param(4000, marks=pytest.mark.slow)]
)
def test_no_changed_bytes_escape(examples: int) -> None:
    seen.clear()
    attack(examples, CHANGES, unpack)
    assert seen["unreadable"] > 0 and sum(seen.values()) > examples // 3
