"""Auditing folders: finding the runs in them, several at a time, and keeping the result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from covertfl.auditing.coalitions import CoalitionFinding, audit_coalitions
from covertfl.auditing.run import OpenedRun, RunAudit, audit_opened, open_run
from covertfl.auditing.summary import AuditReport, describe_audit, put_together
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.runs.build import KernelCache
from covertfl.runs.folder import SETTINGS
from covertfl.runs.run_file import find_change, format_run, read_run

AUDIT = "audit.json"


def find_runs(path: Path) -> list[Path]:
    """The runs in a folder: itself, or its sub-folders in the order of their numbers."""
    if not path.is_dir():
        raise InvalidInput(f"{path}: no such folder, the folder of a run is needed")
    if _is_run(path):
        return [path]
    found = sorted(
        (child for child in path.iterdir() if child.is_dir() and _is_run(child)),
        key=lambda child: (len(child.name), child.name),
    )
    if not found:
        raise InvalidInput(f"{path} holds no run: public/ or rounds.jsonl is needed")
    return found


def _is_run(path: Path) -> bool:
    return (path / "public").is_dir() or (path / "rounds.jsonl").is_file()


def audit_folders(
    folders: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> AuditReport:
    """Audit all runs in some folders together.

    Parameters
    ----------
    names : of eavesdroppers; all that are possible where None
    """
    runs = [run for folder in folders for run in find_runs(folder)]
    _require_alike(runs)
    kernels, done = KernelCache(), 0

    def audit_one(run: Path) -> tuple[RunAudit, tuple[CoalitionFinding, ...]]:
        nonlocal done
        opened = open_run(run, kernels)
        audited = audit_opened(opened, names=names)
        pooled = audit_pooled(opened) if names is None else ()
        done += 1
        if on_progress is not None:
            on_progress(f"{done} of {len(runs)} runs", done / len(runs))
        return audited, pooled

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        audits, coalitions = zip(*pool.map(audit_one, runs), strict=True)
    return put_together(audits, coalitions)


def _require_alike(runs: Sequence[Path]) -> None:
    """Raise `InvalidInput` where runs differ in more than their seeds: no figure is for both."""
    kept = [run for run in runs if (run / SETTINGS).exists()]
    texts = [format_run(read_run(run / SETTINGS).with_seed(0), {}) for run in kept]
    for run, text in zip(kept, texts, strict=True):
        change = find_change(texts[0], text, str(kept[0]))
        if change is not None:
            raise InvalidInput(
                f"{run} differs from {kept[0]} in more than its seed, audit them one by one: "
                f"{change}"
            )


def audit_pooled(run: OpenedRun) -> tuple[CoalitionFinding, ...]:
    """What coalitions of clients make of a run whose attendance is known."""
    if run.clients is None or run.scores is None or not run.private:
        return ()
    return audit_coalitions(
        run.overheard,
        run.private,
        run.means,
        run.scores,
        len(run.clients.task.clients),
        seed=run.clients.settings.seed,
    )


def write_audit(folder: Path, report: AuditReport) -> None:
    """Keep an audit in the folder it is of, for its owner only: exposure tells of actions.

    Nothing is kept in a public folder, which holds what clients were sent and nothing else.
    """
    if is_public(folder):
        return
    text = json.dumps(describe_audit(report), indent=2, allow_nan=False) + "\n"
    write_atomically(folder / AUDIT, text, mode=0o600)


def is_public(folder: Path) -> bool:
    """Whether a folder is itself a public one, of a run or as a client recorded it."""
    return not (folder / "public").is_dir() and (folder / "rounds.jsonl").is_file()
