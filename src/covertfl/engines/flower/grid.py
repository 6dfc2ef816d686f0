"""Grids in this process: one whose nodes work here, and one that only reports nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from covertfl.errors import InvalidInput

RUN, SERVER = 1, 1
# Number of client 0's node: the server's own is 1.
FIRST_NODE = 1000
# Flower's error code for an exception in a client app.
CLIENT_APP_RAISED = 2

# How often a strategy may ask for the nodes before more are reported, and before it is refused.
FEW_ASKS, MOST_ASKS = 3, 20
MOST_NODES = 4096

# Clients that are connected, by round.
Connected = Callable[[int], Iterable[int]]


def number_node(client: int) -> int:
    """Return the node ID of a client."""
    return FIRST_NODE + client


class InProcessGrid(Grid):
    """A grid whose nodes 1000, 1001, ..., one for each client, work in this process.

    For tests and for runs in one process.  Which nodes are connected may change from round to
    round.

    Parameters
    ----------
    apps : the client app of all nodes, or of each client
    num_nodes : number of clients; each node's config holds its client's number as `partition-id`
    connected : clients that are connected, by round; None for all
    first_round : round of the next query; after a resume, the one after the last
    run_config : readable by all apps
    is_lean : whether a node works when its reply is pulled, so that the grid holds no replies;
        otherwise all work at once when they are asked
    """

    # Who has not replied at once never will.
    pull_interval = math.inf

    def __init__(
        self,
        apps: ClientApp | Mapping[int, ClientApp],
        num_nodes: int,
        *,
        connected: Connected | None = None,
        first_round: int = 1,
        run_config: Mapping[str, Any] | None = None,
        is_lean: bool = False,
    ) -> None:
        self._apps = dict.fromkeys(range(num_nodes), apps) if isinstance(apps, ClientApp) else apps
        self._connected = connected or (lambda _: range(num_nodes))
        self._run = Run.create_empty(run_id=RUN)
        self._round, self._sent = first_round, 0
        self._is_lean = is_lean
        self._asked: dict[str, Message] = {}
        self._replies: dict[str, Message] = {}
        self.contexts = {
            client: Context(
                run_id=RUN,
                node_id=number_node(client),
                node_config={"partition-id": client, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for client in range(num_nodes)
        }
        # In a deployment the SuperLink provides these.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, RUN

    @property
    def clients(self) -> dict[int, int]:
        """Client numbers by node."""
        return {number_node(client): client for client in self.contexts}

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are connected in this round."""
        return [number_node(client) for client in self._connected(self._round)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages to their nodes, which reply at once; after training a round ends."""
        names, messages = [], list(messages)
        for message in messages:
            self._sent += 1
            name = f"{self._sent:064x}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            self._asked[name] = message
            if not self._is_lean:
                self._answer(name)
        if any(message.metadata.message_type == MessageType.TRAIN for message in messages):
            self._round += 1
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to some messages, as far as there are any."""
        message_ids = list(message_ids)
        for name in message_ids:
            self._answer(name)
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Deliver messages and return the replies."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _answer(self, name: str) -> None:
        """Let a node reply to a message, unless it has done so."""
        message = self._asked.pop(name, None)
        reply = None if message is None else self._deliver(message)
        if reply is not None:
            reply.metadata.__dict__["_message_id"] = f"reply-{int(name, 16)}"
            self._replies[name] = reply

    def _deliver(self, message: Message) -> Message | None:
        """Return the reply of a message's node; None where none comes."""
        client = message.metadata.dst_node_id - FIRST_NODE
        try:
            return self._apps[client](copy_received(message), self.contexts[client])
        except Exception as error:  # becomes an error message, as everywhere in Flower
            return make_error_reply(message, error)


def make_error_reply(message: Message, error: Exception) -> Message:
    """Return the reply of a node whose client app has raised."""
    reason = f"{type(error)}:<'{error}'>"
    return Message(Error(code=CLIENT_APP_RAISED, reason=reason), reply_to=message)


def copy_received(message: Message) -> Message:
    """Return a copy of a message, which its node may change."""
    content = RecordDict()
    for key, record in message.content.items():
        content[key] = ConfigRecord(dict(record)) if isinstance(record, ConfigRecord) else record
    for key, arrays in message.content.array_records.items():
        content[key] = type(arrays)(dict(arrays))
    copied = Message(
        content,
        message.metadata.dst_node_id,
        message.metadata.message_type,
        ttl=message.metadata.ttl,
        group_id=message.metadata.group_id,
    )
    copied.metadata.__dict__.update(message.metadata.__dict__)
    return copied


class NodeCountGrid(Grid):
    """A grid that only reports a number of nodes, for a wrapped strategy to configure a round on.

    A strategy that asks repeatedly is waiting for more nodes: after the third time the number
    doubles with each request, up to a limit.  One that still keeps asking would wait forever.
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

    def _refuse(self, *_args: Any, **_keywords: Any) -> Any:
        raise NotImplementedError("no messages are delivered, and there is no run")

    create_message = push_messages = pull_messages = send_and_receive = _refuse
    run = property(_refuse)
