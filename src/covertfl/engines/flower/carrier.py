"""Carries out the work of one run: the clients' over a grid, the server's on a kernel.

Rounds may start on a clock.  Then the time between two queries reveals nothing about the work
between them, as long as it is done in time.  What is left to do between the clock and the query
does not depend on the action: every trajectory's arrays are encoded before (`ArrayForm`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.messages import (
    ROUND,
    MessageKeys,
    find_odd_metrics,
    make_queries,
    read_reply,
)
from covertfl.engines.flower.node_numbers import NodeNumbers, wait_for_nodes
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalKernel
from covertfl.runs.driver import drive
from covertfl.runs.federation import RunState
from covertfl.runs.learner import Reply
from covertfl.runs.responder import ClientWork, Work
from covertfl.runs.rounds import Rounds

# The config of a round, by its number.
MakeConfig = Callable[[int], ConfigRecord]
# Called with the round and the replies to an evaluation.
TakeEvaluation = Callable[[int, Sequence[Message]], None]


@dataclass(frozen=True)
class ExchangeSettings:
    """How queries and replies are exchanged with nodes.

    Parameters
    ----------
    timeout : seconds that a round waits for replies
    patience : seconds to wait for enough nodes, None to wait without limit
    round_seconds : between the starts of two rounds, None to start when the last round has ended
    least_nodes : that must be connected before a round begins
    keys : names in messages
    joins : whether replies are needed as vectors
    checks_metrics : whether replies must have the metrics that most of them have
    """

    timeout: float
    patience: float | None = None
    round_seconds: float | None = None
    least_nodes: int = 1
    keys: MessageKeys = field(default_factory=MessageKeys)
    joins: bool = True
    checks_metrics: bool = False

    def __post_init__(self) -> None:
        for name in ("timeout", "patience", "round_seconds"):
            given = getattr(self, name)
            if given is not None and not given >= 0.0:
                raise InvalidInput(f"{name} must be at least 0, got {given}")
        if self.least_nodes < 1:
            raise InvalidInput(f"least_nodes must be at least 1, got {self.least_nodes}")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How clients evaluate a round's query.

    Parameters
    ----------
    config : sent to clients
    take : called with the round and the replies
    """

    config: ConfigRecord
    take: TakeEvaluation


