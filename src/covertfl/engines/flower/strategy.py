"""`CovertStrategy`: any strategy of Flower's Message API, made covert.

Where a server app says

    strategy = FedAvg(...)
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=45)

a covert one says

    strategy = CovertStrategy(lambda: FedAvg(...), run="covert.toml", task=task, out="runs/first")
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=45)

and its client apps stay as they are.  Each round sends the true arrays or a decoy's, as the policy
of the run file says; the run's folder holds what was sent, what was done and a checkpoint.  The run
file and the folder stay on the server.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from covertfl.decision.policy import Policy
from covertfl.decoys.decoy import Decoy
from covertfl.engines.flower.answers import PENDING, Accepts, GridAnswers
from covertfl.engines.flower.carrier import Carrier
from covertfl.engines.flower.inner_strategies import InnerStrategies, MakeStrategy
from covertfl.engines.flower.messages import (
    ArrayForm,
    copy_config,
    describe_arrays,
    describe_layout_form,
    join_first,
)
from covertfl.engines.flower.roll import GrowingRoll, Roll
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.files.toml import parse_toml, read_text
from covertfl.kernels.weights import Vector
from covertfl.runs.build import KernelCache, build_federation, require_torch
from covertfl.runs.checkpoint import Checkpoint
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import Federation, start_run
from covertfl.runs.folder import RunFolder
from covertfl.runs.lines import read_lines
from covertfl.runs.opening import PreparedRun, check_folder
from covertfl.runs.policy import RunPolicy
from covertfl.runs.progress import OnRound, watch_run
from covertfl.runs.responder import Remembered
from covertfl.runs.run_file import build_run, format_run, list_versions
from covertfl.runs.settings import LARGEST_SEED, RunSettings
from covertfl.runs.state import RunState, unpack_state
from covertfl.seeding import Stream, draw_seed
from covertfl.tasks.task import TrainingTask

SEED = "private/seed.json"
NODES = "private/nodes.jsonl"
# Seconds that replies are waited for, as Flower's own strategies do.
TIMEOUT = 3600.0
# How many times the estimated number of examples a client's reply is believed.
MOST_TIMES = 10

logger = logging.getLogger("flwr")

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
RunSource = str | os.PathLike[str] | Mapping[str, Any] | RunSettings


class CovertStrategy(Strategy):
    """A strategy that sends the true arrays or a decoy's, and lets nothing but them tell which.

    Parameters
    ----------
    make_strategy : makes the strategy that moves a trajectory, a new one each time it is called;
        None to average exactly as the simulator does
    run : a run file, its content, or settings; says policy, decoy, participation and acceptance
    out : the run's folder, on the server only
    task : model, public set and validation set of an own task (`make_server_task`); None for a task
        that the run file names
    policy, decoy, accepts : in place of the run file's; `accepts` is given the examples and the
        number of valid replies of a round
    seed : secret seed of actions, decoys and first weights; None to draw it from the operating
        system (it is kept in the private part of the folder).  "run" takes the run file's, which
        clients of a simulation know
    resume, force : go on with a run that is in `out`, or replace it
    decoy_start : same lets decoys begin where the true trajectory does, fresh at weights of their
        own, which is only safe where `initial_arrays` are freshly drawn as well
    evaluate : whether clients evaluate each round's query; nothing else is ever evaluated there
    most_examples : largest number of examples that a client's reply is believed; None for the most
        that a client of the task has, or ten times as many where that is only an estimate
    patience : seconds that enough nodes are waited for before a round, None for ever
    roll : numbers of nodes, None to number them as they are seen
    records : whether what is sent is recorded; without, the run cannot be audited
    tell : called after each round
    """

    def __init__(
        self,
        make_strategy: MakeStrategy | None = None,
        *,
        run: RunSource,
        out: str | os.PathLike[str],
        task: TrainingTask | None = None,
        policy: Policy | None = None,
        decoy: Decoy | None = None,
        accepts: Accepts | None = None,
        seed: int | Literal["run"] | None = None,
        resume: bool = False,
        force: bool = False,
        decoy_start: Literal["same", "fresh"] = "same",
        evaluate: bool = False,
        most_examples: int | None = None,
        patience: float | None = None,
        roll: Roll | None = None,
        records: bool = True,
        on_round: OnRound | None = None,
    ) -> None:
        require_torch()
        self._make_strategy, self._run, self._out = make_strategy, run, Path(out)
        self._task, self._policy, self._decoy, self._accepts = task, policy, decoy, accepts
        self._seed, self._resume, self._force = seed, resume, force
        self._decoy_start, self._evaluates = decoy_start, evaluate
        self._most_examples, self._patience = most_examples, patience
        self._roll, self._records, self._on_round = roll, records, on_round
        if isinstance(seed, int) and not 0 <= seed <= LARGEST_SEED:
            raise InvalidInput(f"seed must be in 0..{LARGEST_SEED}, got {seed}")

    # --- the run ---

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
        """Run all rounds; gives the true arrays, which never go through the grid as such.

        Parameters
        ----------
        grid : Flower's
        initial_arrays : where the true trajectory begins; None to draw them from the task's model
        num_rounds : None for the run file's
        timeout : seconds that replies are waited for in a round
        train_config, evaluate_config : sent to clients, the same in every round
        evaluate_fn : called on the server with the true arrays before the first and after each
            round, whatever was sent in it
        """
        started, result = time.perf_counter(), Result()
        settings = self._find_secret(self._read_settings(num_rounds))
        federation = self._build(settings)  # what cannot be is refused before a folder is made
        answers = federation.responder
        assert isinstance(answers, ClientResponder)
        folder = RunFolder(self._out, is_steady=True, keeps_weights=self._records)
        try:
            checkpoint = self._open(settings, folder)
            form = _find_form(answers, initial_arrays)
            inner = self._wrap(answers, form, checkpoint)
            carrier = self._make_carrier(
                grid, settings, form, inner, timeout, train_config, evaluate_config, result
            )
            federation = replace(
                federation, responder=self._answer(answers, form, carrier, inner, folder)
            )
            carrier.joins = _grid_answers(federation).joins_replies
            state = self._find_state(federation, form, initial_arrays, checkpoint, folder)
            for trajectory, weights in enumerate((state.learner.true, *state.learner.decoys)):
                form.keep(trajectory, weights, form.write(weights))
            run = PreparedRun(federation, state, folder)
            self._watch(evaluate_fn, form, state, result)
            rounds = watch_run(
                run,
                self._on_round,
                started,
                after_round=self._after_round(evaluate_fn, form, result),
            )
            final = carrier.drive(rounds, answers.kernel)
            (self._out / PENDING).unlink(missing_ok=True)
            result.arrays = form.find(final.learner.true)
            return result
        finally:
            folder.close()

    def _read_settings(self, num_rounds: int | None) -> RunSettings:
        """The settings of the run, with the rounds that were asked for."""
        if isinstance(self._run, RunSettings):
            if num_rounds is not None and num_rounds != self._run.rounds:
                raise InvalidInput(
                    f"num_rounds must be {self._run.rounds}, as the run's settings say, "
                    f"got {num_rounds}"
                )
            settings = self._run
        else:
            settings = _build_settings(self._run, self._task, num_rounds)
        return settings if self._task is None else settings.with_task(self._task)

    def _find_secret(self, settings: RunSettings) -> RunSettings:
        """The settings with the secret seed: the one that the run began with, given or drawn."""
        check_folder(settings, self._out, resume=self._resume, force=self._force)
        if self._seed == "run":
            return settings
        path = self._out / SEED
        if self._resume and path.exists():
            return replace(settings, secret=_read_seed(path))
        drawn = secrets.randbelow(LARGEST_SEED + 1)
        return replace(settings, secret=self._seed if isinstance(self._seed, int) else drawn)

    def _open(self, settings: RunSettings, folder: RunFolder) -> Checkpoint | None:
        """Make the folder or go on in it, and keep the secret seed."""
        path, text = self._out, format_run(settings, list_versions())
        checkpoint = None
        if self._resume and (path / "checkpoint").exists():
            checkpoint = folder.resume(text)
        else:
            folder.create(text, force=self._force)
            (path / PENDING).unlink(missing_ok=True)
        if settings.secret is not None and not (path / SEED).exists():
            if checkpoint is not None:
                raise InvalidInput(
                    f"{path / SEED} is missing: the run cannot go on with the same draws"
                )
            content = json.dumps({"seed": settings.secret}) + "\n"
            write_atomically(path / SEED, content, mode=0o600)
        return checkpoint

    def _build(self, settings: RunSettings) -> Federation:
        # Success chances are measured on simulated clients only; own ones are what they are.
        is_own = settings.sections.task == "own"
        federation = build_federation(settings, KernelCache(), measures=not is_own)
        if self._policy is not None:
            federation = replace(federation, policy=RunPolicy(self._policy))
        return federation

    def _wrap(
        self, answers: ClientResponder, form: ArrayForm, checkpoint: Checkpoint | None
    ) -> InnerStrategies | None:
        """The wrapped strategies, as they were at the checkpoint."""
        if self._make_strategy is None:
            return None
        if answers.settings.sections.federation.algorithm != "fedavg":
            raise InvalidInput(
                f"{answers.settings.name}: [federation] algorithm must be fedavg where a strategy "
                "is wrapped, which says by itself what becomes of replies"
            )
        most = self._most_examples or _count_most(answers)
        inner = InnerStrategies(self._make_strategy, answers.num_decoys, form, most)
        if checkpoint is not None:
            inner.recall(Remembered(checkpoint.arrays, checkpoint.facts.get("kept", {})))
        return inner

    def _make_carrier(
        self,
        grid: Grid,
        settings: RunSettings,
        form: ArrayForm,
        inner: InnerStrategies | None,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        result: Result,
    ) -> Carrier:
        roll = self._roll or GrowingRoll(self._out / NODES)
        carrier = Carrier(
            grid,
            roll,
            form,
            timeout=timeout,
            patience=self._patience,
            round_seconds=settings.sections.engine.round_seconds,
        )
        if inner is not None:
            first = ArrayRecord()
            carrier.least_nodes = inner.least_nodes
            carrier.arrays_key, carrier.config_key = inner.arrays_key, inner.config_key
            carrier.weighted_by, carrier.checks_metrics = inner.weighted_by, True
            carrier.make_config = lambda number: inner.speak(number, first, train_config)
        else:
            carrier.make_config = lambda _: copy_config(train_config)
        if self._evaluates:
            speaker = inner

            def take(number: int, replies: Sequence[Message]) -> None:
                if speaker is not None:
                    metrics = speaker.aggregate_evaluation(number, replies)
                    if metrics is not None:
                        result.evaluate_metrics_clientapp[number] = metrics

            carrier.evaluation = (copy_config(evaluate_config), take)
        return carrier

    def _answer(
        self,
        answers: ClientResponder,
        form: ArrayForm,
        carrier: Carrier,
        inner: InnerStrategies | None,
        folder: RunFolder,
    ) -> GridAnswers:
        decoys = answers.decoys
        if self._decoy is not None:
            decoys = (self._decoy,) * len(decoys)
        return GridAnswers(
            answers.settings,
            answers.task,
            answers.kernel,
            decoys,
            answers.success,
            answers.recorded,
            form=form,
            post=carrier,
            pending=folder.path / PENDING,
            inner=inner,
            accepts=self._accepts,
            most_examples=self._most_examples or _count_most(answers),
        )

    def _find_state(
        self,
        federation: Federation,
        form: ArrayForm,
        initial_arrays: ArrayRecord | None,
        checkpoint: Checkpoint | None,
        folder: RunFolder,
    ) -> RunState:
        """Where the run begins or goes on."""
        if checkpoint is not None:
            return unpack_state(checkpoint, read_lines(folder.path / "private" / "rounds.jsonl"))
        if initial_arrays is None:
            return start_run(federation)
        true, answers = join_first(form, initial_arrays), federation.responder
        decoys: list[Vector] = [true] * answers.num_decoys
        if self._decoy_start == "fresh":
            seed = federation.settings.hidden_seed
            decoys = [
                answers.first_weights(draw_seed(seed, Stream.INITIAL, number))
                for number in range(1, 1 + answers.num_decoys)
            ]
        return start_run(federation, [true, *decoys])

    def _watch(
        self,
        evaluate_fn: EvaluateFunction | None,
        form: ArrayForm,
        state: RunState,
        result: Result,
    ) -> None:
        if evaluate_fn is not None and state.round == 0:
            _evaluate(evaluate_fn, form, state, result)

    def _after_round(
        self, evaluate_fn: EvaluateFunction | None, form: ArrayForm, result: Result
    ) -> Callable[[RunState], None] | None:
        if evaluate_fn is None:
            return None
        return lambda state: _evaluate(evaluate_fn, form, state, result)

    # --- what Flower asks of a strategy ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refused: a round on its own would be sent without the policy."""
        raise _only_whole()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refused, see `configure_train`."""
        raise _only_whole()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: the arrays that Flower hands over here are the true ones."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing, see `configure_evaluate`."""
        return None

    def summary(self) -> None:
        """What can be said without saying anything about the policy."""
        logger.info("\t└──> covert run in %s", self._out)


