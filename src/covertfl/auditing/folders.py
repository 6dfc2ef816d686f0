"""From folders to an `AuditSummary`: find the runs, audit several at a time, write the result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from covertfl.auditing.coalitions import CoalitionFinding, audit_coalitions
from covertfl.auditing.rehearsal import (
    DEFAULT_COUNT,
    REHEARSALS,
    Progress,
    Rehearsals,
    Source,
    find_obstacle,
    fix_federation,
    ignore,
    make_rehearsed,
    name_settings,
    rehearse,
)
from covertfl.auditing.run import (
    LoadedRun,
    RunAudit,
    audit_loaded_run,
    find_own_task,
    load_run,
    read_settings,
)
from covertfl.auditing.summary import AuditSummary, summarise_audits
from covertfl.eavesdroppers.registry import EAVESDROPPERS, sort_names
from covertfl.eavesdroppers.trained import Rehearsed
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.runs.files import SETTINGS, find_runs, is_public
from covertfl.runs.settings import describe_run, find_change, read_run
from covertfl.runs.train import KernelCache
from covertfl.tasks.registry import TASKS
from covertfl.tasks.task import TrainingTask

AUDIT = "audit.json"


def audit_folders(
    folders: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    trajectories: int | None = None,
    rehearsals: int | None = 0,
    trained: int = 0,
    trained_on: Source = "public",
    by_round: bool = True,
    task: TrainingTask | str | None = None,
    on_progress: Progress | None = None,
) -> AuditSummary:
    """Audit all runs in some folders together.

    Parameters
    ----------
    folders : of runs, of several seeds of a run, or public ones that a client recorded
    names : of eavesdroppers; all that the runs allow if None, and then coalitions too
    trajectories : number of trajectories that eavesdroppers know of; None for that of the settings
    rehearsals : number of simulated runs that a single run is compared with; None for
        `DEFAULT_COUNT` of a single run and none of several
    trained : number of simulated runs that `trained` learns from; 0 to leave it out
    trained_on : who the clients of these runs are (`make_rehearsed`)
    by_round : whether estimates are scored after every round, or after the last one only
    task : of runs whose task was made in Python, or of public folders, where it is what
        eavesdroppers have; or its name
    on_progress : called with a description and the share that is done

    Raises
    ------
    InvalidInput
        if a folder holds no run, the runs differ in more than their seeds, or simulated runs are
        asked for with several runs
    """
    runs = [run for folder in folders for run in find_runs(folder)]
    _require_alike(runs)
    if rehearsals and len(runs) > 1:
        raise InvalidInput(f"rehearsals must be 0 for several runs, got {rehearsals}")
    report = on_progress or ignore
    names = None if names is None else sort_names(names)
    own = find_own_task(runs[0], task)
    kept = Rehearsals(_find_place(runs[0], names, own), KernelCache())
    learned = _learn(runs, trained, trained_on, kept, own, report)
    read = partial(load_run, kernels=kept.kernels, trajectories=trajectories, task=own)
    load = partial(_load_one, runs, learned, read)
    audits, coalitions = _audit_all(load, len(runs), names, by_round, report)
    count = rehearsals if rehearsals is not None else DEFAULT_COUNT if len(runs) == 1 else 0
    obstacle = find_obstacle(runs[0], own) if count else None
    simulated: list[RunAudit] = []
    if count and obstacle is None:
        settings, rehearsed = read_settings(runs[0], own), learned.get(runs[0])
        if rehearsed is not None and trained_on == "federation":
            settings = fix_federation(settings)
        told: dict[str, Any] = {"rehearsed": rehearsed, "on_progress": report}
        simulated = rehearse(settings, count, kept, names=list(audits[0].findings), **told)
    notes = [f"No runs of the same settings were simulated: {obstacle}."] if obstacle else []
    return summarise_audits(audits, coalitions, simulated=simulated, notes=notes)


def _load_one(
    runs: Sequence[Path],
    learned: Mapping[Path, Rehearsed],
    read: Callable[[Path], LoadedRun],
    number: int,
) -> LoadedRun:
    """Return a run for eavesdroppers that know other runs: simulated ones, and the next one."""
    run = read(runs[number])
    known: dict[str, Any] = {"rehearsed": learned.get(runs[number])}
    if len(runs) > 1 and is_fixed(run):
        known["other_run"] = read(runs[(number + 1) % len(runs)]).queries
    return run.with_means(**known)


def _find_place(run: Path, names: Sequence[str] | None, task: TrainingTask | None) -> Path | None:
    """Return where results of simulated runs are kept; None if code from outside made them.

    A file is named after the settings alone, and that code may have changed since.
    """
    if task is not None or not set(names or ()) <= set(EAVESDROPPERS):
        return None
    if (run / SETTINGS).exists():
        settings = read_run(run / SETTINGS)
        is_scheme_known = settings.scheme.is_built_in(settings.parts)
        if settings.sections.task not in TASKS or not is_scheme_known:
            return None
    return run / REHEARSALS


def _learn(
    runs: Sequence[Path],
    count: int,
    source: Source,
    kept: Rehearsals,
    task: TrainingTask | None,
    report: Progress,
) -> dict[Path, Rehearsed]:
    """Return what `trained` learns from simulated runs, by run; nothing if there are none."""
    learned: dict[str, Rehearsed] = {}
    found = {}
    for run in runs if count else ():
        if (run / SETTINGS).exists():
            settings = fix_federation(read_settings(run, task))
            key = name_settings(settings)
            if key not in learned:
                learned[key] = make_rehearsed(
                    settings, count, kept, source=source, on_progress=report
                )
            found[run] = learned[key]
    return found


def _audit_all(
    load: Callable[[int], LoadedRun],
    count: int,
    names: Sequence[str] | None,
    by_round: bool,
    report: Progress,
) -> tuple[list[RunAudit], list[tuple[CoalitionFinding, ...]]]:
    done = 0

    def audit_one(number: int) -> tuple[RunAudit, tuple[CoalitionFinding, ...]]:
        nonlocal done
        run = load(number)
        audited = audit_loaded_run(run, names=names, by_round=by_round)
        coalitions = audit_coalitions(run) if names is None else ()
        done += 1
        report(f"{done} of {count} runs", done / count)
        return audited, coalitions

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(audit_one, range(count)))
    return [audit for audit, _ in found], [coalitions for _, coalitions in found]


def is_fixed(run: LoadedRun) -> bool:
    """Return whether runs with other seeds have the same clients: [data] seed is set."""
    data = None if run.federation is None else run.federation.settings.sections.data
    return data is not None and data.seed is not None


def _require_alike(runs: Sequence[Path]) -> None:
    """Raise `InvalidInput` if runs differ in more than their seeds, so that means are void."""
    kept = [run for run in runs if (run / SETTINGS).exists()]
    described = [describe_run(read_run(run / SETTINGS).with_seed(0), {}) for run in kept]
    for run, content in zip(kept, described, strict=True):
        change = find_change(described[0], content, str(kept[0]))
        if change is not None:
            raise InvalidInput(
                f"{run} differs from {kept[0]} in more than its seed, audit them one by one: "
                f"{change}"
            )


def write_audit(folder: Path, report: AuditSummary) -> None:
    """Write audit.json into an audited folder, readable by its owner only: it reveals actions.

    Nothing is written into a public folder, which holds what clients received and nothing else.
    """
    if is_public(folder):
        return
    text = json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n"
    write_atomically(folder / AUDIT, text, mode=0o600)
