"""What eavesdroppers get from simulated runs of the same settings, kept in a private folder.

A single run says little: a rule that is right once may be right in half of all runs.  The same
settings with other seeds are simulated, audited, and the findings kept as JSON, so that a second
audit has them at once.  The folder is the run's own and private, because the findings say how well
each rule does against this learner.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from covertfl.auditing.overheard import find_truth
from covertfl.auditing.run import LoadedRun, RunAudit, find_all, read_settings
from covertfl.auditing.simulated import resample_clients, simulate_seeds
from covertfl.auditing.threats import Finding
from covertfl.eavesdroppers.trained import Rehearsed, collect_figures, list_sources
from covertfl.errors import InvalidInput
from covertfl.files.disk import write_atomically
from covertfl.runs.files import SETTINGS, SUMMARY
from covertfl.runs.settings import RunSettings, format_run, list_versions
from covertfl.runs.train import KernelCache
from covertfl.seeding import LARGEST_SEED
from covertfl.tasks.scores import Scores
from covertfl.tasks.task import TrainingTask

REHEARSALS = "private/rehearsals"
DEFAULT_COUNT = 20
# Seeds of the runs that `trained` learns from are this far from those it is tried on.
TRAINED_FROM = 1_000_000
Source = Literal["public", "federation"]
Progress = Callable[[str, float], None]
Collected = tuple[
    tuple[str, ...], npt.NDArray[np.float64], int
]  # names, values and the true trajectory


def ignore(_detail: str, _share: float) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True, eq=False)
class Rehearsals:
    """A private folder of results of simulated runs.

    Parameters
    ----------
    folder : made with mode 0700 when something is kept in it; None to keep nothing
    kernels : of all runs
    """

    folder: Path | None
    kernels: KernelCache

    def read(self, name: str) -> bytes | None:
        """Return the content of a file of the folder, None if it cannot be read."""
        with contextlib.suppress(OSError):
            if self.folder is not None and (self.folder / name).is_file():
                return (self.folder / name).read_bytes()
        return None

    def write(self, name: str, content: bytes) -> None:
        """Keep a file for its owner only; where nothing can be written, nothing is kept."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError, InvalidInput):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.folder / name, content, mode=0o600)


def name_settings(settings: RunSettings) -> str:
    """Return a hash of everything in the settings but the run's own seed, and of the versions."""
    engine = {"kind": "simulated", "mode": "in-process", "device": "cpu", "round_seconds": None}
    sections = settings.sections.model_copy(
        update={"engine": settings.sections.engine.model_copy(update=engine)}
    )
    text = format_run(replace(settings, sections=sections).with_seed(0), list_versions())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def choose_seeds(settings: RunSettings, count: int, first: int) -> list[int]:
    """Return seeds of other runs, beginning `first` after the run's own."""
    return [(settings.seed + first + number) % (LARGEST_SEED + 1) for number in range(count)]


def fix_federation(settings: RunSettings) -> RunSettings:
    """Return settings whose runs all have the clients of this run, whatever their seeds."""
    sections = settings.sections
    if sections.data.seed is not None:
        return settings
    data = sections.data.model_copy(update={"seed": settings.seed})
    return replace(settings, sections=sections.model_copy(update={"data": data}))


def find_obstacle(run: Path, task: TrainingTask | None = None) -> str | None:
    """Return why runs of the same settings cannot be simulated, None if they can.

    `task` is the run's own, if it was made in Python.
    """
    if not (run / SETTINGS).exists():
        return "the settings are not in a public folder"
    settings = read_settings(run, task)
    if settings.sections.task == "own" and settings.own_task is None:
        return "the task was made in Python and is not in the folder (--task names it)"
    if settings.own_task is not None and not len(settings.own_task.train):
        return "the task has no data of clients"
    if not (run / SUMMARY).exists():
        return "the run has not ended"
    if not (run / "private").is_dir():
        return "the run has no private folder to keep them in"
    return None


