"""From settings to a finished run: its task, its federation, its folder and its rounds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.decision.problem import Problem
from covertfl.errors import InvalidInput, Missing, NoSolution
from covertfl.files.text import parse_toml, read_text
from covertfl.kernels.job import Examples, LocalKernel
from covertfl.runs.checkpoint import CHECKPOINT
from covertfl.runs.files import SETTINGS, RunSummary, read_rounds
from covertfl.runs.folder import DATABASE, RunFolder
from covertfl.runs.participation import (
    Acceptance,
    Clients,
    SimulatedParticipation,
    count_sizes,
    measure_federation,
    read_recorded,
)
from covertfl.runs.queue import read_arrivals
from covertfl.runs.records import seal_state, summarise
from covertfl.runs.round import Intake, OnState, Rounds, run_rounds
from covertfl.runs.settings import (
    RunSections,
    RunSettings,
    describe_run,
    find_change,
    format_run,
    list_versions,
)
from covertfl.runs.simulated import SimulatedEngine
from covertfl.runs.state import Federation, RunState, start_run, unpack_state
from covertfl.schemes.scheme import Setup
from covertfl.tasks.public_map import PublicMap, compute_public_map
from covertfl.tasks.registry import OWN, TASKS, make_task
from covertfl.tasks.task import DataSettings, TrainingTask

# --- the task -------------------------------------------------------------------------------------


@contextlib.contextmanager
def naming_run_file(settings: RunSettings) -> Iterator[None]:
    """Add the name of the run file to the message of an InvalidInput."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{settings.name}: {error}") from error


def find_task(settings: RunSettings) -> TrainingTask:
    """Return the task of a run, with the public map if its settings have one."""
    task = _make_task(settings)
    if settings.sections.data.map == "public" and task.public_map is None:
        with naming_run_file(settings):
            task = add_public_map(task)
    return task


def is_built_in(sections: RunSections) -> bool:
    """Return whether the task of a run comes with the package."""
    return sections.task in TASKS


def make_named_task(name: str, settings: RunSettings | None = None) -> TrainingTask:
    """Return the task that a name stands for, for the data of a run if there is one.

    Raises
    ------
    InvalidInput
        if there is no such task
    """
    data = DataSettings(task=name) if settings is None else _describe_data(settings)
    return make_task(data.model_copy(update={"task": name}))


def _make_task(settings: RunSettings) -> TrainingTask:
    if settings.sections.task != OWN:
        with naming_run_file(settings):
            task = make_task(_describe_data(settings))
        if not is_built_in(settings.sections):
            settings.require_clients(task)
        return task
    if settings.own_task is None:
        raise InvalidInput(
            f"{settings.name}: task = own is for tasks made in Python: pass a TrainingTask to Run"
        )
    return settings.own_task


def _describe_data(settings: RunSettings) -> DataSettings:
    sections, data = settings.sections, settings.sections.data
    return DataSettings(
        **data.model_dump(exclude={"seed"}),
        task=sections.task,
        seed=sections.seed if data.seed is None else data.seed,
        clients=sections.federation.clients,
        # What the eavesdropper holds must not change what clients hold.
        same_clients=True,
    )


def add_public_map(task: TrainingTask) -> TrainingTask:
    """Return the task with all of its inputs mapped by the map of its public set."""
    found = compute_public_map(task.public, task.loss)
    key = _MapKey(found.fingerprint, found)
    train, public, validation = (
        _map_examples(part, key) if len(part) else part
        for part in (task.train, task.public, task.validation)
    )
    return replace(task, train=train, public=public, validation=validation, public_map=found)


@dataclass(frozen=True)
class _MapKey:
    """A map, the same as another if it was computed from the same public set."""

    fingerprint: str
    public_map: PublicMap = field(compare=False)


@lru_cache(maxsize=16)
def _map_examples(examples: Examples, key: _MapKey) -> Examples:
    """Return the examples mapped, once for all runs that share them."""
    return Examples(key.public_map.apply(examples.features), examples.labels)


# --- the federation -------------------------------------------------------------------------------


