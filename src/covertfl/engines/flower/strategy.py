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
parts see to it: `array_form` to what is sent, `inner_strategies` to the config, `engine` to the
work of a round, and `carrier` to the order and times of messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.superlink.grid import InMemoryGrid

from covertfl.engines.flower.array_form import (
    ArrayForm,
    make_float_form,
    make_form,
    make_model_form,
)
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.engine import GridEngine, WrappedAggregator, choose_keeping
from covertfl.engines.flower.gathering import TIMES, Claims, Gathered
from covertfl.engines.flower.grid import InProcessGrid
from covertfl.engines.flower.inner_strategies import InnerStrategies
from covertfl.engines.flower.privacy_wrappers import check_privacy
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
)
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Vector
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.clock import CLOCK, Clock
from covertfl.runs.records import prepare_queries
from covertfl.runs.round import Begun, Intake, OnState, RequestDesk
from covertfl.runs.settings import RunSettings
from covertfl.runs.simulated import SimulatedEngine
from covertfl.runs.state import Federation, RunState
from covertfl.runs.train import KernelCache, PreparedRun, build_federation, watch_run
from covertfl.schemes.replies import ExactAverage
from covertfl.schemes.scheme import Packed

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
    policy : instead of the run file's
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
        # An impossible run is refused before a folder is made.
        federation = self._build(settings, start)
        folder = SteadyFolder(self.folder, keep=settings.sections.keep)
        try:
            checkpoint = open_folder(self, settings, folder)
            self.summary()
            first = seal_arrays(self.folder, start.initial_arrays, checkpoint)
            start = replace(start, initial_arrays=first)
            folder.keep_model(federation.task)
            engine = _connect(self, start, federation, checkpoint, result)
            federation, form = replace(federation, engine=engine), engine.form
            state = find_state(self, federation, form, start.initial_arrays, checkpoint)
            prepare_queries(federation, state)

            def find_model(state: RunState) -> Vector:
                return federation.scheme.models(state.scheme)[0]

            def evaluate(state: RunState) -> None:
                """Evaluate the true arrays on the server, whatever was sent."""
                if start.evaluate_fn is not None:
                    with silenced():
                        metrics = start.evaluate_fn(state.round, form.find(find_model(state)))
                    if metrics is not None:
                        result.evaluate_metrics_serverapp[state.round] = metrics

            if state.round == 0:
                evaluate(state)
            run = PreparedRun(federation, state, folder)
            with _open_intake(self, run, evaluate) as (intake, after_round):
                rounds = watch_run(run, self.on_round, started, after_round, intake)
                final = engine.carrier.run(rounds, federation)
            result.arrays = form.find(find_model(final))
            return result
        finally:
            folder.close()

    def _build(self, settings: RunSettings, start: StartSettings) -> Federation:
        # Success probabilities can be measured on simulated clients only.
        is_own = settings.sections.task == "own"
        federation = build_federation(settings, KernelCache(), measures=not is_own)
        scheme = federation.scheme.accept_arguments(
            has_first=start.initial_arrays is not None,
            policy=self.policy,
            has_own_start=self.decoy_start == "fresh",
        )
        return replace(federation, scheme=scheme)

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