class Carrier:
    """The exchange of one run's messages over a grid.

    Parameters
    ----------
    grid : Flower's, or one in this process
    numbers : client numbers of nodes
    form : of the arrays
    settings : of the exchange
    make_config : makes the config that clients are sent in a round
    evaluation : how clients evaluate each query, None if they do not
    """

    def __init__(
        self,
        grid: Grid,
        numbers: NodeNumbers,
        form: ArrayForm,
        settings: ExchangeSettings,
        make_config: MakeConfig,
        evaluation: Evaluation | None = None,
    ) -> None:
        self._grid, self._numbers, self._form = grid, numbers, form
        self._settings, self._make_config, self._evaluation = settings, make_config, evaluation
        self._clock = Clock(settings.round_seconds)
        self._nodes: Mapping[int, int] = {}
        self._replies: dict[int, Message] = {}

    # --- who can be asked ---

    def look(self) -> Mapping[int, int]:
        """Wait for the start of the next round; return the connected nodes by client number."""
        least, patience = self._settings.least_nodes, self._settings.patience
        self._clock.wait()
        self._nodes = wait_for_nodes(self._grid, self._numbers, least, patience)
        return self._nodes

    @property
    def replies(self) -> Mapping[int, Message]:
        """Valid messages of the last round's replies, by client number."""
        return self._replies

    # --- work ---

    def drive(self, rounds: Rounds, kernel: LocalKernel) -> RunState:
        """Carry out a run to its end and return its final state."""
        (final,) = drive([rounds], lambda waiting: {0: self._carry_out(waiting[0], kernel)})
        return final

    def _carry_out(self, work: Work, kernel: LocalKernel) -> Any:
        if isinstance(work, ClientWork):
            return self.ask(work)
        return kernel.run(list(work.jobs))

    def ask(self, work: ClientWork) -> list[Reply]:
        """Send a query and return the replies in the order of the clients."""
        clients = [int(client) for client in work.attendance.clients]
        nodes = {self._nodes[client]: client for client in clients}
        arrays = self._form.find(work.weights)
        config = self._make_config(work.round)
        config[ROUND] = work.round
        messages = self._exchange(arrays, config, nodes, MessageType.TRAIN, work.round)
        replies = self._read(messages, nodes)
        if self._evaluation is not None:
            self._evaluate(self._evaluation, arrays, nodes, work.round)
        return replies

    def _exchange(
        self,
        arrays: ArrayRecord,
        config: ConfigRecord,
        nodes: Mapping[int, int],
        kind: str,
        round_number: int,
    ) -> list[tuple[int | None, Message]]:
        """Return replies with the nodes of the messages they answer, None where they answer none.

        Parameters
        ----------
        nodes : client numbers by node
        kind : of the messages
        """
        if not nodes:
            return []
        keys, timeout = self._settings.keys, self._settings.timeout
        content = RecordDict({keys.arrays: arrays, keys.config: config})
        queries = make_queries(content, list(nodes), kind, round_number, timeout)
        replies = list(self._grid.send_and_receive(queries, timeout=timeout))
        sent = {query.metadata.message_id: query.metadata.dst_node_id for query in queries}
        return [(sent.get(reply.metadata.reply_to_message_id), reply) for reply in replies]

    def _read(
        self, messages: Sequence[tuple[int | None, Message]], nodes: Mapping[int, int]
    ) -> list[Reply]:
        """Return the replies of the clients that were asked, in the order of the clients."""
        replies: list[Reply] = []
        self._replies, answered = {}, set()
        for node, message in messages:
            if node is None:
                # A reply to another round's query, whoever sent it.
                client = nodes.get(message.metadata.src_node_id)
                if client is not None:
                    replies.append(Reply(client, None, None, "stale round"))
            elif node not in answered:
                answered.add(node)
                replies += self._read_one(message, nodes[node])
        replies = self._refuse_odd_metrics(replies)
        silent = [client for node, client in nodes.items() if node not in answered]
        named = {reply.client for reply in replies}
        replies += [
            Reply(client, None, None, "no reply") for client in silent if client not in named
        ]
        return sorted(replies, key=lambda reply: reply.client)

    def _read_one(self, message: Message, client: int) -> list[Reply]:
        """Return a client's reply, none where it had no examples; keep its message if valid."""
        key, joins = self._settings.keys.examples, self._settings.joins
        reply = read_reply(message, client, self._form, key, joins=joins)
        if reply is None:
            return []
        if reply.fault is None:
            self._replies[client] = message
        return [reply]

    def _refuse_odd_metrics(self, replies: Sequence[Reply]) -> list[Reply]:
        odd = find_odd_metrics(self._replies) if self._settings.checks_metrics else set()
        return [
            replace(reply, fault="wrong metrics")
            if reply.client in odd and reply.fault is None
            else reply
            for reply in replies
        ]

    def _evaluate(
        self,
        evaluation: Evaluation,
        arrays: ArrayRecord,
        nodes: Mapping[int, int],
        round_number: int,
    ) -> None:
        """Let clients evaluate this round's query: no other arrays are ever sent."""
        config = ConfigRecord({**evaluation.config, ROUND: round_number})
        replies = self._exchange(arrays, config, nodes, MessageType.EVALUATE, round_number)
        first = {node: message for node, message in reversed(replies) if node is not None}
        evaluation.take(round_number, [first[node] for node in nodes if node in first])


class Clock:
    """Start times of rounds at fixed intervals; a round that takes too long skips a start.

    Parameters
    ----------
    seconds : between two starts, None to start rounds as soon as possible
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._begun: float | None = None

    def wait(self) -> None:
        """Wait until the next start."""
        if self._seconds is None:
            return
        now = time.monotonic()
        if self._begun is None:
            self._begun = now
            return
        ticks = math.floor((now - self._begun) / self._seconds) + 1
        time.sleep(self._begun + ticks * self._seconds - now)
