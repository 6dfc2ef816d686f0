"""A grid in this process whose replies pass through Flower's HTTP grid as uploaded objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from covertfl.engines.flower.grid import FIRST_NODE
from tests.support.faulty_grid import FaultyGrid

# Changes what a client uploads: contents of objects by id; an object that is left out never comes.
Tamper = Callable[[int, dict[str, bytes]], dict[str, bytes]]


class WireGrid(FaultyGrid):
    """A grid that plays the SuperLink for the methods of Flower's own HTTP grid.

    Parameters
    ----------
    given, options : arguments of `FaultyGrid`
    tamper : changes what a client uploads
    """

    node = Node(node_id=1)

    def __init__(self, *given: Any, tamper: Tamper, **options: Any) -> None:
        super().__init__(*given, **options)
        self._tamper, self._objects = tamper, dict[str, bytes]()
        self.pulled = 0

    @property
    def _runtime_client(self) -> WireGrid:
        return self

    def pull_messages(self, message_ids: Any) -> list[Message]:
        """Pull as Flower's HTTP grid does."""
        return list(HttpGrid.pull_messages(self, list(message_ids)))  # type: ignore[arg-type]

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        """Return the envelopes of replies; their objects wait to be pulled."""
        response, self._objects = PullAppMessagesResponse(), {}
        for reply in super().pull_messages(request.message_ids):
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = {name: obj.deflate() for name, obj in get_all_nested_objects(reply).items()}
            client = reply.metadata.src_node_id - FIRST_NODE
            self._objects = {**self._objects, **self._tamper(client, objects)}
            response.messages_list.append(message_to_proto(remove_content_from_message(reply)))
            response.message_object_trees.append(get_object_tree(reply))
        return response

    def PullObject(self, request: Any) -> PullObjectResponse:
        """Return the content of an object, if it was uploaded."""
        content = self._objects.get(request.object_id)
        self.pulled += len(content or b"")
        there = content is not None
        return PullObjectResponse(
            object_found=True, object_available=there, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        """Do nothing: objects stay."""
