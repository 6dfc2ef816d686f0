"""Queries are pushed together; the answer to each is pulled by itself.

Whatever goes wrong while the answer of a node is pulled is that node's fault and nobody else's:
content that cannot be decoded, is nested too deeply or is too large for the memory.  The SuperLink
confirms receipt before the content is decoded, so such an answer does not come again.

An answer states whom it is from and what it answers.  The SuperLink checks this in the envelope
only, not in the message within, so it is compared here with the message that was pulled for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid

from covertfl.engines.flower.array_form import RefusedReply
from covertfl.engines.flower.pull_limits import PullLimits

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
