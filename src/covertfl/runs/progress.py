"""Runs carried out: made ready in a new or resumed folder, watched round by round, summarised."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.files.text import parse_toml, read_text
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.checkpoint import CHECKPOINT
from covertfl.runs.federation import Federation, RunState, start_run
from covertfl.runs.files import SETTINGS, read_rounds
from covertfl.runs.folder import DATABASE, RunFolder
from covertfl.runs.packing import unpack_state
from covertfl.runs.records import seal_state, summarise
from covertfl.runs.rounds import Intake, OnState, Rounds, run_rounds
from covertfl.runs.run_file import describe_run, find_change, format_run, list_versions
from covertfl.runs.settings import RunSettings
from covertfl.runs.summary import RunSummary


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
        folder.keep_model(federation.responder.task)
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
    state = unpack_state(checkpoint, records, federation.responder.replicas)
    found, size = state.learner.true, federation.responder.layout.size
    if found.shape != (size,):
        raise InvalidInput(
            f"{folder.path} holds a model of {found.size} numbers, but the run file describes one "
            f"of {size}"
        )
    return state


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
