"""`CovertStrategy`: any strategy of Flower's Message API, made covert.

A server app with

    strategy = FedAvg(...)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=45)

becomes covert with

    strategy = CovertStrategy(lambda: FedAvg(...), run="covert.toml", task=task, out="runs/first")
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=45)

and its client apps stay as they are.  Each round sends the true arrays or a decoy's, as the policy
of the run file decides; the run's folder holds what was sent, what was done and a checkpoint.  The
run file and the folder stay on the server.

Nothing that a client receives may depend on the action except for the weights of the query.  The
parts see to it: `array_form` to what is sent, `inner_strategies` to the config, `responder` to the
work of a round, and `carrier` to the order and times of messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from covertfl.engines.flower.array_form import list_encoded
from covertfl.engines.flower.connection import connect_clients
from covertfl.engines.flower.intake import open_intake
from covertfl.engines.flower.run_folder import (
    find_run_settings,
    find_state,
    open_folder,
    seal_arrays,
)
from covertfl.engines.flower.silence import silenced
from covertfl.engines.flower.steady_folder import SteadyFolder
from covertfl.engines.flower.strategy_settings import (
    EvaluateFunction,
    StartSettings,
    StrategySettings,
    refuse_with_replicas,
)
from covertfl.errors import InvalidInput
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.federation import Federation, RunState
from covertfl.runs.policy import RunPolicy
from covertfl.runs.progress import PreparedRun, watch_run
from covertfl.runs.settings import RunSettings

# Seconds that a round waits for replies, as in Flower's own strategies.
TIMEOUT = 3600.0
SINGLE_ROUND = "CovertStrategy has no single rounds: call start(grid=..., ...)"

logger = logging.getLogger("flwr")


class CovertStrategy(StrategySettings, Strategy):
    """A strategy that sends the true arrays or a decoy's, and reveals the choice in no other way.

    Parameters
    ----------
    make_strategy : makes the strategy that moves a trajectory, a new one each time it is called;
        None to average exactly as the simulator does
    run : a run file, its content, a `covertfl.Run` or its settings; determines policy, decoy,
        participation and acceptance
    out : the run's folder, on the server only.  Relative paths, of `run` as well, start in the
        folder of the Flower app where there is one, otherwise in the current one
    task : model, public set and validation set of a task of your own (`make_server_task`); None
        for the task that the run file names
    policy, decoy : instead of the run file's
    accepts : decides whether a round succeeds, from the total number of examples and the number of
        valid replies; None to decide as the run file does
    seed : secret seed of actions, decoys and first weights; None to draw it from the operating
        system (it is stored in the private part of the folder).  "run" takes the run file's, which
        the clients of a simulation know
    resume, force : resume the run in `out`, or replace it
    decoy_start : "same" to start decoys where the true trajectory starts, "fresh" to start them at
        weights of their own, which is only safe if `initial_arrays` are freshly drawn as well
    evaluate : whether clients evaluate each round's query; they never evaluate anything else
    on_round : called on the server with a `covertfl.RunProgress` after each round; nothing of it is
        sent
    round_settings : settings of rounds that few servers need to change

    Raises
    ------
    InvalidInput
        if an argument is not allowed
    Missing
        if PyTorch is not installed
    """

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float = TIMEOUT,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run all rounds and return the true arrays, which are never sent as the final model.

        Parameters
        ----------
        initial_arrays : where the true trajectory starts; None to draw them from the task's model.
            A resumed run keeps those that it began with
        num_rounds : None for the run file's
        timeout : seconds that a round waits for replies
        train_config, evaluate_config : sent to clients, the same in every round
        evaluate_fn : called on the server with the true arrays before the first and after each
            round, whatever was sent in it; what it prints is discarded, what it returns is kept

        Raises
        ------
        InvalidInput
            if an argument, the run file or the run's folder cannot be used
        """
        start = StartSettings(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )
        return self._run_all(start)

    def _run_all(self, start: StartSettings) -> Result:
        started, result = time.perf_counter(), Result()
        settings = find_run_settings(self, start.num_rounds)
        refuse_with_replicas(self, start, settings)
        federation = self._build(settings)  # an impossible run is refused before a folder is made
        clients = federation.responder
        keep = settings.sections.keep if self.rounds.records else "hashes"
        folder = SteadyFolder(self.folder, keep=keep)
        try:
            checkpoint = open_folder(self, settings, folder)
            self.summary()
            first = seal_arrays(self.folder, start.initial_arrays, checkpoint)
            start = replace(start, initial_arrays=first)
            folder.keep_model(clients.task)
            responder, carrier = connect_clients(self, start, clients, checkpoint, result)
            federation, form = replace(federation, responder=responder), responder.form
            state = find_state(self, federation, form, start.initial_arrays, checkpoint)
            form.prepare(list_encoded(state.learner))

            def evaluate(state: RunState) -> None:
                """Evaluate the true arrays on the server, whatever was sent."""
                if start.evaluate_fn is not None:
                    with silenced():
                        metrics = start.evaluate_fn(state.round, form.find(state.learner.true))
                    if metrics is not None:
                        result.evaluate_metrics_serverapp[state.round] = metrics

            if state.round == 0:
                evaluate(state)
            run = PreparedRun(federation, state, folder)
            with open_intake(self, run, form, evaluate) as (intake, after_round):
                rounds = watch_run(run, self.on_round, started, after_round, intake)
                final = carrier.run(rounds, clients.kernel)
            result.arrays = form.find(final.learner.true)
            return result
        finally:
            folder.close()

    def _build(self, settings: RunSettings) -> Federation:
        # Success probabilities can be measured on simulated clients only.
        is_own = settings.sections.task == "own"
        federation = build_federation(settings, KernelCache(), measures=not is_own)
        if self.policy is None:
            return federation
        return replace(federation, policy=RunPolicy(self.policy))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise InvalidInput: a single round would be sent without the policy."""
        raise InvalidInput(SINGLE_ROUND)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise InvalidInput, see `configure_train`."""
        raise InvalidInput(SINGLE_ROUND)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no messages: the arrays that Flower passes here are the true ones."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None, see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """Log where the run is, and nothing about the policy."""
        logger.info("\t└──> covert run in %s", self.folder.absolute())
