"""Carries out the work of one run: the clients' over a grid, the server's on a kernel.

Rounds may start on a clock (`clock`).  What is left to do between its start and the query does not
depend on the action: every trajectory's arrays are encoded before (`ArrayForm`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp.strategy import Result

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.clock import Clock
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.messages import (
    ROUND,
    MessageKeys,
    copy_config,
    find_odd_metrics,
    make_queries,
    read_reply,
)
from covertfl.engines.flower.node_numbers import StoredNodeNumbers, wait_for_nodes
from covertfl.engines.flower.strategy_settings import StartSettings, StrategySettings
from covertfl.kernels.job import LocalKernel
from covertfl.runs.driver import drive
from covertfl.runs.federation import RunState
from covertfl.runs.learner import Reply
from covertfl.runs.responder import ClientWork, Work
from covertfl.runs.rounds import Rounds

NODES = "private/nodes.jsonl"


class Carrier:
    """The exchange of one run's messages over a grid.

    Parameters
    ----------
    given, start : arguments of the strategy and of its `start`
    inner : wrapped strategies, None if there are none
    joins : whether replies are needed as vectors
    clock : when rounds start
    result : receives the metrics of clients' evaluations
    """

    def __init__(
        self,
        given: StrategySettings,
        start: StartSettings,
        form: ArrayForm,
        inner: InnerStrategies | None,
        *,
        joins: bool,
        clock: Clock,
        result: Result,
    ) -> None:
        self._start, self._form, self._inner = start, form, inner
        self._joins, self._evaluates, self._result = joins, given.evaluate, result
        self._keys = MessageKeys() if inner is None else inner.keys
        self._numbers = given.rounds.numbers or StoredNodeNumbers(given.folder / NODES)
        self._patience = given.rounds.patience
        self._evaluate_config = copy_config(start.evaluate_config)
        self.clock = clock
        self._nodes: Mapping[int, int] = {}
        self._replies: dict[int, Message] = {}

    def look(self) -> Mapping[int, int]:
        """Wait for the start of the next round; return the connected nodes by client number."""
        least = 1 if self._inner is None else self._inner.least_nodes
        self.clock.wait()
        self._nodes = wait_for_nodes(self._start.grid, self._numbers, least, self._patience)
        self.clock.begin()
        return self._nodes

    @property
    def replies(self) -> Mapping[int, Message]:
        """Valid messages of the last round's replies, by client number."""
        return self._replies

    def run(self, rounds: Rounds, kernel: LocalKernel) -> RunState:
        """Carry out a run to its end and return its final state."""

        def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
            work = waiting[0]
            if isinstance(work, ClientWork):
                return {0: self.ask(work)}
            return {0: kernel.run(list(work.jobs))}

        [final] = drive([rounds], answer)
        return final

    def ask(self, work: ClientWork) -> list[Reply]:
        """Send a query and return the replies in the order of the clients."""
        clients = [int(client) for client in work.attendance.clients]
        nodes = {self._nodes[client]: client for client in clients}
        arrays = self._form.find(work.weights)
        config = self._make_config(work.round)
        messages = self._exchange(arrays, config, nodes, MessageType.TRAIN, work.round)
        replies = self._read(messages, nodes)
        if any(reply.fault == "no reply" for reply in replies):
            self.clock.discard()
        if self._evaluates:
            self._evaluate(arrays, nodes, work.round)
        return replies

    def _make_config(self, round_number: int) -> ConfigRecord:
        given, inner = self._start.train_config, self._inner
        config = copy_config(given) if inner is None else inner.make_config(round_number, given)
        config[ROUND] = round_number
        return config

    def _exchange(
        self,
        arrays: ArrayRecord,
        config: ConfigRecord,
        nodes: Mapping[int, int],
        kind: str,
        round_number: int,
    ) -> list[tuple[int | None, Message]]:
        """Return replies with the nodes of the messages they answer, None where they answer none.

        The nodes that are asked come with their client numbers.
        """
        if not nodes:
            return []
        timeout = self._start.timeout
        content = RecordDict({self._keys.arrays: arrays, self._keys.config: config})
        queries = make_queries(content, list(nodes), kind, round_number, timeout)
        replies = list(self._start.grid.send_and_receive(queries, timeout=timeout))
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
        reply = read_reply(message, client, self._form, self._keys.examples, joins=self._joins)
        if reply is None:
            return []
        if reply.fault is None:
            self._replies[client] = message
        return [reply]

    def _refuse_odd_metrics(self, replies: Sequence[Reply]) -> list[Reply]:
        odd = set() if self._inner is None else find_odd_metrics(self._replies)
        return [
            replace(reply, fault="wrong metrics")
            if reply.client in odd and reply.fault is None
            else reply
            for reply in replies
        ]

    def _evaluate(self, arrays: ArrayRecord, nodes: Mapping[int, int], round_number: int) -> None:
        """Let clients evaluate this round's query: no other arrays are ever sent.

        Without a wrapped strategy their metrics are not used.
        """
        config = ConfigRecord({**self._evaluate_config, ROUND: round_number})
        replies = self._exchange(arrays, config, nodes, MessageType.EVALUATE, round_number)
        first = {node: message for node, message in reversed(replies) if node is not None}
        if self._inner is not None:
            valid = [first[node] for node in nodes if node in first]
            metrics = self._inner.aggregate_evaluation(round_number, valid)
            if metrics is not None:
                self._result.evaluate_metrics_clientapp[round_number] = metrics
