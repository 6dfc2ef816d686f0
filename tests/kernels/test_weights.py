"""Weights as one vector, as tensors and as files."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, strategies as st
from safetensors.numpy import load

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Layout, name_content
from tests.support.tensors import serialise

LAYOUT = Layout(("b", "a"), ((2, 3), (4,)))


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=10, max_size=10))
def test_a_vector_survives_splitting_and_files(values: list[float]) -> None:
    vector = np.array(values, dtype=np.float32)
    assert LAYOUT.join(LAYOUT.split(vector)).tobytes() == vector.tobytes()
    assert LAYOUT.join(load(serialise(LAYOUT, vector))).tobytes() == vector.tobytes()


def test_parts_are_views_in_the_order_of_the_layout() -> None:
    vector = np.arange(10, dtype=np.float32)
    parts = LAYOUT.split(vector)
    np.testing.assert_array_equal(parts["b"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(parts["a"], [6, 7, 8, 9])
    assert np.shares_memory(parts["b"], vector)
    assert LAYOUT.size == 10


def test_a_parameter_is_where_the_vector_has_it() -> None:
    vector = np.arange(10, dtype=np.float32)
    for name, part in LAYOUT.split(vector).items():
        np.testing.assert_array_equal(vector[LAYOUT.locate(name)], part.ravel())
    with pytest.raises(InvalidInput, match="one of b, a, got 'c'"):
        LAYOUT.locate("c")


def test_a_file_has_no_more_than_names_shapes_and_numbers() -> None:
    content = serialise(LAYOUT, np.ones(10, dtype=np.float32))
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert set(header) == {"a", "b"}
    assert {entry["dtype"] for entry in header.values()} == {"F32"}
    assert len(content) == 8 + length + 40


def test_files_of_other_weights_differ_in_their_numbers_only() -> None:
    generator = np.random.default_rng(0)
    contents = [serialise(LAYOUT, generator.normal(size=10).astype(np.float32)) for _ in range(20)]
    assert len({len(content) for content in contents}) == 1
    assert len({content[:-40] for content in contents}) == 1
    assert len(set(contents)) == 20


def test_a_vector_in_strides_gives_the_same_file() -> None:
    wide = np.arange(20, dtype=np.float32)
    assert serialise(LAYOUT, wide[::2]) == serialise(LAYOUT, wide[::2].copy())


def test_the_name_of_a_file_is_its_sha256() -> None:
    assert name_content(b"abc") == hashlib.sha256(b"abc").hexdigest()


@pytest.mark.parametrize("shape", [(9,), (11,), (2, 5), ()])
def test_a_vector_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match="vector of 10 numbers"):
        LAYOUT.split(np.zeros(shape, dtype=np.float32))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"b": np.zeros((2, 3))}, r"missing: \['a'\]"),
        ({"b": np.zeros((2, 3)), "a": np.zeros(4), "c": np.zeros(1)}, r"unknown: \['c'\]"),
        ({"b": np.zeros((3, 2)), "a": np.zeros(4)}, r"b must have shape \(2, 3\), got \(3, 2\)"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: dict[str, npt.NDArray[Any]], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        LAYOUT.join(parts)
