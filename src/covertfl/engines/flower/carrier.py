"""Carries the work of one run out: the clients' over a grid, the server's on a kernel.

Rounds may start on a clock: then the time between two queries says nothing at all about the work
between them, as long as that fits in.  What is left to do between the clock and the query does not
depend on the action: every trajectory's arrays are written before (`messages.ArrayForm`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from covertfl.engines.flower.messages import (
    ARRAYS,
    CONFIG,
    EXAMPLES,
    ROUND,
    ArrayForm,
    find_odd,
    make_queries,
    read_reply,
)
from covertfl.engines.flower.roll import Roll, wait_for_nodes
from covertfl.kernels.job import LocalKernel
from covertfl.runs.driver import drive
from covertfl.runs.learner import Reply
from covertfl.runs.responder import ClientWork, Work
from covertfl.runs.rounds import Rounds
from covertfl.runs.state import RunState

# Settings of a round, by its number.
MakeConfig = Callable[[int], ConfigRecord]
# Told of the replies to an evaluation.
TakeEvaluation = Callable[[int, Sequence[Message]], None]


class Carrier:
    """The grid of one run.

    Parameters
    ----------
    grid : Flower's, or one in this process
    roll : numbers of nodes
    form : of the arrays
    timeout : seconds that replies are waited for
    patience : seconds that enough nodes are waited for, None for ever
    round_seconds : between the starts of two rounds, None to start when the last has ended

    Attributes
    ----------
    least_nodes : that must be connected before a round begins
    make_config : settings that clients are sent in a round
    arrays_key, config_key, weighted_by : names in messages
    joins : whether replies are needed as vectors
    checks_metrics : whether replies must have the metrics that most of them have
    evaluation : settings of clients' evaluations and who takes the replies; None for none
    """

    def __init__(
        self,
        grid: Grid,
        roll: Roll,
        form: ArrayForm,
        *,
        timeout: float,
        patience: float | None = None,
        round_seconds: float | None = None,
    ) -> None:
        self._grid, self._roll, self._form = grid, roll, form
        self._timeout, self._patience = timeout, patience
        self._clock = Clock(round_seconds)
        self._nodes: Mapping[int, int] = {}
        self._replies: dict[int, Message] = {}
        self.least_nodes = 1
        self.make_config: MakeConfig = lambda _: ConfigRecord()
        self.arrays_key, self.config_key, self.weighted_by = ARRAYS, CONFIG, EXAMPLES
        self.joins, self.checks_metrics = True, False
        self.evaluation: tuple[ConfigRecord, TakeEvaluation] | None = None

    # --- who can be asked ---

    def look(self) -> Mapping[int, int]:
        """Nodes that are connected, by client number; the round begins with it."""
        self._clock.wait()
        self._nodes = wait_for_nodes(self._grid, self._roll, self.least_nodes, self._patience)
        return self._nodes

    @property
    def replies(self) -> Mapping[int, Message]:
        """Messages that came back last, by client number."""
        return self._replies

    # --- work ---

    def drive(self, rounds: Rounds, kernel: LocalKernel) -> RunState:
        """Carry a run to its end."""
        (final,) = drive([rounds], lambda waiting: {0: self._carry_out(waiting[0], kernel)})
        return final

    def _carry_out(self, work: Work, kernel: LocalKernel) -> Any:
        if isinstance(work, ClientWork):
            return self.ask(work)
        return kernel.run(list(work.jobs))

    def ask(self, work: ClientWork) -> list[Reply]:
        """Send a query and read what comes back, in the order of the clients."""
        clients = [int(client) for client in work.attendance.clients]
        nodes = {self._nodes[client]: client for client in clients}
        arrays = self._form.find(work.weights)
        config = self.make_config(work.round)
        config[ROUND] = work.round
        content = RecordDict({self.arrays_key: arrays, self.config_key: config})
        replies = self._exchange(content, nodes, MessageType.TRAIN, work.round)
        answers = self._read(replies, nodes, work.round)
        if self.evaluation is not None:
            self._evaluate(arrays, nodes, work.round)
        return answers

    def _exchange(
        self, content: RecordDict, nodes: Mapping[int, int], kind: str, round_number: int
    ) -> list[tuple[int | None, Message]]:
        """Replies with the nodes whose messages they answer; None where they answer none."""
        if not nodes:
            return []
        queries = make_queries(content, list(nodes), kind, round_number, self._timeout)
        replies = list(self._grid.send_and_receive(queries, timeout=self._timeout))
        sent = {query.metadata.message_id: query.metadata.dst_node_id for query in queries}
        return [(sent.get(reply.metadata.reply_to_message_id), reply) for reply in replies]

    def _read(
        self,
        replies: Sequence[tuple[int | None, Message]],
        nodes: Mapping[int, int],
        round_number: int,
    ) -> list[Reply]:
        answers: list[Reply] = []
        self._replies, answered = {}, set()
        for node, message in replies:
            if node is None:
                # An answer to another round's query, whoever sent it.
                client = nodes.get(message.metadata.src_node_id)
                if client is not None:
                    answers.append(Reply(client, None, None, "stale round"))
                continue
            client = nodes[node]
            if node in answered:
                continue
            answered.add(node)
            answer = read_reply(message, client, self._form, self.weighted_by, joins=self.joins)
            if answer is not None:
                answers.append(answer)
                if answer.fault is None:
                    self._replies[client] = message
        odd = find_odd(self._replies) if self.checks_metrics else set()
        answers = [
            replace(answer, fault="wrong metrics")
            if answer.client in odd and answer.fault is None
            else answer
            for answer in answers
        ]
        silent = [client for node, client in nodes.items() if node not in answered]
        named = {answer.client for answer in answers}
        answers += [
            Reply(client, None, None, "no reply") for client in silent if client not in named
        ]
        return sorted(answers, key=lambda answer: answer.client)

    def _evaluate(self, arrays: Any, nodes: Mapping[int, int], round_number: int) -> None:
        """Let clients evaluate this round's query: no other arrays are ever sent."""
        assert self.evaluation is not None
        given, take = self.evaluation
        config = ConfigRecord({**given, ROUND: round_number})
        content = RecordDict({self.arrays_key: arrays, self.config_key: config})
        replies = self._exchange(content, nodes, MessageType.EVALUATE, round_number)
        first = {node: message for node, message in reversed(replies) if node is not None}
        take(round_number, [first[node] for node in nodes if node in first])


class Clock:
    """Starts of rounds at fixed times; a round that takes too long starts the next at the next.

    Parameters
    ----------
    seconds : between two starts, None for as soon as possible
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._begun: float | None = None

    def wait(self) -> None:
        """Until the next start."""
        if self._seconds is None:
            return
        now = time.monotonic()
        if self._begun is None:
            self._begun = now
            return
        ticks = math.floor((now - self._begun) / self._seconds) + 1
        time.sleep(self._begun + ticks * self._seconds - now)
