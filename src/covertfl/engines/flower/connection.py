"""The clients of a run behind a grid, connected as the arguments of a `CovertStrategy` ask."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import Result

from covertfl.engines.flower.array_form import ArrayForm, make_float_form, make_form
from covertfl.engines.flower.carrier import Carrier, Evaluation, ExchangeSettings
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.messages import copy_config
from covertfl.engines.flower.node_numbers import StoredNodeNumbers
from covertfl.engines.flower.responder import PENDING, GridResponder, needs_vectors
from covertfl.engines.flower.strategy_settings import StartSettings, StrategySettings
from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.clients import ClientResponder
from covertfl.runs.responder import Remembered

NODES = "private/nodes.jsonl"
# How many times the estimated number of examples is accepted in a client's reply.
MOST_TIMES = 10


def connect_clients(
    given: StrategySettings,
    start: StartSettings,
    clients: ClientResponder,
    checkpoint: Checkpoint | None,
    result: Result,
) -> tuple[GridResponder, Carrier]:
    """Return the clients of a run behind a grid, and the carrier of its messages.

    Parameters
    ----------
    clients : as the run file describes them
    checkpoint : of a run that is resumed, None for a new one
    result : receives the metrics of clients' evaluations
    """
    form = _find_form(start, clients)
    most = given.round_settings.most_examples or _count_most_examples(clients)
    decoys = clients.decoys if given.decoy is None else (given.decoy,) * clients.num_decoys
    inner = _wrap(given, clients, form, most, checkpoint)
    settings = ExchangeSettings(
        timeout=start.timeout,
        patience=given.round_settings.patience,
        round_seconds=clients.settings.sections.engine.round_seconds,
        joins=needs_vectors(inner, decoys),
    )
    if inner is not None:
        settings = replace(
            settings, least_nodes=inner.least_nodes, keys=inner.keys, checks_metrics=True
        )
    carrier = Carrier(
        start.grid,
        given.round_settings.numbers or StoredNodeNumbers(given.folder / NODES),
        form,
        settings,
        functools.partial(_make_config, start, inner),
        _make_evaluation(start, inner, result) if given.evaluate else None,
    )
    responder = GridResponder(
        clients.settings,
        clients.task,
        clients.kernel,
        decoys,
        clients.success,
        clients.recorded,
        form=form,
        exchange=carrier,
        pending=given.folder / PENDING,
        inner=inner,
        accepts=given.accepts,
        most_examples=most,
    )
    return responder, carrier


def _find_form(start: StartSettings, clients: ClientResponder) -> ArrayForm:
    if start.initial_arrays is None:
        return make_float_form(clients.layout)
    return make_form(start.initial_arrays, clients.layout)


def _count_most_examples(clients: ClientResponder) -> int:
    is_estimate = len(clients.task.train) == 0
    return int(clients.sizes.max()) * (MOST_TIMES if is_estimate else 1)


def _wrap(
    given: StrategySettings,
    clients: ClientResponder,
    form: ArrayForm,
    most_examples: int,
    checkpoint: Checkpoint | None,
) -> InnerStrategies | None:
    """Return the wrapped strategies in the state of the checkpoint; None where none is wrapped."""
    if given.make_strategy is None:
        return None
    if clients.settings.sections.federation.algorithm != "fedavg":
        raise InvalidInput(
            f"{clients.settings.name}: [federation] algorithm must be fedavg where a strategy is "
            "wrapped: the strategy itself decides how replies are aggregated"
        )
    inner = InnerStrategies(given.make_strategy, clients.num_decoys, form, most_examples)
    if checkpoint is not None:
        inner.recall(Remembered(checkpoint.arrays, checkpoint.facts.get("kept", {})))
    return inner


def _make_config(
    start: StartSettings, inner: InnerStrategies | None, round_number: int
) -> ConfigRecord:
    if inner is None:
        return copy_config(start.train_config)
    return inner.make_config(round_number, start.train_config)


def _make_evaluation(
    start: StartSettings, inner: InnerStrategies | None, result: Result
) -> Evaluation:
    """Return how clients evaluate; without a wrapped strategy their metrics are not used."""

    def take(round_number: int, replies: Sequence[Message]) -> None:
        if inner is not None:
            metrics = inner.aggregate_evaluation(round_number, replies)
            if metrics is not None:
                result.evaluate_metrics_clientapp[round_number] = metrics

    return Evaluation(copy_config(start.evaluate_config), take)
