"""Runs made ready: a federation, its folder (new or resumed) and the state to start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covertfl.errors import InvalidInput
from covertfl.files.toml import read_text
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.federation import Federation, start_run
from covertfl.runs.folder import RunFolder
from covertfl.runs.lines import read_lines
from covertfl.runs.locate import SETTINGS
from covertfl.runs.run_file import find_change, format_run, list_versions
from covertfl.runs.settings import RunSettings
from covertfl.runs.state import RunState, unpack_state


@dataclass(frozen=True, eq=False)
class PreparedRun:
    """A run that is ready to be carried out.

    Parameters
    ----------
    federation : what does not change during the run
    state : state to start from
    folder : folder the run is recorded in, open
    """

    federation: Federation
    state: RunState
    folder: RunFolder


def check_folder(settings: RunSettings, path: Path, *, resume: bool, force: bool) -> None:
    """Raise InvalidInput if a folder exists, or holds another run than the one to resume."""
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
        return PreparedRun(federation, _open_run(federation, folder, resume, force), folder)
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
    state = unpack_state(checkpoint, read_lines(folder.path / "private" / "rounds.jsonl"))
    if state.learner.true.shape != (federation.responder.layout.size,):
        raise InvalidInput(
            f"{folder.path} holds a model of {state.learner.true.size} numbers, but the run file "
            f"describes one of {federation.responder.layout.size}"
        )
    return state
