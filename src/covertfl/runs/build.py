"""From the settings of a run to everything that it needs: federation, folder and first state."""

from __future__ import annotations

import contextlib
import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import covertfl
from covertfl.arrays import FloatArray
from covertfl.decision.problem import Problem
from covertfl.decoys.decoy import Decoy
from covertfl.decoys.registry import make_decoy
from covertfl.errors import InvalidInput, Missing
from covertfl.files.toml import read_text, shorten
from covertfl.fitting.log import read_log
from covertfl.kernels.job import LocalKernel, LocalOptimizer
from covertfl.runs.clients import ClientResponder, count_sizes
from covertfl.runs.federation import Federation, start_run
from covertfl.runs.function import FunctionResponder
from covertfl.runs.participation import (
    MEASURED_ROUNDS,
    RecordedRounds,
    measure_success,
    replay_log,
)
from covertfl.runs.policy import make_run_policy, with_success
from covertfl.runs.records import summarise
from covertfl.runs.responder import Responder
from covertfl.runs.rounds import run_rounds
from covertfl.runs.run_file import (
    DirichletSplit,
    RunSections,
    RunSettings,
    find_change,
    format_run,
)
from covertfl.runs.state import RunState, unpack_state
from covertfl.runs.transcript import SETTINGS, RunFolder, read_lines
from covertfl.runs.world import World
from covertfl.tasks.function import FunctionTask
from covertfl.tasks.registry import DataSettings, make_task
from covertfl.tasks.task import TrainingTask

# The seed of measured success chances: they belong to the federation, not to a run.
MEASURING_SEED = 20
# Draws behind chances that no policy is solved for: their standard error is at most 0.0036.
REPORTED_ROUNDS = 20_000
# Largest number in a file of arrivals.
MOST_UPDATES = 1_000_000_000


@dataclass(frozen=True)
class RunProgress:
    """Where a run stands, for people to look at.

    Parameters
    ----------
    run, seed : which run
    round, rounds : done, in all
    oracle_state, backlog : latest
    exposure : learning queries over rounds so far
    score : of the true weights
    """

    run: Path
    seed: int
    round: int
    rounds: int
    oracle_state: int
    backlog: int
    exposure: float
    score: float


OnRound = Callable[[RunProgress], None]


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run that can be driven.

    Parameters
    ----------
    federation : what does not change
    state : where it begins
    folder : where it is recorded
    """

    federation: Federation
    state: RunState
    folder: RunFolder


def require_torch() -> None:
    """Say how to get torch where it is missing."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Missing("training needs PyTorch: pip install 'covertfl[train]'") from error


def watch_run(
    run: PreparedRun,
    on_round: OnRound | None,
    started: float,
    *,
    after_round: Callable[[RunState], None] | None = None,
) -> Any:
    """The rounds of a run, told of as they end and summed up at the end.

    Parameters
    ----------
    told : also called with the state after every round
    """
    reporter = make_reporter(run, on_round)

    def report_round(state: RunState) -> None:
        for listener in (reporter, after_round):
            if listener is not None:
                listener(state)

    state = yield from run_rounds(run.federation, run.folder, run.state, after_round=report_round)
    summary = summarise(run.federation, state)
    run.folder.finish({**summary, "seconds": time.perf_counter() - started})
    return state


def make_reporter(run: PreparedRun, on_round: OnRound | None) -> Callable[[RunState], None] | None:
    """What tells of a run after each round."""
    if on_round is None:
        return None

    def after_round(state: RunState) -> None:
        on_round(
            RunProgress(
                run.folder.path,
                run.federation.settings.seed,
                state.round,
                run.federation.settings.rounds,
                state.oracle_state,
                state.queue.backlog,
                state.exposure,
                state.scores[0],
            )
        )

    return after_round


# --- preparing --------------------------------------------------------------------------------


def check_place(settings: RunSettings, path: Path, *, resume: bool, force: bool) -> None:
    """Refuse a folder that is in the way, or holds another run than the one to go on with."""
    if not (resume or force):
        RunFolder(path).require_absent()
    written = path / SETTINGS
    if resume and written.exists():
        before = read_text(written, "the folder of a run")
        change = find_change(before, format_run(settings, list_versions()), str(written))
        if change is not None:
            raise InvalidInput(f"{path} holds another run and cannot be resumed: {change}")


