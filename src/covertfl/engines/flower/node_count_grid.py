"""A grid that only reports a number of nodes, for a wrapped strategy to configure a round on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from flwr.app import Message
from flwr.serverapp import Grid

from covertfl.errors import InvalidInput

# How often a strategy may ask for the nodes before more are reported, and before it is refused.
FEW_ASKS, MOST_ASKS = 3, 20
MOST_NODES = 4096


class NodeCountGrid(Grid):
    """A grid that reports a number of nodes and delivers no messages.

    A strategy that asks repeatedly is waiting for more nodes: after the third time the number
    doubles with each request, up to a limit.  One that still keeps asking would wait forever.

    Parameters
    ----------
    number : of nodes
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._asked = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return as many node IDs as there are nodes."""
        self._asked += 1
        if self._asked > MOST_ASKS:
            raise InvalidInput(
                f"the wrapped strategy waits for more than {self.number} nodes: its "
                "min_available_nodes must be an attribute of its own or of one that it wraps"
            )
        if self._asked > FEW_ASKS:
            self.number = max(self.number, min(2 * self.number, MOST_NODES))
        return range(1, self.number + 1)

    def set_run(self, run: Any) -> None:
        """Do nothing: there is no run."""

    @property
    def run(self) -> NoReturn:
        """Raise NotImplementedError: there is no run."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Raise NotImplementedError: no messages are delivered."""
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Raise NotImplementedError: no messages are delivered."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Raise NotImplementedError: no messages are delivered."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Raise NotImplementedError: no messages are delivered."""
        raise NotImplementedError
