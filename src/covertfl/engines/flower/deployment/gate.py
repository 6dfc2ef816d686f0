"""The gate in front of a SuperLink: who may call it, and how large a request may be.

A SuperLink serves nodes, its own server app and its operators on one port, and asks operators for
nothing.  The gate is the outermost ASGI application of its process:

- calls of nodes (`/v1/fleet/`) and of the server app (`/v1/runtime/`) pass and are authenticated by
  Flower, with the node's key, the secret of the SuperExec or the token of a task;
- everything else, `/docs` included, needs the owner's token;
- without that token a request must declare its size, which is limited.

A node pushes its own replies to the server, and nothing else.  Flower checks the node that a
request names against the key that signed it, but not the sender and the receiver of the messages in
it: a node could send instructions to others in the server's name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from fastapi import HTTPException, status
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest

from covertfl.files.token import shows_token

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

OPEN_PATHS = ("/v1/fleet/", "/v1/runtime/")
UNAUTHORIZED, LENGTH_REQUIRED, TOO_LARGE = 401, 411, 413
MEBIBYTE = 2**20


class Gate:
    """An ASGI application that passes requests on to another, or refuses them.

    Parameters
    ----------
    token : of the owner, not empty
    limit : largest size of a request without that token, in bytes
    """

    def __init__(self, application: Application, *, token: str, limit: int) -> None:
        assert token
        self._application, self._token, self._limit = application, token, limit

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            refusal = self.find_refusal(scope["path"], scope["headers"])
            if refusal is None:
                await self._application(scope, receive, send)
            else:
                await _refuse(refusal, send)
        else:  # Flower has no websockets
            await send({"type": "websocket.close", "code": 1008})

    def find_refusal(self, path: str, headers: Headers) -> int | None:
        """Return the HTTP status with which a request is refused, None if it passes.

        Parameters
        ----------
        headers : names in lower case
        """
        if shows_token(headers, self._token):
            return None
        if not path.startswith(OPEN_PATHS):
            return UNAUTHORIZED
        # A body in chunks has any size, whatever the other header declares.
        lengths = _find(headers, b"content-length")
        if _find(headers, b"transfer-encoding") or len(lengths) != 1 or not lengths[0].isdigit():
            return LENGTH_REQUIRED
        return TOO_LARGE if int(lengths[0]) > self._limit else None


def find_request_limit(model_bytes: int | None) -> int:
    """Return the largest size of a request that a node or the server app needs, in bytes.

    Flower sends arrays in chunks of limited size.  Four times the largest chunk, and room for
    names and metrics.

    Parameters
    ----------
    model_bytes : size of the model's arrays, None if it is not known
    """
    chunk = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    return 4 * (chunk if model_bytes is None else min(model_bytes, chunk)) + MEBIBYTE


def _find(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


async def _refuse(status: int, send: Send) -> None:
    """Answer without reading the request's body."""
    headers = [(b"content-length", b"0"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body"})


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