def _only_whole() -> InvalidInput:
    return InvalidInput("CovertStrategy runs whole runs: call start(grid=..., ...)")


def _build_settings(
    source: str | os.PathLike[str] | Mapping[str, Any],
    task: TrainingTask | None,
    num_rounds: int | None,
) -> RunSettings:
    if isinstance(source, Mapping):
        content, name, folder = dict(source), "run", Path()
    else:
        name, folder = os.fspath(source), Path(source).parent
        content = dict(parse_toml(read_text(source, "a run file"), name))
    if task is not None:
        content["task"] = "own"
        federation = {"clients": len(task.clients), **content.get("federation", {})}
        content["federation"] = federation
    if num_rounds is not None:
        content["rounds"] = num_rounds
    content["engine"] = {"mode": "deployment", **content.get("engine", {}), "kind": "flower"}
    return build_run(content, name, folder=folder)


def _find_form(answers: ClientResponder, arrays: ArrayRecord | None) -> ArrayForm:
    if arrays is None:
        return describe_layout_form(answers.layout)
    return describe_arrays(arrays, answers.layout)


def _read_seed(path: Path) -> int:
    try:
        return int(json.loads(read_text(path, "the seed of a run"))["seed"])
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidInput(f"{path} does not hold the seed of a run: {error}") from error


def _count_most(answers: ClientResponder) -> int:
    is_estimate = len(answers.task.train) == 0
    return int(answers.sizes.max()) * (MOST_TIMES if is_estimate else 1)


def _grid_answers(federation: Federation) -> GridAnswers:
    answers = federation.responder
    assert isinstance(answers, GridAnswers)
    return answers


def _evaluate(evaluate: EvaluateFunction, form: ArrayForm, state: RunState, result: Result) -> None:
    """Let the server's own evaluation see the true arrays, in every round alike."""
    metrics = evaluate(state.round, form.find(state.learner.true))
    if metrics is not None:
        result.evaluate_metrics_serverapp[state.round] = metrics
