"""Queries are pushed together; the answer to each is pulled by itself.

Whatever goes wrong while the answer of a node is pulled is that node's fault and nobody else's:
content that cannot be decoded, is nested too deeply or is too large for the memory.  The SuperLink
confirms receipt before the content is decoded, so such an answer does not come again.

An answer states whom it is from and what it answers.  The SuperLink checks this in the envelope
only, not in the message within, so it is compared here with the message that was pulled for.

An answer is a tree of objects.  An array names its chunks by number and may name the same one any
number of times, so that a few megabytes can unpack to terabytes; a node may also announce an object
and never send it.  Flower 1.41 limits neither.  Its HTTP grid calls two functions by their names in
its module, which are replaced while an answer is pulled (`PullLimits`); other grids have no such
functions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import Array, Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.superlink.grid import http_grid

from covertfl.engines.flower.array_form import RefusedReply

# Seconds between two attempts to pull, as in Flower's grids that have no `pull_interval`.
PULL_INTERVAL = 3.0


class Answer(NamedTuple):
    """What came for a query, by the node that was asked.

    Parameters
    ----------
    message : the answer, None if it cannot be used
    fault : reason why it cannot be used, None if it may be
    """

    node: int
    message: Message | None
    fault: str | None


def exchange_messages(
    grid: Grid, queries: Sequence[Message], timeout: float, most_bytes: int
) -> Iterator[Answer]:
    """Send queries and return the answers when they come, for at most `timeout` seconds.

    A grid with an infinite `pull_interval` has all answers after the first attempt.  Answers of
    more than `most_bytes` are not read whole where the grid allows it.
    """
    pushed = set(grid.push_messages(queries))
    names = {query.metadata.message_id: query.metadata.dst_node_id for query in queries}
    waiting = {name: node for name, node in names.items() if name in pushed}
    return _pull_all(grid, waiting, timeout, most_bytes)


def _pull_all(
    grid: Grid, waiting: dict[str, int], timeout: float, most_bytes: int
) -> Iterator[Answer]:
    """Yield the answers to messages, which are given by id with the nodes they were sent to."""
    interval = float(getattr(grid, "pull_interval", PULL_INTERVAL))
    end = time.monotonic() + timeout
    limits = PullLimits(most_bytes, end)
    while True:
        for name, node in list(waiting.items()):
            with limits:
                answers = _pull(grid, name, node)
            if answers:
                del waiting[name]
            yield from answers
        if not waiting or end - time.monotonic() <= interval:
            return
        time.sleep(interval)


def _pull(grid: Grid, name: str, node: int) -> list[Answer]:
    """Return what came for a message to a node; nothing if it has not answered yet."""
    try:
        return _judge(grid.pull_messages([name]), name, node)
    except RefusedReply as refused:
        return [Answer(node, None, str(refused))]
    except Exception:  # a node may send anything
        return [Answer(node, None, "unreadable")]


def _judge(replies: Iterable[Message], name: str, node: int) -> list[Answer]:
    """Return what replies that were pulled for a message to a node are worth."""
    is_stale, answer = False, None
    for reply in replies:
        named = str(reply.metadata.reply_to_message_id)
        if named == name:
            if answer is None or answer.message is None:
                is_own = _is_from(reply, node)
                answer = Answer(node, reply, None) if is_own else Answer(node, None, "wrong sender")
        elif named:  # what replies to nothing is no answer of this node
            is_stale = True
    stale = [Answer(node, None, "stale round")] if is_stale else []
    return stale if answer is None else [*stale, answer]


def _is_from(reply: Message, node: int) -> bool:
    """Return whether a node is the source of a reply; an error may come from the SuperLink."""
    source = reply.metadata.src_node_id
    return source == node or (reply.has_error() and source == SUPERLINK_NODE_ID)


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
