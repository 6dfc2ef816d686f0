"""Safetensors files written array by array have the bytes that safetensors itself writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

import covertfl as cf
from covertfl.files.tensors import (
    BLOCK,
    DTYPES,
    join_small,
    make_header,
    name_blocks,
    stream_tensors,
    write_blocks,
)
from covertfl.kernels.job import name_content


def test_the_bytes_are_those_of_safetensors() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        kinds, shapes = generator.permutation([*DTYPES, *DTYPES]), generator.integers(0, 4, (26, 3))
        arrays = {
            f'x{generator.integers(10**6)}é"\n\x1f\\{number}': np.array(
                10.0 * generator.normal(size=shape)
            ).astype(kind)
            for number, (kind, shape) in enumerate(zip(kinds, shapes, strict=True))
        }
        assert b"".join(stream_tensors(arrays)) == save(arrays)


def test_scalars_empty_files_other_orders_and_blocks(tmp_path: Path) -> None:
    large = np.arange(BLOCK, dtype=np.float32)
    cases: list[dict[str, Any]] = [
        {},
        {"b": np.array(3.0, dtype=np.float32), "a": np.zeros((0, 2))},
        {"w": large, "a.b": large[::-1].copy()},
    ]
    for arrays in cases:
        content, file = save(arrays), tmp_path / "file"
        assert b"".join(stream_tensors(arrays)) == content
        assert name_blocks(stream_tensors(arrays)) == name_content(content)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        assert write_blocks(handle, stream_tensors(arrays)) == name_content(content)
        os.close(handle)
        assert file.read_bytes() == content
    turned = np.arange(6, dtype=">f4").reshape(2, 3).T
    found = load(b"".join(stream_tensors({"a": turned})))["a"]
    assert found.tolist() == turned.tolist()


def test_small_blocks_are_joined_and_large_ones_left_alone() -> None:
    sizes = [5, BLOCK - 6, 1, 1, BLOCK, 0, 3, BLOCK - 2, 7]
    blocks = [memoryview(bytes([n]) * size) for n, size in enumerate(sizes)]
    joined = list(join_small(blocks))
    assert [len(block) for block in joined] == [BLOCK, 1, BLOCK, 3, BLOCK - 2, 7]
    assert b"".join(joined) == b"".join(blocks)
    assert any(block is blocks[4] for block in joined)
    assert list(join_small([])) == []


def test_a_header_can_be_longer_than_it_must_be() -> None:
    arrays = {"b": np.arange(3.0), "a": np.arange(2)}
    header = make_header(arrays, ["b", "a"], metadata={"facts": "{}"}, size=1024)
    assert len(header) == 1024
    content = header + arrays["b"].tobytes() + arrays["a"].tobytes()
    assert {name: array.tolist() for name, array in load(content).items()} == {
        "a": [0, 1],
        "b": [0.0, 1.0, 2.0],
    }


def test_a_dtype_that_no_file_can_hold_is_named() -> None:
    with pytest.raises(cf.InvalidInput, match="the array a has dtype complex128"):
        list(stream_tensors({"a": np.zeros(2, dtype=np.complex128)}))
