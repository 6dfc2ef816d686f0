"""Safetensors files: read with a format version in their metadata, and written array by array.

Where files are written array by array, no copy of a large array is made, let alone of all.  The
header is the one that `safetensors.numpy.save` writes, so that a file has the same bytes, and the
same SHA-256, whichever of the two made it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput
from covertfl.files.disk import require_regular
from covertfl.files.text import NAMES, Kind, require_format

FORMAT = "covertfl_format"
# Bytes that are hashed and written at a time: they stay in the cache in between.
BLOCK = 2**20
# Names of dtypes in the order in which `save` writes their arrays; all of one dtype by name.
DTYPES = {
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float32": "F32",
    "uint32": "U32",
    "int32": "I32",
    "float16": "F16",
    "uint16": "U16",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
Arrays = Mapping[str, npt.NDArray[Any]]


def read_tensors(
    path: str | os.PathLike[str], kind: Kind
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """Return the tensors of a file by name, and its metadata.

    Raises
    ------
    InvalidInput
        if it is no such file, or another version of covertfl wrote it
    """
    from safetensors import SafetensorError, safe_open

    name, what = os.fspath(path), NAMES[kind]
    require_regular(name, what)
    try:
        with safe_open(name, framework="numpy") as file:
            metadata = file.metadata() or {}
            require_format(kind, metadata.get(FORMAT), name)
            return {key: file.get_tensor(key) for key in file.keys()}, metadata  # noqa: SIM118
    except OSError as error:
        raise InvalidInput(f"{name}: cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise InvalidInput(f"{name}: not {what}: {error}") from error


def order_names(arrays: Arrays) -> list[str]:
    """Return the names of arrays in the order in which `save` writes them."""
    places = {name: place for place, name in enumerate(DTYPES)}
    return sorted(arrays, key=lambda name: (places.get(arrays[name].dtype.name, -1), name))


def make_header(
    arrays: Arrays,
    names: Sequence[str],
    *,
    metadata: Mapping[str, str] | None = None,
    size: int = 0,
) -> bytes:
    """Return the header of a file that holds arrays in the order of their names.

    Parameters
    ----------
    size : least number of bytes, a multiple of 8; spaces fill it up
    """
    content: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    start = 0
    for name in names:
        array = arrays[name]
        if array.dtype.name not in DTYPES:
            raise InvalidInput(f"the array {name} has dtype {array.dtype}, which no file can hold")
        content[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, start + array.nbytes],
        }
        start += array.nbytes
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    length = max(8 * math.ceil(len(text) / 8), size - 8)
    return length.to_bytes(8, "little") + text.ljust(length)


def view_bytes(array: npt.NDArray[Any]) -> memoryview:
    """Return the bytes of an array in C order and little endian, without a copy if it has both."""
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return plain.reshape(-1).view(np.uint8).data


def stream_tensors(arrays: Arrays) -> Iterator[memoryview]:
    """Yield the content of a file with arrays, in blocks; the same bytes as `save` returns."""
    names = order_names(arrays)
    yield memoryview(make_header(arrays, names))
    for name in names:
        yield from cut(view_bytes(arrays[name]))


def cut(content: memoryview) -> Iterator[memoryview]:
    """Yield bytes in blocks."""
    for start in range(0, len(content), BLOCK):
        yield content[start : start + BLOCK]


def join_small(blocks: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield the same bytes in fewer blocks: small ones are joined up to the size of a large one.

    Every block that is hashed or written lets other threads run, and waits for them to continue.
    """
    waiting: list[memoryview] = []
    size = 0
    for block in filter(len, blocks):
        if waiting and size + len(block) > BLOCK:
            yield _join(waiting)
            waiting, size = [], 0
        waiting.append(block)
        size += len(block)
    if waiting:
        yield _join(waiting)


def _join(blocks: Sequence[memoryview]) -> memoryview:
    return blocks[0] if len(blocks) == 1 else memoryview(b"".join(blocks))


def name_blocks(blocks: Iterable[memoryview]) -> str:
    """Return the SHA-256 of a content that comes in blocks."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def write_blocks(handle: int, blocks: Iterable[memoryview]) -> str:
    """Write blocks to an open file and return the SHA-256 of all of them together."""
    digest = hashlib.sha256()
    for block in join_small(blocks):
        digest.update(block)
        write_fully(handle, block)
    return digest.hexdigest()


def write_fully(handle: int, content: memoryview) -> None:
    """Write bytes to an open file; the system may take only some of them at a time."""
    while len(content):
        content = content[os.write(handle, content) :]
