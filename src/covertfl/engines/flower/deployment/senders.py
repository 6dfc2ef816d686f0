"""Who sends a message: a node pushes its own replies to the server, and nothing else.

Flower checks the node that a request names against the key that signed it, but not the sender and
the receiver of the messages in it: a node could send instructions to others in the server's name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import HTTPException, status
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest


def is_own(request: PushMessagesRequest) -> bool:
    """Return whether all messages of a request are from its node, for the server."""
    return all(
        message.metadata.src_node_id == request.node.node_id
        and message.metadata.dst_node_id == SUPERLINK_NODE_ID
        for message in request.messages_list
    )


def require_own_messages(push: Callable[..., Any]) -> Callable[..., Any]:
    """Return Flower's handler of pushed messages, which then refuses those of others with 403."""

    def checked(request: PushMessagesRequest, state: Any) -> Any:
        if not is_own(request):
            raise HTTPException(
                status.HTTP_403_FORBIDDEN, "a node sends its own replies to the server only"
            )
        return push(request=request, state=state)

    return checked