def rehearse(
    settings: RunSettings,
    count: int,
    rehearsals: Rehearsals,
    *,
    names: Sequence[str],
    rehearsed: Rehearsed | None = None,
    on_progress: Progress = ignore,
) -> list[RunAudit]:
    """Return the audits of `count` simulated runs of the same settings with other seeds.

    Parameters
    ----------
    names : of eavesdroppers
    rehearsed : what `trained` learned from; results with it are not kept
    """
    # The secrets of some schemes belong to the clients' data.
    if settings.scheme.is_tied:
        settings = fix_federation(settings)
    file = f"{name_settings(settings)}.json"
    known = _read_audits(None if rehearsed is not None else rehearsals.read(file))
    seeds = choose_seeds(settings, count, 1)
    missing = [
        seed for seed in seeds if seed not in known or not set(names) <= set(known[seed].findings)
    ]

    def audit_one(run: LoadedRun) -> RunAudit:
        told = run.with_means(rehearsed=rehearsed)
        truth, misplaced = find_truth(told.queries, told.private)
        findings = find_all(told, truth, names=names, by_round=False)
        return _make_audit(findings, len(told.queries), misplaced)

    found = simulate_seeds(
        settings,
        missing,
        rehearsals.kernels,
        audit_one,
        on_progress=lambda share: on_progress(f"{len(missing)} simulated runs", share),
    )
    known |= dict(zip(missing, found, strict=True))
    if missing and rehearsed is None:
        rehearsals.write(file, _format_audits(known))
    return [known[seed] for seed in seeds]


def _make_audit(findings: Mapping[str, Finding], num_queries: int, misplaced: int) -> RunAudit:
    trajectories = max((len(finding.belief) for finding in findings.values()), default=1)
    return RunAudit(Path(), num_queries, trajectories, misplaced, findings, None, None, (), ())


def _format_audits(audits: Mapping[int, RunAudit]) -> bytes:
    content = {
        str(seed): {
            "queries": audit.num_queries,
            "misplaced": audit.misplaced,
            "findings": {name: asdict(finding) for name, finding in audit.findings.items()},
        }
        for seed, audit in audits.items()
    }
    return json.dumps(content, allow_nan=False).encode()


def _read_audits(content: bytes | None) -> dict[int, RunAudit]:
    """Return the audits by seed; none where the file is missing or was damaged."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        entries = json.loads(content or b"{}")
        return {int(seed): _read_audit(entry) for seed, entry in entries.items()}
    return {}


def _read_audit(entry: Mapping[str, Any]) -> RunAudit:
    findings = {
        name: Finding(
            named=found["named"],
            accuracy=None if found["accuracy"] is None else tuple(found["accuracy"]),
            belief=tuple(found["belief"]),
            baseline=found["baseline"],
            final=None if found["final"] is None else Scores(**found["final"]),
        )
        for name, found in entry["findings"].items()
    }
    return _make_audit(findings, entry["queries"], entry["misplaced"])


def make_rehearsed(
    settings: RunSettings,
    count: int,
    rehearsals: Rehearsals,
    *,
    source: Source = "public",
    on_progress: Progress = ignore,
) -> Rehearsed:
    """Return labelled figures of simulated runs, which `trained` learns from.

    They are those of the eavesdroppers of tiers A, B and C.

    Parameters
    ----------
    settings : of the run that is audited, with its federation fixed (`fix_federation`)
    source : "public" for runs that the eavesdropper can simulate, whose clients hold rows drawn
        from the public set; "federation" for runs of the same federation with the answers given

    Raises
    ------
    InvalidInput
        if in fewer than two runs all trajectories can be told apart
    """
    chosen = list_sources("ABC")
    file = f"{name_settings(settings)}-{source}-{count}.npz"
    known = _read_rehearsed(rehearsals.read(file))
    if known is not None:
        return known

    def collect(run: LoadedRun) -> Collected | None:
        truth, _ = find_truth(run.queries, run.private)
        true = [number for number, is_true in truth.items() if is_true]
        if len(true) != 1 or len(truth) != run.trajectories:
            return None  # trajectories were not told apart, or not all were sent
        return (*collect_figures(chosen, run.means, run.queries), true[0])

    found = simulate_seeds(
        settings,
        choose_seeds(settings, count, TRAINED_FROM),
        rehearsals.kernels,
        collect,
        change=resample_clients if source == "public" else None,
        on_progress=lambda share: on_progress(f"{count} runs to train on", share),
    )
    made = _stack([one for one in found if one is not None])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, figures=made.figures, truth=made.truth, names=list(made.names))
    rehearsals.write(file, buffer.getvalue())
    return made


def _stack(found: Sequence[Collected]) -> Rehearsed:
    if len(found) < 2:
        raise InvalidInput(
            "trained needs at least 2 simulated runs whose trajectories can be told apart, "
            f"got {len(found)}"
        )
    figures = np.stack([values for _, values, _ in found])
    truth = np.array([true for _, _, true in found], dtype=np.int64)
    return Rehearsed(figures, truth, found[0][0])


def _read_rehearsed(content: bytes | None) -> Rehearsed | None:
    """Return what was kept, None where the file is missing or was damaged."""
    with contextlib.suppress(ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        if content is not None:
            kept = np.load(io.BytesIO(content), allow_pickle=False)
            return Rehearsed(kept["figures"], kept["truth"], tuple(kept["names"].tolist()))
    return None
