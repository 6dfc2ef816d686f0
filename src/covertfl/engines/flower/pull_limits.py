"""Limits on what Flower's HTTP grid reads of one answer: bytes, bytes once unpacked, seconds.

An answer is a tree of objects.  An array names its chunks by number and may name the same one any
number of times, so that a few megabytes can unpack to terabytes; a node may also announce an object
and never send it.  Flower 1.41 limits neither.  Its grid calls two functions by their names in its
module, which are replaced while an answer is pulled; other grids have no such functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.superlink.grid import http_grid

from covertfl.engines.flower.array_form import RefusedReply


@contextmanager
def limit_pull(most_bytes: int, seconds: float) -> Iterator[None]:
    """Let the HTTP grid refuse an answer beyond the limits, before all of it is read or unpacked.

    One object is received whole before it is counted: the SuperLink, or a proxy before it, must
    limit requests (docs/flower.md).

    Raises
    ------
    RefusedReply
        inside, if an answer takes more bytes
    """
    names = vars(http_grid)
    pull, inflate = names["pull_objects"], names["inflate_object_from_contents"]

    def pull_limited(object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> Any:
        counted = _count_pulled(pull_object_fn, most_bytes)
        return pull(object_ids, counted, max_time=max(seconds, 0.0))

    def inflate_limited(object_id: str, object_contents: dict[str, bytes]) -> Any:
        if count_unpacked(object_contents) > most_bytes:
            raise RefusedReply("too large")
        return inflate(object_id, object_contents)

    names.update(pull_objects=pull_limited, inflate_object_from_contents=inflate_limited)
    try:
        yield
    finally:
        names.update(pull_objects=pull, inflate_object_from_contents=inflate)


def _count_pulled(pull: Callable[[str], bytes], most_bytes: int) -> Callable[[str], bytes]:
    """Return the function that pulls an object, which refuses to go on beyond a number of bytes."""
    sizes: list[int] = []

    def pull_counted(name: str) -> bytes:
        content = pull(name)
        sizes.append(len(content))
        if sum(sizes) > most_bytes:
            raise RefusedReply("too large")
        return content

    return pull_counted


def count_unpacked(contents: Mapping[str, bytes]) -> int:
    """Return the bytes of a message's arrays once their chunks are joined, given its objects."""
    total = 0
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            sizes = [len(contents[child]) for child in children]
            named = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(sizes[place] for place in named)
    return total
