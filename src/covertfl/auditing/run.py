"""The audit of one run: every eavesdropper is shown the queries of its public folder.

Eavesdroppers see the public folder only.  The private folder decides afterwards who was right, and
the validation set how accurate the captured weights are; neither is shown to an eavesdropper.  A
public folder by itself can be audited too; which trajectory is true is then unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from covertfl.auditing.baselines import BaseLines
from covertfl.auditing.means import add_task, find_means
from covertfl.auditing.overheard import (
    Queries,
    Records,
    find_first_matrix,
    find_truth,
    group_rounds,
    keep_recorded,
    overhear,
)
from covertfl.auditing.threats import BASE_LINE, Finding, ScoreCache, listen
from covertfl.eavesdroppers.eavesdropper import Means
from covertfl.eavesdroppers.registry import (
    EAVESDROPPERS,
    find_class,
    list_missing,
    make_eavesdropper,
    sort_names,
)
from covertfl.errors import InvalidInput
from covertfl.files.text import shorten
from covertfl.kernels.choose import choose_kernel
from covertfl.kernels.job import LocalOptimizer
from covertfl.runs.engine import Validation
from covertfl.runs.files import (
    METRICS,
    ROUNDS,
    SETTINGS,
    SUMMARY,
    RunSummary,
    read_lines,
    read_rounds,
    read_summary,
)
from covertfl.runs.settings import RunSettings, read_run
from covertfl.runs.state import Federation
from covertfl.runs.train import KernelCache, build_federation, make_named_task
from covertfl.tasks.task import TrainingTask


@dataclass(frozen=True, eq=False)
class RunAudit:
    """The audit of one run, with the findings by eavesdropper.

    Parameters
    ----------
    misplaced : queries that separation put on the wrong trajectory, None if unknown
    summary : of the run, None for an unfinished run and for a public folder
    federation : that was run, None for a public folder
    private : records of the rounds, empty if there are none
    learner : (N,) accuracy of the true weights after each round, empty if unknown
    trajectories : number of trajectories that the eavesdroppers know of, None if it is unknown
    seen : rounds of the queries on each trajectory that was found
    lacking : what eavesdroppers that were not tried would need, by name
    """

    path: Path
    num_queries: int
    num_trajectories: int
    misplaced: int | None
    findings: Mapping[str, Finding]
    summary: RunSummary | None
    federation: Federation | None
    private: Records
    learner: tuple[float, ...]
    trajectories: int | None = None
    seen: tuple[tuple[int, ...], ...] = ()
    lacking: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run's folder with its queries linked, shared by all of its eavesdroppers.

    Parameters
    ----------
    private : records of the rounds, empty if there are none
    federation : that was run; None for a public folder, and for a task defined in Python
    trajectories : number of trajectories, which is public; None if unknown
    owned : what eavesdroppers have if there is no federation
    """

    path: Path
    queries: Queries
    private: Records
    federation: Federation | None
    trajectories: int | None = None
    owned: Means = field(default_factory=Means)

    @property
    def part(self) -> slice | None:
        """Return the coordinates by which queries are linked, None for all."""
        layout = None if self.federation is None else self.federation.layout
        pivot = None if layout is None else find_first_matrix(layout)
        return None if layout is None or pivot is None else layout.locate(pivot)

    @property
    def validation(self) -> Validation | None:
        """Return the run's validation set, None if it cannot be built again."""
        return None if self.federation is None else self.federation.validation

    @cached_property
    def scores(self) -> ScoreCache | None:
        """Return accuracies on the validation set, None if there is no such set."""
        found = self.validation
        return None if found is None or not len(found.examples) else ScoreCache(found)

    @cached_property
    def means(self) -> Means:
        """Return what an eavesdropper may own and know."""
        found = self.owned
        if self.federation is not None:
            found = find_means(self.federation, self.private)
        return replace(found, trajectories=self.trajectories)

    def with_means(self, **known: Any) -> LoadedRun:
        """Return the same run for eavesdroppers that have more, by field of `Means`."""
        run = replace(self)
        run.__dict__["means"] = replace(self.means, **known)
        return run


def load_run(
    path: Path,
    kernels: KernelCache,
    *,
    trajectories: int | None = None,
    task: TrainingTask | None = None,
) -> LoadedRun:
    """Read a run's folder, or a public folder as a client recorded it.

    Parameters
    ----------
    trajectories : number of trajectories; None for that of the run file, unknown without one
    task : of a run whose task was made in Python, or of a public folder: what eavesdroppers own
    """
    if not (path / SETTINGS).exists():
        queries, owned = overhear_alone(path, trajectories=trajectories, task=task)
        return LoadedRun(path, queries, (), None, trajectories, owned)
    settings = read_settings(path, task)
    trajectories = trajectories or settings.num_trajectories
    is_own, is_known = settings.sections.task == "own", settings.own_task is not None
    federation = None
    # A task defined in Python is not in its folder: weights cannot be scored, beliefs can.
    if is_known or not is_own:
        # On Flower the success probabilities of a task of one's own are not measured.
        measures = not is_own or settings.sections.engine.kind == "simulated"
        federation = build_federation(settings, kernels, measures=measures)
    layout = None if federation is None else federation.layout
    pivot = None if layout is None else find_first_matrix(layout)
    queries = overhear(path / "public", layout, trajectories=trajectories, pivot=pivot)
    private: Records = ()
    if (path / ROUNDS).exists():
        states, known = settings.problem.oracle.num_states, settings.num_trajectories
        private = tuple(read_rounds(path, states=states, trajectories=known))
    if private:
        queries, private = keep_recorded(queries, private, path)
    return LoadedRun(path, queries, private, federation, trajectories)


