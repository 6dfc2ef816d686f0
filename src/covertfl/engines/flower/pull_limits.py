"""Limits on what Flower's HTTP grid reads of one answer: bytes, bytes once unpacked, seconds.

An answer is a tree of objects.  An array names its chunks by number and may name the same one any
number of times, so that a few megabytes can unpack to terabytes; a node may also announce an object
and never send it.  Flower 1.41 limits neither.  Its grid calls two functions by their names in its
module, which are replaced while an answer is pulled; other grids have no such functions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.superlink.grid import http_grid

from covertfl.engines.flower.array_form import RefusedReply


class PullLimits:
    """Within it, the HTTP grid refuses an answer beyond limits before it is read or unpacked whole.

    It can be entered any number of times, once for each answer.  One object is received whole
    before it is counted: the SuperLink, or a proxy before it, must limit requests (docs/flower.md).

    Parameters
    ----------
    most_bytes : that one answer may take; beyond them RefusedReply is raised inside
    end : on the monotonic clock, when answers are waited for no longer
    """

    def __init__(self, most_bytes: int, end: float) -> None:
        self._most_bytes, self._end = most_bytes, end
        self._names = vars(http_grid)
        self._limited = {"pull_objects": self._pull, "inflate_object_from_contents": self._inflate}
        self._usual: dict[str, Callable[..., Any]] = {}

    def __enter__(self) -> None:
        self._usual = {name: self._names[name] for name in self._limited}
        self._names.update(self._limited)

    def __exit__(self, *_: object) -> None:
        self._names.update(self._usual)

    def _pull(self, object_ids: list[str], pull_object_fn: Callable[[str], bytes]) -> Any:
        counted = _count_pulled(pull_object_fn, self._most_bytes)
        seconds = max(self._end - time.monotonic(), 0.0)
        return self._usual["pull_objects"](object_ids, counted, max_time=seconds)

    def _inflate(self, object_id: str, object_contents: dict[str, bytes]) -> Any:
        if count_unpacked(object_contents) > self._most_bytes:
            raise RefusedReply("too large")
        return self._usual["inflate_object_from_contents"](object_id, object_contents)


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