def _connect(
    given: StrategySettings,
    start: StartSettings,
    federation: Federation,
    checkpoint: Checkpoint | None,
    result: Result,
) -> GridEngine:
    """Return the clients that a run file describes behind a grid.

    `result` receives the metrics of clients.
    """
    form = _find_form(start.initial_arrays, federation)
    # Of a task of the user's own the server knows only about how many examples a client has.
    is_estimate = len(federation.task.train) == 0
    times = TIMES if is_estimate else 1
    most = given.rounds.most_examples or times * int(federation.clients.sizes.max())
    claims = Claims(most, follows=is_estimate)
    if checkpoint is not None:
        claims.recall(checkpoint.facts.get("kept", {}))
    inner = _wrap(given, federation, form, most, checkpoint)
    keeping = choose_keeping(inner, federation.scheme)
    gathered = Gathered(keeping, form.layout.size, claims, has_strategy=inner is not None)
    clock = _make_clock(federation.settings, start.grid, given.folder)
    section, simulated = federation.settings.sections.federation, federation.engine
    assert isinstance(simulated, SimulatedEngine)
    plain = ExactAverage(section.algorithm, section.optimizer.make(), is_steady=True)
    return GridEngine(
        federation.settings,
        simulated.acceptance,
        plain if inner is None else WrappedAggregator(inner, gathered),
        form,
        Carrier(given, start, form, inner, gathered, clock=clock, result=result),
        most,
        inner,
        given.accepts,
    )


def _make_clock(settings: RunSettings, grid: Grid, folder: Path) -> Clock:
    """Return the clock of a run; rounds whose nodes are simulated have one only if it is set."""
    seconds = settings.sections.engine.round_seconds
    is_simulated = isinstance(grid, InProcessGrid | InMemoryGrid)
    return Clock(0.0 if seconds is None and is_simulated else seconds, folder / CLOCK)


def _find_form(arrays: ArrayRecord | None, federation: Federation) -> ArrayForm:
    """Return the form in which the model travels: that of the first arrays, or of the model."""
    from covertfl.kernels.autograd.module import isolate_generator

    layout = federation.layout
    with isolate_generator():
        module = federation.task.make_model()
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
    federation: Federation,
    form: ArrayForm,
    most_examples: int,
    checkpoint: Checkpoint | None,
) -> InnerStrategies | None:
    """Return the wrapped strategies in the state of the checkpoint; None where none is wrapped."""
    if given.make_strategy is None:
        return None
    settings, scheme = federation.settings, federation.scheme
    if settings.sections.federation.algorithm != "fedavg":
        raise InvalidInput(
            f"{settings.name}: [federation] algorithm must be fedavg where a strategy is wrapped: "
            "the strategy itself decides how replies are aggregated"
        )
    inner = InnerStrategies(
        given.make_strategy, scheme.slots, form, most_examples, holds=scheme.holds_attempts
    )
    check_privacy(inner.sample, scheme.reading, federation.layout)
    if checkpoint is not None:
        inner.recall(Packed(checkpoint.arrays, checkpoint.facts.get("kept", {})))
    return inner


@contextmanager
def _open_intake(
    given: StrategySettings, run: PreparedRun, after_round: OnState
) -> Iterator[tuple[Intake | None, OnState]]:
    """Open the desk of a run that is a service; return its intake and what follows each round.

    Raises
    ------
    InvalidInput
        if the run file describes a service and no desk is given, or the other way round
    """
    settings = run.federation.settings
    if (settings.sections.service is None) != (given.rounds.requests is None):
        raise InvalidInput(
            f"{settings.name}: a run file with a section [service] and RoundSettings(requests="
            "open_requests) go together, got one of them"
        )
    if given.rounds.requests is None:
        yield None, after_round
        return
    with given.rounds.requests(given.folder, run.federation, run.state) as desk:

        def end(state: RunState) -> None:
            after_round(state)
            desk.end(state)

        yield _PreparedIntake(desk, run.federation), end


class _PreparedIntake:
    """The intake of a run whose arrays are encoded before they are sent, all alike."""

    def __init__(self, desk: RequestDesk, federation: Federation) -> None:
        self._desk, self._federation = desk, federation

    def begin(self, state: RunState, *, is_repeated: bool) -> Begun | None:
        """Begin a round at the desk."""
        begun, shown = (
            self._desk.begin(state, is_repeated=is_repeated),
            self._federation.scheme.shown,
        )
        if begun is not None:
            pairs = zip(shown(state.scheme), shown(begun.state.scheme), strict=True)
            if any(before is not after for before, after in pairs):
                prepare_queries(self._federation, begun.state)
        return begun
