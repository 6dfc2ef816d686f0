"""Carries out the work of one run: the clients' over a grid, the server's on a kernel.

Rounds may start on a clock (`clock`).  What is left to do between its start and the query does not
depend on the action: every trajectory's arrays are encoded before (`ArrayForm`).
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.exchange import Answer, exchange_messages
from covertfl.engines.flower.gathering import WRONG_METRICS, Gathered
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.messages import (
    ROUND,
    MessageKeys,
    combine_metrics,
    copy_config,
    find_size_limit,
    is_too_large,
    make_queries,
    read_reply,
)
from covertfl.engines.flower.node_numbers import StoredNodeNumbers, wait_for_nodes
from covertfl.engines.flower.strategy_settings import StartSettings, StrategySettings
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.files.text import read_text
from covertfl.kernels.job import Vector
from covertfl.runs.clock import Clock
from covertfl.runs.engine import ScoreWork, Work, drive
from covertfl.runs.folder import report_errors
from covertfl.runs.round import Rounds
from covertfl.runs.state import Federation, RunState
from covertfl.schemes.replies import Reply
from covertfl.schemes.scheme import Jobs

NODES = "private/nodes.jsonl"
METRICS_FILE = "private/client_metrics.jsonl"


class Carrier:
    """The exchange of one run's messages over a grid.

    Parameters
    ----------
    given, start : arguments of the strategy and of its `start`
    inner : wrapped strategies, None if there are none
    gathered : takes the valid replies of a round
    clock : when rounds start
    result : receives the metrics of clients
    """

    def __init__(
        self,
        given: StrategySettings,
        start: StartSettings,
        form: ArrayForm,
        inner: InnerStrategies | None,
        gathered: Gathered,
        *,
        clock: Clock,
        result: Result,
    ) -> None:
        self._start, self._form, self._inner, self.gathered = start, form, inner, gathered
        self._most_bytes = find_size_limit(form)
        self._evaluates, self._result = given.evaluate, result
        self._metrics = ClientMetrics(given.folder, result.train_metrics_clientapp)
        self._keys = MessageKeys() if inner is None else inner.keys
        self._numbers = given.rounds.numbers or StoredNodeNumbers(given.folder / NODES)
        self._patience = given.rounds.patience
        self._evaluate_config = copy_config(start.evaluate_config)
        self.clock = clock
        self._nodes: Mapping[int, int] = {}

    def look(self) -> Mapping[int, int]:
        """Wait for the start of the next round; return the connected nodes by client number."""
        least = 1 if self._inner is None else self._inner.least_nodes
        self.clock.wait()
        self._nodes = wait_for_nodes(self._start.grid, self._numbers, least, self._patience)
        self.clock.begin()
        return self._nodes

    def run(self, rounds: Rounds, federation: Federation) -> RunState:
        """Carry out a run to its end and return its final state."""

        def answer(waiting: Mapping[int, Work]) -> dict[int, Any]:
            work = waiting[0]
            if isinstance(work, ScoreWork):
                return {0: federation.validation.score(work.weights)}
            assert isinstance(work, Jobs)
            return {0: federation.kernel.run(work.plan())}

        [final] = drive([rounds], answer)
        return final

    def ask(
        self, number: int, weights: Vector, clients: Sequence[int], unused: Collection[int]
    ) -> list[Reply]:
        """Send the query of a round and return the replies in the order of the clients.

        Parameters
        ----------
        clients : that are asked
        unused : those whose replies do not count
        """
        nodes = {self._nodes[client]: client for client in clients}
        arrays = self._form.find(weights)
        config = self._make_config(number)
        answers = self._exchange(arrays, config, nodes, MessageType.TRAIN, number)
        replies = self._read(answers, nodes, unused)
        if any(reply.fault == "no reply" for reply in replies):
            self.clock.discard()
        self._keep_metrics(number)
        if self._evaluates:
            self._evaluate(arrays, nodes, number)
        return replies

    def _keep_metrics(self, round_number: int) -> None:
        """Aggregate the metrics of this round's replies, whatever was sent."""
        records = self.gathered.metrics
        if self._inner is not None:
            metrics = self._inner.aggregate_metrics(records)
        else:
            metrics = combine_metrics(records, self._keys.examples, aggregate_metricrecords)
        self._metrics.keep(round_number, metrics)

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
    ) -> Iterator[Answer]:
        """Yield what comes from the nodes, which are given with their client numbers."""
        if not nodes:
            return iter(())
        timeout = self._start.timeout
        content = RecordDict({self._keys.arrays: arrays, self._keys.config: config})
        queries = make_queries(content, list(nodes), kind, round_number, timeout)
        return exchange_messages(self._start.grid, queries, timeout, self._most_bytes)

    def _read(
        self, answers: Iterable[Answer], nodes: Mapping[int, int], unused: Collection[int]
    ) -> list[Reply]:
        """Return the replies of the clients that were asked, in the order of the clients.

        Small ones are read several in a row; the messages of refused ones are not kept.
        """
        replies: list[Reply] = []
        unheard = dict(nodes)
        self.gathered.begin()
        coming = iter(answers)
        while batch := deque(islice(coming, self.gathered.in_a_row)):
            while batch:  # emptied before the next is pulled
                node, message, fault = batch.popleft()
                unheard.pop(node, None)
                client = nodes[node]
                if message is None:
                    replies.append(Reply(client, None, None, fault))
                else:
                    replies += self._read_one(message, client, is_used=client not in unused)
        odd = self.gathered.end()
        if odd:
            replies = [
                replace(reply, fault=WRONG_METRICS)
                if reply.client in odd and reply.fault is None
                else reply
                for reply in replies
            ]
        self.gathered.claims.take(
            {reply.client: reply.examples for reply in replies if not reply.fault}
        )
        replies += [Reply(client, None, None, "no reply") for client in unheard.values()]
        return sorted(replies, key=lambda reply: reply.client)

    def _read_one(self, message: Message, client: int, *, is_used: bool) -> list[Reply]:
        """Return a client's reply, none where it had no examples; keep it if it is valid."""
        reply = read_reply(
            message,
            client,
            self._form,
            self._keys.examples,
            keeps_values=self.gathered.keeping != "messages",
            most_bytes=self._most_bytes,
            most_examples=self.gathered.claims.bound(client),
        )
        if reply is None:
            return []
        if reply.fault is None:
            return [self.gathered.take(reply, message, is_used=is_used)]
        if reply.fault == "too many examples":
            self.gathered.claims.refuse(client)
        return [reply]

    def _evaluate(self, arrays: ArrayRecord, nodes: Mapping[int, int], round_number: int) -> None:
        """Let clients evaluate this round's query: no other arrays are ever sent.

        Without a wrapped strategy their metrics are not used.
        """
        config = ConfigRecord({**self._evaluate_config, ROUND: round_number})
        came: dict[int, Message] = {}
        for answer in self._exchange(arrays, config, nodes, MessageType.EVALUATE, round_number):
            if answer.message is not None and not is_too_large(answer.message, self._most_bytes):
                came[answer.node] = answer.message
        if self._inner is not None:
            valid = [came[node] for node in nodes if node in came]
            metrics = self._inner.aggregate_evaluation(round_number, valid)
            if metrics is not None:
                self._result.evaluate_metrics_clientapp[round_number] = metrics