def audit_run(path: Path, kernels: KernelCache, *, names: Sequence[str] | None = None) -> RunAudit:
    """Load a run's folder, or a public folder, and audit it; `names` as in `audit_loaded_run`."""
    return audit_loaded_run(load_run(path, kernels), names=names)


def audit_loaded_run(
    run: LoadedRun, *, names: Sequence[str] | None = None, by_round: bool = True
) -> RunAudit:
    """Show eavesdroppers the queries of a run and return what they found.

    Parameters
    ----------
    names : of eavesdroppers; all that the run allows if None
    by_round : whether estimates are scored after every round, or after the last one only

    Raises
    ------
    InvalidInput
        if a name is not that of an eavesdropper, or a plug-in cannot be used
    """
    truth, misplaced = find_truth(run.queries, run.private) if run.private else (None, None)
    findings = find_all(run, truth, names=names, by_round=by_round)
    wanted = EAVESDROPPERS if names is None else names
    lacking = {name: list_missing(name, run.means) for name in wanted if name not in findings}
    is_finished = (run.path / SETTINGS).exists() and (run.path / SUMMARY).exists()
    return RunAudit(
        path=run.path,
        num_queries=len(run.queries),
        num_trajectories=1 + max(query.trajectory for query in run.queries),
        misplaced=misplaced,
        findings=findings,
        summary=read_summary(run.path) if is_finished else None,
        federation=run.federation,
        private=run.private,
        learner=_read_learner_curve(run),
        trajectories=run.trajectories,
        seen=group_rounds(run.queries),
        lacking={name: " and ".join(needs) for name, needs in lacking.items()},
    )


def find_all(
    run: LoadedRun,
    truth: Mapping[int, bool] | None,
    *,
    names: Sequence[str] | None = None,
    by_round: bool = True,
) -> dict[str, Finding]:
    """Return the findings of all eavesdroppers that a run allows, with their base lines.

    Parameters
    ----------
    truth : whether each trajectory is the true one, None if unknown
    names : of eavesdroppers; all if None
    by_round : whether estimates are scored after every round, or after the last one only, as those
        of trained eavesdroppers always are
    """
    wanted = EAVESDROPPERS if names is None else sort_names(names)
    findings = {
        name: listen(
            make_eavesdropper(name, run.means),
            run.queries,
            truth,
            run.scores,
            trajectories=run.trajectories,
            by_round=by_round and "rehearsed" not in find_class(name).needs,
        )
        for name in wanted
        if not list_missing(name, run.means)
    }
    if run.validation is None or run.scores is None:
        return findings
    alone = findings[BASE_LINE].accuracy if BASE_LINE in findings else None
    trained = None if alone is None else alone[-1]
    lines = BaseLines(run.means, run.validation.examples, run.queries, run.scores, trained)
    return {name: replace(finding, baseline=lines.find(name)) for name, finding in findings.items()}


def _read_learner_curve(run: LoadedRun) -> tuple[float, ...]:
    if not run.private or run.validation is None:
        return ()
    path, scores = run.path / METRICS, []
    for number, line in enumerate(itertools.islice(read_lines(path), len(run.private)), start=1):
        score = line.get("learner_score")
        if not isinstance(score, int | float) or not 0.0 <= score <= 1.0:
            raise InvalidInput(
                f"{path} line {number}: learner_score must be in 0..1, got {shorten(score)}"
            )
        scores.append(float(score))
    return tuple(scores)


def find_own_task(run: Path, task: TrainingTask | str | None) -> TrainingTask | None:
    """Return a task, or the one that a name stands for, made for the data of a run.

    Raises
    ------
    InvalidInput
        if the name stands for no task, or the run is not one of a task made in Python
    """
    if task is None:
        return None
    settings = read_run(run / SETTINGS) if (run / SETTINGS).exists() else None
    if settings is not None and settings.sections.task != "own":
        raise InvalidInput(
            f"{settings.name}: task = {settings.sections.task} is known from the run file; a task "
            "is given for runs whose task was made in Python, and for public folders"
        )
    return make_named_task(task, settings) if isinstance(task, str) else task


def read_settings(path: Path, task: TrainingTask | None) -> RunSettings:
    """Return the settings of a run's folder, with the task that was made in Python, if given."""
    settings = read_run(path / SETTINGS)
    return settings if task is None else settings.with_task(task)


def overhear_alone(
    path: Path, *, trajectories: int | None, task: TrainingTask | None
) -> tuple[Queries, Means]:
    """Return the queries of a folder without settings, and what eavesdroppers have besides.

    Parameters
    ----------
    trajectories : number of trajectories, None if unknown
    task : whose model, public set and data of one client they have; None for nothing

    Raises
    ------
    InvalidInput
        if the folder holds no queries, or those of another model
    """
    public = path / "public" if (path / "public").is_dir() else path
    if not (public / "rounds.jsonl").exists():
        raise InvalidInput(
            f"{public} is neither the folder of a run nor a public folder: "
            "run.toml or rounds.jsonl is needed"
        )
    if task is None:
        return overhear(public, trajectories=trajectories), Means()
    kernel = choose_kernel(task.make_model, task.loss, LocalOptimizer())
    queries = overhear(public, kernel.layout, trajectories=trajectories)
    return queries, add_task(Means(), task, kernel)
