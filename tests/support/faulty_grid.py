"""A grid in this process whose nodes fail in every way that real ones can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from flwr.app import Message, MessageType

from covertfl.engines.flower.grid import FIRST_NODE, InProcessGrid, make_error_reply

# error: the app raises; lost: no reply; late: the reply comes in the node's next round, too late.
Fault = Literal["error", "lost", "late"]


class FaultyGrid(InProcessGrid):
    """A grid in this process with faults.

    Parameters
    ----------
    given : arguments of `InProcessGrid`
    faults : how a client fails in a round, by round and client; None where it does not
    spoil : changes a reply, by round, client and reply
    """

    def __init__(
        self,
        *given: Any,
        faults: Callable[[int, int], Fault | None] | None = None,
        spoil: Callable[[int, int, Message], Message] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*given, **options)
        self._faults = faults or (lambda _round, _client: None)
        self._spoil = spoil or (lambda _round, _client, reply: reply)
        self._late: list[Message] = []

    def pull_messages(self, message_ids: Any) -> list[Message]:
        """Return the replies to some messages, late ones of the same nodes before them."""
        replies = list(super().pull_messages(message_ids))
        nodes = {reply.metadata.src_node_id for reply in replies}
        late = [reply for reply in self._late if reply.metadata.src_node_id in nodes]
        self._late = [reply for reply in self._late if reply not in late]
        return [*late, *replies]

    def _deliver(self, message: Message) -> Message | None:
        client = message.metadata.dst_node_id - FIRST_NODE
        # Evaluation follows the training of its round.
        is_train = message.metadata.message_type == MessageType.TRAIN
        number = self._round if is_train else self._round - 1
        fault = self._faults(number, client)
        if fault == "lost":
            return None
        reply = super()._deliver(message)
        if fault == "error":
            reply = make_error_reply(message, RuntimeError("the client app failed"))
        assert reply is not None
        reply = self._spoil(number, client, reply)
        if fault == "late":
            reply.metadata.__dict__["_message_id"] = f"late-{number}-{client}"
            self._late.append(reply)
            return None
        return reply