class ClientMetrics:
    """Aggregated metrics by round, in `by_round` and in a file of a run's private folder.

    Clients report on the query that they were sent, in rounds of a decoy on the decoy: the metrics
    are as secret as the actions.  A resumed run has those of all rounds.
    """

    def __init__(self, folder: Path, by_round: dict[int, MetricRecord]) -> None:
        self._path, self.by_round = folder / METRICS_FILE, by_round
        if self._path.exists():
            by_round |= _read_metrics(self._path)
            self._rewrite()

    def keep(self, round_number: int, metrics: MetricRecord | None) -> None:
        """Store the metrics of a round, if it has any."""
        if metrics is None:
            return
        is_repeated = round_number in self.by_round
        self.by_round[round_number] = metrics
        if is_repeated:  # the round was interrupted after its metrics had come
            self._rewrite()
            return
        with report_errors(self._path):
            opened = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(opened, "w", encoding="utf-8") as file:
                file.write(_format_line(round_number, metrics))

    def _rewrite(self) -> None:
        text = "".join(_format_line(*kept) for kept in self.by_round.items())
        write_atomically(self._path, text, mode=0o600)


def _format_line(round_number: int, metrics: MetricRecord) -> str:
    return json.dumps({"round": round_number, "metrics": dict(metrics)}) + "\n"


def _read_metrics(path: Path) -> dict[int, MetricRecord]:
    try:
        # A line without an end was cut off: its round is repeated.
        lines = read_text(path, "the metrics of clients").split("\n")[:-1]
        records = [json.loads(line) for line in lines]
        return {int(record["round"]): MetricRecord(record["metrics"]) for record in records}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} does not hold the metrics of clients: {error}") from error