def prepare_run(
    settings: RunSettings,
    path: Path,
    kernels: KernelCache,
    *,
    resume: bool = False,
    force: bool = False,
) -> PreparedRun:
    """Build a run and open its folder."""
    federation, folder = build_federation(settings, kernels), RunFolder(path)
    try:
        return PreparedRun(federation, open_run(federation, folder, resume, force), folder)
    except BaseException:
        folder.close()
        raise


def open_run(federation: Federation, folder: RunFolder, resume: bool, force: bool) -> RunState:
    """Make the folder, or go on in it; gives the state to begin from."""
    text = format_run(federation.settings, list_versions())
    if not (resume and (folder.path / "checkpoint").exists()):
        folder.create(text, force=force)
        return start_run(federation)
    checkpoint = folder.resume(text)
    if checkpoint is None:
        return start_run(federation)
    state = unpack_state(checkpoint, read_lines(folder.path / "private" / "rounds.jsonl"))
    if state.learner.true.shape != (federation.responder.layout.size,):
        raise InvalidInput(
            f"{folder.path} holds a model of {state.learner.true.size} numbers, but the run file "
            f"describes one of {federation.responder.layout.size}"
        )
    return state


@contextlib.contextmanager
def _naming(settings: RunSettings) -> Iterator[None]:
    """Name the run file in what is wrong with its values."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name}: {error}") from error


def build_federation(
    settings: RunSettings, kernels: KernelCache, *, measures: bool = True
) -> Federation:
    """Everything a run needs.

    Parameters
    ----------
    measures : whether success chances are measured on simulated clients; without, the problem's
        own hold
    """
    sections = settings.sections
    _check_states(settings)
    task, recorded = _find_task(settings), _read_recorded(settings)
    if isinstance(task, FunctionTask):
        _check_function(settings, task)
        probs = np.array(task.success)
        problem = with_success(settings.problem, probs)
        return _assemble(settings, FunctionResponder(settings, task), problem, probs, recorded)
    measured = measure_federation(task, sections) if measures else None
    problem = settings.problem
    if sections.federation.acceptance == "data" and measured is not None:
        problem = with_success(problem, measured)
    with _naming(settings):
        kernel, decoys = kernels.find(task, sections), _make_decoys(task, sections)
    clients = ClientResponder(settings, task, kernel, decoys, problem.oracle.success, recorded)
    return _assemble(settings, clients, problem, measured, recorded)


def make_world(settings: RunSettings, task: TrainingTask) -> World:
    """What happens to the clients of a simulated run."""
    return World(settings, count_sizes(task), _read_recorded(settings))


def find_training_task(settings: RunSettings) -> TrainingTask:
    """The task of a run that has clients."""
    task = _find_task(settings)
    if isinstance(task, FunctionTask):
        raise InvalidInput(f"{settings.name}: task must have clients, got function")
    return task


def _find_task(settings: RunSettings) -> TrainingTask | FunctionTask:
    if settings.sections.task != "own":
        with _naming(settings):
            return make_task(describe_data(settings.sections))
    if settings.own_task is None:
        raise InvalidInput(
            f"{settings.name}: task = own is for tasks made in Python, see RunSettings.with_task"
        )
    return settings.own_task


def _make_decoys(task: TrainingTask, sections: RunSections) -> tuple[Decoy, ...]:
    section = sections.federation
    decoy = make_decoy(
        sections.decoy.kind,
        task,
        batch_size=section.batch_size,
        algorithm=section.algorithm,
        optimizer=LocalOptimizer(**section.optimizer.model_dump()),
    )
    return (decoy,) * sections.decoy.count  # they keep nothing, so one serves all trajectories


def _assemble(
    settings: RunSettings,
    responder: Responder,
    problem: Problem,
    measured: FloatArray | None,
    recorded: RecordedRounds | None,
) -> Federation:
    policy = make_run_policy(settings.sections.policy, problem, seed=settings.hidden_seed)
    return Federation(
        settings, responder, problem, policy, measured, recorded, _read_arrivals(settings)
    )


def measure_federation(task: TrainingTask, sections: RunSections) -> FloatArray:
    """Success chances of the federation, by oracle state."""
    section = sections.federation
    return _measure_success(
        tuple(len(rows) for rows in task.clients),
        tuple(section.participation),
        section.batch_size,
        section.min_share,
        MEASURED_ROUNDS if section.acceptance == "data" else REPORTED_ROUNDS,
    )


def _check_function(settings: RunSettings, task: FunctionTask) -> None:
    """The function has an oracle of its own and one decoy."""
    states = settings.problem.oracle.num_states
    if states != len(task.success):
        raise InvalidInput(
            f"{settings.name}: task = function needs a problem with {len(task.success)} oracle "
            f"states, got {states}"
        )
    if settings.sections.decoy.count != 1:
        raise InvalidInput(
            f"{settings.name}: [decoy] count must be 1 with task = function, "
            f"got {settings.sections.decoy.count}"
        )


def describe_data(sections: RunSections) -> DataSettings:
    """The task's settings in the form that tasks take."""
    data = sections.data
    return DataSettings(
        task=sections.task,
        seed=sections.seed,
        clients=sections.federation.clients,
        split=data.split.dirichlet if isinstance(data.split, DirichletSplit) else "iid",
        public_size=data.public_size,
        public_positive_share=data.public_positive_share,
        public_classes=data.public_classes,
        public_class_share=data.public_class_share,
        path=data.path,
        model=data.model,
        # What the eavesdropper holds must not change what clients hold.
        same_clients=True,
    )


