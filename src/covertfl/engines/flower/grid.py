"""A grid in this process: hands each message to the client app of its node, collects the replies.

For tests and for runs in one process.  Which nodes are connected may change from round to round,
and a node can be made to fail in every way that a real one can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from flwr.app import (
    ConfigRecord,
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN, SERVER = 1, 1
# Number of client 0's node: the server's own is 1.
FIRST_NODE = 1000
# What flwr says of an exception in a client app.
CLIENT_APP_RAISED = 2

# error: the app raises; lost: no reply; late: the reply comes in the node's next round, too late.
Fault = Literal["error", "lost", "late"]
Connected = Callable[[int], Iterable[int]]


def number_node(client: int) -> int:
    """The node of a client."""
    return FIRST_NODE + client


class InProcessGrid(Grid):
    """Nodes 1000, 1001, ... in this process, one for each client.

    Parameters
    ----------
    apps : the client app of all nodes, or of each client
    num_nodes : clients 0 .. num_nodes - 1, of which each node's config knows its own number as
        `partition-id`
    connected : clients that are connected, by round; None for all
    faults : how a client fails in a round, by round and client; None where it does not
    spoil : changes a reply, by round, client and reply
    delay : seconds that a reply takes, by round and client
    first_round : that the grid will be asked for, after a resume the one after the last
    run_config : readable by all apps
    """

    def __init__(
        self,
        apps: ClientApp | Mapping[int, ClientApp],
        num_nodes: int,
        *,
        connected: Connected | None = None,
        faults: Callable[[int, int], Fault | None] | None = None,
        spoil: Callable[[int, int, Message], Message] | None = None,
        delay: Callable[[int, int], float] | None = None,
        first_round: int = 1,
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self._apps = dict.fromkeys(range(num_nodes), apps) if isinstance(apps, ClientApp) else apps
        self._connected = connected or (lambda _: range(num_nodes))
        self._faults = faults or (lambda _round, _client: None)
        self._spoil = spoil or (lambda _round, _client, reply: reply)
        self._delay = delay or (lambda _round, _client: 0.0)
        self._run = Run.create_empty(run_id=RUN)
        self._round, self._sent = first_round, 0
        self._late: list[tuple[int, Message]] = []
        self._answers: dict[str, Message] = {}
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
        # What the server's process would be told by its SuperLink.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, RUN

    @property
    def clients(self) -> dict[int, int]:
        """Clients by node."""
        return {number_node(client): client for client in self.contexts}

    # --- what a grid is asked for ---

    def set_run(self, run: Run) -> None:
        """Another run."""
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
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Nodes that are connected now."""
        return [number_node(client) for client in self._connected(self._round)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand messages to their nodes, which work on them at once."""
        names = []
        for message in messages:
            self._sent += 1
            name = f"{self._sent:064x}"
            message.metadata.__dict__["_message_id"] = name
            names.append(name)
            reply = self._deliver(message)
            if reply is not None:
                self._answers[name] = reply
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to some messages, as far as there are any."""
        return [self._answers.pop(name) for name in message_ids if name in self._answers]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Hand messages over and collect the replies, late ones of earlier rounds among them."""
        messages = list(messages)
        late = [reply for due, reply in self._late if due <= self._round]
        self._late = [(due, reply) for due, reply in self._late if due > self._round]
        replies = late + list(self.pull_messages(self.push_messages(messages)))
        if any(message.metadata.message_type == MessageType.TRAIN for message in messages):
            self._round += 1
        return replies

    # --- nodes ---

    def _deliver(self, message: Message) -> Message | None:
        client = message.metadata.dst_node_id - FIRST_NODE
        # Evaluation follows the training of its round.
        is_train = message.metadata.message_type == MessageType.TRAIN
        number = self._round if is_train else self._round - 1
        fault = self._faults(number, client)
        if seconds := self._delay(number, client):
            time.sleep(seconds)
        if fault == "lost":
            return None
        reply = self._spoil(number, client, self._work(message, client, fault))
        reply.metadata.__dict__["_message_id"] = f"reply-{self._sent}"
        if fault == "late":
            self._late.append((number + 1, reply))
            return None
        return reply

    def _work(self, message: Message, client: int, fault: Fault | None) -> Message:
        """What the node's app replies; an exception becomes an error, as everywhere in Flower."""
        received = copy_received(message)
        try:
            reply = self._apps[client](received, self.contexts[client])
            if fault == "error":
                raise RuntimeError("the client app failed")
            return reply
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(code=CLIENT_APP_RAISED, reason=reason), reply_to=message)


def copy_received(message: Message) -> Message:
    """A message as a node gets it: its own copy, which it may change."""
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


class AttendedGrid(Grid):
    """Another grid on which only some nodes count as connected, by round.

    Parameters
    ----------
    grid : all of whose nodes could be asked
    nodes : nodes by client
    connected : clients that are connected, by round
    first_round : that it will be asked for
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[int, int], connected: Connected, *, first_round: int = 1
    ) -> None:
        self._grid, self._nodes, self._connected = grid, nodes, connected
        self._round = first_round

    def get_node_ids(self) -> Iterable[int]:
        """Nodes that are connected now."""
        there = set(self._grid.get_node_ids())
        chosen = [self._nodes[client] for client in self._connected(self._round)]
        return [node for node in chosen if node in there]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """As the other grid does; a round has passed."""
        messages = list(messages)
        replies = self._grid.send_and_receive(messages, timeout=timeout)
        if any(message.metadata.message_type == MessageType.TRAIN for message in messages):
            self._round += 1
        return replies

    def set_run(self, run: Run) -> None:
        """As the other grid does."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """The other grid's."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """As the other grid does."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the other grid does."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the other grid does."""
        return self._grid.pull_messages(message_ids)