def require_torch() -> None:
    """Raise Missing, with the command that installs it, if PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise Missing("training needs PyTorch: pip install 'covertfl[train]'") from error


class KernelCache:
    """Kernels by model and optimizer; the jobs of runs that share a kernel are batched."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[object, ...], LocalKernel] = {}

    def find(self, task: TrainingTask, sections: RunSections) -> LocalKernel:
        """Return the kernel of a run."""
        from covertfl.kernels.choose import choose_kernel

        optimizer = sections.federation.optimizer.make()
        shape, device = task.train.features.shape[1:], sections.engine.device
        own = None if is_built_in(sections) else task.make_model
        data = (sections.task, own, sections.data.model, sections.data.path)
        key = (*data, shape, optimizer, device)
        if key not in self._kernels:
            self._kernels[key] = choose_kernel(task.make_model, task.loss, optimizer, device=device)
        return self._kernels[key]


def simulate_participation(settings: RunSettings, task: TrainingTask) -> SimulatedParticipation:
    """Return the oracle states and attendance of a simulated run."""
    return SimulatedParticipation(settings, count_sizes(task), read_recorded(settings))


def build_federation(
    settings: RunSettings, kernels: KernelCache, *, measures: bool = True
) -> Federation:
    """Build everything that stays the same during a run, with simulated clients.

    With acceptance by data, success probabilities are measured on simulated clients and
    replace the problem's, if `measures`.  The problem's own stay where a log determines acceptance.
    """
    sections, problem = settings.sections, settings.problem
    _check_states(settings)
    task, recorded = find_task(settings), read_recorded(settings)
    is_recorded = recorded is not None and recorded.success is not None
    measured = measure_federation(task, settings, recorded) if measures else None
    keeps_own = sections.federation.acceptance == "model" or is_recorded
    if measured is not None and not keeps_own:
        problem = with_success(problem, measured)
    with naming_run_file(settings):
        kernel = kernels.find(task, sections)
        _check_buffers(settings, kernel)
    clients, success = Clients(task), problem.oracle.success
    with naming_run_file(settings), advising_on_success(settings, success):
        scheme = settings.scheme.make(describe_setup(settings, problem, clients, kernel))
    engine = SimulatedEngine(settings, Acceptance(settings, success, recorded))
    arrivals = None if sections.arrivals is None else read_arrivals(sections.arrivals)
    return Federation(
        settings, problem, scheme, engine, clients, kernel, measured, recorded, arrivals
    )


def describe_setup(
    settings: RunSettings, problem: Problem, clients: Clients, kernel: LocalKernel
) -> Setup:
    """Return what the scheme of a run is made from."""
    section = settings.sections.federation
    return Setup(
        name=settings.name,
        parts=settings.parts,
        problem=problem,
        states=settings.states,
        task=clients.task,
        kernel=kernel,
        algorithm=section.algorithm,
        optimizer=section.optimizer.make(),
        batch_size=section.batch_size,
        participation=section.participation,
        by_data=section.acceptance == "data",
        sizes=clients.sizes,
        hidden_seed=settings.hidden_seed,
        secret=section.secret,
    )


def _check_buffers(settings: RunSettings, kernel: LocalKernel) -> None:
    algorithm, layout = settings.sections.federation.algorithm, kernel.layout
    if layout.measured and algorithm != "fedavg":
        raise InvalidInput(
            "[federation] algorithm must be fedavg for a model with buffers: gradients do not hold "
            f"{layout.names[-1]}, got {algorithm}"
        )


def with_success(problem: Problem, success: FloatArray) -> Problem:
    """Return the problem with other success probabilities."""
    return replace(problem, oracle=replace(problem.oracle, success=success))


@contextlib.contextmanager
def advising_on_success(settings: RunSettings, success: FloatArray) -> Iterator[None]:
    """Add to a problem without a solution how to go on if measured probabilities are the cause."""
    try:
        yield
    except NoSolution as error:
        own = settings.problem.oracle.success
        if np.array_equal(success, own):
            raise
        probs, printed = (", ".join(f"{prob:.3g}" for prob in row) for row in (success, own))
        error.args = (
            f"{settings.name}: {error}; with [federation] acceptance = data rounds are accepted "
            f"with probability {probs} by oracle state in this federation, and {printed} in the "
            "problem: raise participation, lower min_share, or set acceptance = model, which takes "
            "the problem's",
        )
        raise


