"""One run of a `CovertStrategy`, from its arguments to the true arrays.

Nothing that a client receives may depend on the action except for the weights of the query.  The
parts see to it: `array_form` to what is sent, `inner_strategies` to the config, `responder` to the
work of a round, and `carrier` to the order and times of messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from flwr.serverapp.strategy import Result

from covertfl.engines.flower.array_form import ArrayForm
from covertfl.engines.flower.connection import connect_clients
from covertfl.engines.flower.responder import PENDING
from covertfl.engines.flower.run_folder import find_state, open_folder
from covertfl.engines.flower.run_settings import find_run_settings
from covertfl.engines.flower.strategy_settings import (
    EvaluateFunction,
    StartSettings,
    StrategySettings,
)
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.folder import RunFolder
from covertfl.runs.policy import RunPolicy
from covertfl.runs.progress import PreparedRun, watch_run
from covertfl.runs.settings import RunSettings


def run_covertly(given: StrategySettings, start: StartSettings) -> Result:
    """Run all rounds and return the true arrays with the metrics of evaluations."""
    started, result = time.perf_counter(), Result()
    settings = find_run_settings(given, start.num_rounds)
    federation = _build(given, settings)  # an impossible run is refused before a folder is made
    clients = federation.responder
    assert isinstance(clients, ClientResponder)
    folder = RunFolder(given.folder, is_steady=True, keeps_weights=given.round_settings.records)
    try:
        checkpoint = open_folder(given, settings, folder)
        responder, carrier = connect_clients(given, start, clients, checkpoint, result)
        federation, form = replace(federation, responder=responder), responder.form
        state = find_state(given, federation, form, start.initial_arrays, checkpoint)
        for trajectory, weights in enumerate(state.learner.trajectories):
            form.keep(trajectory, weights, form.write(weights))
        evaluate = _make_evaluation(start.evaluate_fn, form, result)
        if evaluate is not None and state.round == 0:
            evaluate(state)
        run = PreparedRun(federation, state, folder)
        rounds = watch_run(run, given.on_round, started, after_round=evaluate)
        final = carrier.drive(rounds, clients.kernel)
        (given.folder / PENDING).unlink(missing_ok=True)
        result.arrays = form.find(final.learner.true)
        return result
    finally:
        folder.close()


def _build(given: StrategySettings, settings: RunSettings) -> Federation:
    # Success probabilities can be measured on simulated clients only.
    is_own = settings.sections.task == "own"
    federation = build_federation(settings, KernelCache(), measures=not is_own)
    if given.policy is None:
        return federation
    return replace(federation, policy=RunPolicy(given.policy))


def _make_evaluation(
    evaluate: EvaluateFunction | None, form: ArrayForm, result: Result
) -> Callable[[RunState], None] | None:
    """Return a callback that evaluates the true arrays on the server, whatever was sent."""
    if evaluate is None:
        return None

    def evaluate_true(state: RunState) -> None:
        metrics = evaluate(state.round, form.find(state.learner.true))
        if metrics is not None:
            result.evaluate_metrics_serverapp[state.round] = metrics

    return evaluate_true
