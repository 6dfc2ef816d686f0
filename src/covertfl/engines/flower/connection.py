"""The clients of a run behind a grid, connected as the arguments of a `CovertStrategy` ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.superlink.grid import InMemoryGrid

from covertfl.engines.flower.array_form import (
    ArrayForm,
    make_float_form,
    make_form,
    make_model_form,
)
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.claims import TIMES, Claims
from covertfl.engines.flower.gathering import Gathered
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.privacy_wrappers import check_privacy
from covertfl.engines.flower.responder import GridResponder, choose_keeping
from covertfl.engines.flower.strategy_settings import StartSettings, StrategySettings
from covertfl.errors import InvalidInput
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.clients import ClientResponder
from covertfl.runs.clock import CLOCK, Clock
from covertfl.runs.responder import Remembered


def connect_clients(
    given: StrategySettings,
    start: StartSettings,
    clients: ClientResponder,
    checkpoint: Checkpoint | None,
    result: Result,
) -> tuple[GridResponder, Carrier]:
    """Return the clients that a run file describes behind a grid, and the carrier of messages.

    `result` receives the metrics of clients.
    """
    form = _find_form(start.initial_arrays, clients)
    # Of a task of the user's own the server knows only about how many examples a client has.
    is_estimate = len(clients.task.train) == 0
    times = TIMES if is_estimate else 1
    most = given.rounds.most_examples or times * int(clients.sizes.max())
    claims = Claims(most, follows=is_estimate)
    if checkpoint is not None:
        claims.recall(checkpoint.facts.get("kept", {}))
    decoys = clients.decoys if given.decoy is None else (given.decoy,) * clients.num_decoys
    inner = _wrap(given, replace(clients, decoys=decoys), form, most, checkpoint)
    keeping = choose_keeping(inner, decoys, clients)
    carrier = Carrier(
        given,
        start,
        form,
        inner,
        Gathered(keeping, form.layout.size, claims, has_strategy=inner is not None),
        clock=_make_clock(clients, start.grid, given.folder),
        result=result,
    )
    responder = GridResponder(
        clients.settings,
        clients.task,
        clients.kernel,
        decoys,
        clients.success,
        clients.recorded,
        clients.images,
        form=form,
        exchange=carrier,
        inner=inner,
        accepts=given.accepts,
        most_examples=most,
    )
    return responder, carrier


def _make_clock(clients: ClientResponder, grid: Grid, folder: Path) -> Clock:
    """Return the clock of a run; rounds whose nodes are simulated have one only if it is set."""
    seconds = clients.settings.sections.engine.round_seconds
    is_simulated = isinstance(grid, InProcessGrid | InMemoryGrid)
    return Clock(0.0 if seconds is None and is_simulated else seconds, folder / CLOCK)


def _find_form(arrays: ArrayRecord | None, clients: ClientResponder) -> ArrayForm:
    """Return the form in which the model travels: that of the first arrays, or of the model."""
    from covertfl.kernels.generator import isolate_generator

    layout = clients.layout
    with isolate_generator():
        module = clients.task.make_model()
    shared = set(dict(module.named_parameters(remove_duplicate=False))) - set(layout.names)
    if shared and (arrays is None or shared & set(arrays)):
        raise InvalidInput(
            f"the parameter {min(shared)} is another one's second name: clients could reply with "
            "two values for it, so give each layer its own parameters"
        )
    if arrays is not None:
        return make_form(arrays, layout)
    has_others = set(module.state_dict()) != set(layout.names)
    return make_model_form(module, layout) if has_others else make_float_form(layout)


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
    # Replicas are images of the true trajectory and have no strategies of their own.
    inner = InnerStrategies(given.make_strategy, len(clients.decoys), form, most_examples)
    check_privacy(inner.sample, clients.decoys, clients.layout)
    if checkpoint is not None:
        inner.recall(Remembered(checkpoint.arrays, checkpoint.facts.get("kept", {})))
    return inner