def _check_states(settings: RunSettings) -> None:
    states, given = settings.problem.oracle.num_states, settings.sections.federation.participation
    if len(given) != states:
        raise InvalidInput(
            f"{settings.name}: [federation] participation must have {states} numbers, one for each "
            f"oracle state, got {len(given)}"
        )


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run that is ready to be carried out: its state to start from, and its open folder."""

    federation: Federation
    state: RunState
    folder: RunFolder


def check_folder(settings: RunSettings, path: Path, *, resume: bool, force: bool) -> None:
    """Raise InvalidInput if a folder exists, or holds another run than the one to resume.

    With `force` it may exist, and must then be the folder of a run.
    """
    if force:
        RunFolder(path).require_replaceable()
    elif not resume:
        RunFolder(path).require_absent()
    if (path / DATABASE).exists() and settings.sections.service is None:
        raise InvalidInput(f"{path} holds a service: continue it with covertfl serve")
    written = path / SETTINGS
    if resume and written.exists():
        before = parse_toml(read_text(written, "the folder of a run"), str(written))
        change = find_change(before, describe_run(settings, list_versions()), str(written))
        if change is not None:
            raise InvalidInput(f"{path} holds another run and cannot be resumed: {change}")


def require_no_service(settings: RunSettings) -> None:
    """Raise InvalidInput if a run file describes a service, which does not end by itself."""
    if settings.sections.service is not None:
        raise InvalidInput(f"{settings.name} has a section [service]: start it with covertfl serve")


def prepare_run(
    settings: RunSettings, path: Path, kernels: KernelCache, *, resume: bool, force: bool
) -> PreparedRun:
    """Build a run and open its folder."""
    federation = build_federation(settings, kernels)
    folder = RunFolder(path, keep=settings.sections.keep)
    try:
        state = _open_run(federation, folder, resume, force)
        folder.keep_model(federation.task)
        return PreparedRun(federation, state, folder)
    except BaseException:
        folder.close()
        raise


def _open_run(federation: Federation, folder: RunFolder, resume: bool, force: bool) -> RunState:
    """Make or resume the folder of a run and return the state to start from."""
    text = format_run(federation.settings, list_versions())
    if not (resume and (folder.path / "checkpoint").exists()):
        folder.create(text, force=force)
        return start_run(federation)
    checkpoint = folder.resume(text)
    if checkpoint is None:
        return start_run(federation)
    records = read_rounds(
        folder.path,
        states=federation.problem.oracle.num_states,
        trajectories=federation.settings.num_trajectories,
    )
    found, size = checkpoint.arrays.get("true"), federation.layout.size
    if found is not None and found.shape != (size,):
        raise InvalidInput(
            f"{folder.path} holds a model of {found.size} numbers, but the run file describes one "
            f"of {size}"
        )
    return unpack_state(checkpoint, records, federation)


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run after a round, which `on_round` is called with.

    Backlog and exposure reveal the actions: the record is for the learner's side only and is never
    sent.  When the callback is called, the round is on disk; the next one starts after it returns.

    Parameters
    ----------
    run : folder of the run
    seed : of the run file
    round, rounds : rounds done, and rounds in all
    oracle_state : of the last round
    backlog : updates owed
    exposure : share of learning queries among the rounds so far
    score : accuracy of the true weights
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


def watch_run(
    run: PreparedRun,
    on_round: OnRound | None,
    started: float,
    after_round: OnState | None = None,
    intake: Intake | None = None,
) -> Rounds:
    """Run the remaining rounds of a run and write its summary; yield work as `run_rounds` does.

    After every round `on_round` is called with the progress, then `after_round` with the state;
    `intake` is that of `run_rounds`.  The run started at time.perf_counter() = `started`.
    """

    def report(state: RunState) -> None:
        if on_round is not None:
            on_round(_describe_progress(run, state))
        if after_round is not None:
            after_round(state)

    is_sealed = (run.folder.path / CHECKPOINT).exists()
    if run.state.round == 0 and not is_sealed:
        # Who draws the first weights may not draw the same ones again.
        seal_state(run.federation, run.folder, run.state)
    state = yield from run_rounds(run.federation, run.folder, run.state, report, intake)
    found = summarise(run.federation, state)
    seconds = time.perf_counter() - started
    run.folder.finish(RunSummary.from_dict({**found, "seconds": seconds}))
    return state


def _describe_progress(run: PreparedRun, state: RunState) -> RunProgress:
    settings = run.federation.settings
    return RunProgress(
        run=run.folder.path,
        seed=settings.seed,
        round=state.round,
        rounds=settings.rounds,
        oracle_state=state.oracle_state,
        backlog=state.queue.backlog,
        exposure=state.exposure,
        score=state.scores[0],
    )
