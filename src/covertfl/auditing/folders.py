"""From folders to an `AuditSummary`: find the runs, audit several at a time, write the result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from covertfl.auditing.coalitions import CoalitionFinding, audit_coalitions
from covertfl.auditing.run import RunAudit, audit_loaded_run, load_run
from covertfl.auditing.summary import AuditSummary, summarise_audits
from covertfl.errors import InvalidInput
from covertfl.files.atomic import write_atomically
from covertfl.runs.build import KernelCache
from covertfl.runs.files import SETTINGS, find_runs, is_public
from covertfl.runs.run_file import find_change, format_run, read_run

AUDIT = "audit.json"


def audit_folders(
    folders: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> AuditSummary:
    """Audit all runs in some folders together.

    Parameters
    ----------
    folders : of runs, of several seeds of a run, or public ones that a client recorded
    names : of eavesdroppers; all that the runs allow if None, and then coalitions too
    on_progress : called after each run with a description and the share that is done

    Raises
    ------
    InvalidInput
        if a folder holds no run, or the runs differ in more than their seeds
    """
    runs = [run for folder in folders for run in find_runs(folder)]
    _require_alike(runs)
    kernels, done = KernelCache(), 0

    def audit_one(run: Path) -> tuple[RunAudit, tuple[CoalitionFinding, ...]]:
        nonlocal done
        loaded = load_run(run, kernels)
        audited = audit_loaded_run(loaded, names=names)
        coalitions = audit_coalitions(loaded) if names is None else ()
        done += 1
        if on_progress is not None:
            on_progress(f"{done} of {len(runs)} runs", done / len(runs))
        return audited, coalitions

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        audits, coalitions = zip(*pool.map(audit_one, runs), strict=True)
    return summarise_audits(audits, coalitions)


def _require_alike(runs: Sequence[Path]) -> None:
    """Raise `InvalidInput` if runs differ in more than their seeds, so that means are void."""
    kept = [run for run in runs if (run / SETTINGS).exists()]
    texts = [format_run(read_run(run / SETTINGS).with_seed(0), {}) for run in kept]
    for run, text in zip(kept, texts, strict=True):
        change = find_change(texts[0], text, str(kept[0]))
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