class KernelCache:
    """Kernels by model and optimiser: runs that share one have their jobs done together."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[object, ...], LocalKernel] = {}

    def find(self, task: TrainingTask, sections: RunSections) -> LocalKernel:
        """The kernel of a run."""
        from covertfl.kernels.choose import choose_kernel

        optimizer = LocalOptimizer(**sections.federation.optimizer.model_dump())
        shape, device = task.train.features.shape[1:], sections.engine.device
        own = task.make_model if sections.task == "own" else None
        data = (sections.task, own, sections.data.model, sections.data.path)
        key = (*data, shape, optimizer, device)
        if key not in self._kernels:
            self._kernels[key] = choose_kernel(task.make_model, task.loss, optimizer, device=device)
        return self._kernels[key]


@lru_cache(maxsize=64)
def _measure_success(
    sizes: tuple[int, ...],
    participation: tuple[int, ...],
    batch_size: int,
    min_share: float,
    rounds: int,
) -> FloatArray:
    """Success chances of a federation; seeds with clients of the same sizes share them."""
    generator = np.random.default_rng(MEASURING_SEED)
    return measure_success(
        np.array(sizes), participation, batch_size, min_share, generator=generator, rounds=rounds
    )


def _check_states(settings: RunSettings) -> None:
    states, given = settings.problem.oracle.num_states, settings.sections.federation.participation
    if len(given) != states:
        raise InvalidInput(
            f"{settings.name}: [federation] participation must have {states} numbers, one for each "
            f"oracle state, got {len(given)}"
        )


def _read_recorded(settings: RunSettings) -> RecordedRounds | None:
    section = settings.sections.federation
    if section.log is None:
        return None
    recorded = replay_log(read_log(section.log), section.participation)
    if len(recorded) < settings.rounds:
        raise InvalidInput(
            f"{section.log} must have at least {settings.rounds} rounds for this run, "
            f"got {len(recorded)}"
        )
    most = int(recorded.clients.max())
    if most > section.clients:
        raise InvalidInput(
            f"{section.log}: column clients must be at most {section.clients}, the number of "
            f"clients, got {most}"
        )
    return recorded


def _read_arrivals(settings: RunSettings) -> Mapping[int, int] | None:
    """A file of arrivals: columns round and updates."""
    path = settings.sections.arrivals
    if path is None:
        return None
    reader = csv.DictReader(io.StringIO(read_text(path, "a file of arrivals")))
    if reader.fieldnames != ["round", "updates"]:
        came = ",".join(reader.fieldnames or []) or "nothing"
        raise InvalidInput(f"{path}: the first line must be round,updates, got {came}")
    arrivals: dict[int, int] = {}
    for row in reader:
        place = f"{path} line {reader.line_num}"
        number = _read_whole(row["round"], "round", 1, place)
        if number in arrivals:
            raise InvalidInput(f"{place}: round must occur once, got {number} again")
        arrivals[number] = _read_whole(row["updates"], "updates", 0, place)
    return arrivals


def _read_whole(text: str | None, name: str, least: int, place: str) -> int:
    try:
        number = int(text or "")
    except ValueError:
        number = least - 1
    if not least <= number <= MOST_UPDATES:
        raise InvalidInput(
            f"{place}: {name} must be a whole number in {least}..{MOST_UPDATES}, "
            f"got {shorten(text)}"
        )
    return number


def list_versions() -> dict[str, str]:
    """Versions that a result may depend on."""
    packages = ("numpy", "torch")
    return {"covertfl": covertfl.__version__} | {name: metadata.version(name) for name in packages}
