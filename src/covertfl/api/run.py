"""`Run`: a training run described by name or by file, and what training it returns."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covertfl.api.problem import describe_problem, resolve_problem
from covertfl.api.result import Result
from covertfl.decision.arguments import Source, read_callback, read_count, read_path
from covertfl.decision.problem import FiniteHorizon, Problem, QueueProblem
from covertfl.decision.problem_file import LoadedProblem
from covertfl.errors import InvalidInput
from covertfl.report.measures import stack_by_round
from covertfl.report.records import read_run_records
from covertfl.runs.files import RunSummary
from covertfl.runs.settings import RunSections, RunSettings, build_run, find_model, read_run
from covertfl.runs.train import OnRound
from covertfl.schemes.registry import DEFAULT, SCHEMES, find_scheme
from covertfl.tasks.task import TrainingTask
from covertfl.training import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType
Sections = Mapping[str, tuple[str, ...]]  # names of keys, by section or key of the run file


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Run(Result):
    """A training run: what is trained, by whom, under which policy, with which decoy.

    Parameters
    ----------
    task : the name of a task, or a `TrainingTask` of your own
    keys : every key of a run file by its name, such as `rounds`, `updates`, `clients` or
        `batch_size`; `policy`, `decoy` and `engine` take a kind, or a dictionary as every section
        does; `problem` takes a path, the name of a preset or a problem.  A key that two sections
        share, such as `path`, is given with its section: `data={"path": "mine.npz"}`.

    Paths are relative to the working directory.

    Raises
    ------
    InvalidInput
        in one sentence that names the key, what is allowed and what came

    Examples
    --------
    >>> Run(task="digits", policy="greedy", rounds=79)
    <Run: task digits, scheme scheduled, policy greedy, decoy public, rounds 79, clients 20, seed 0>
    """

    settings: RunSettings

    def __init__(self, task: str | TrainingTask, **keys: Any) -> None:
        own = task if isinstance(task, TrainingTask) else None
        content = nest_keys({"task": "own" if own is not None else task, **keys})
        if own is not None:
            content.setdefault("federation", {}).setdefault("clients", len(own.clients))
        settings = build_run(content, "Run", folder=Path())
        settings = settings if own is None else settings.with_task(own)
        object.__setattr__(self, "settings", settings)

    @classmethod
    def load(cls, path: Source) -> Run:
        """Return the run that a run file describes."""
        run = cls.__new__(cls)
        object.__setattr__(run, "settings", read_run(read_path(path, "path")))
        return run

    @property
    def problem(self) -> Problem:
        """Return the problem that the policy is solved for."""
        return self.settings.problem

    def train(
        self,
        out: Source,
        *,
        seeds: int = 1,
        resume: bool = False,
        force: bool = False,
        on_round: OnRound | None = None,
    ) -> TrainingResult:
        """Train the run and record it in a folder.

        Parameters
        ----------
        out : the folder; `out`/public holds what clients were sent, `out`/private what was done
        seeds : number of runs, counted from the run's seed; one goes to `out` itself, several go to
            `out`/seed-0, `out`/seed-1 ...
        resume : continue runs that were cut off; finished ones are left as they are
        force : replace what is there
        on_round : called with a `RunProgress` after every round of every run; the runs of several
            seeds take turns.  An exception ends the training, and `resume` continues it

        Raises
        ------
        InvalidInput
            if the folder holds another run, or an argument is not valid
        Missing
            if data or a dependency is missing
        """
        folder, count = read_path(out, "out"), read_count(seeds, "seeds")
        if resume and force:
            raise InvalidInput("resume continues a run and force replaces it: choose one of them")
        summaries = train(
            self.settings,
            folder,
            seeds=None if count == 1 else count,
            resume=resume,
            force=force,
            on_round=read_callback(on_round, "on_round"),
        )
        return TrainingResult(folder, tuple(summaries))

    def to_dict(self) -> dict[str, Any]:
        """Return the sections of the run file, all keys filled in."""
        sections = self.settings.sections.model_dump(exclude_none=True)
        return {**sections, "rounds": self.settings.rounds}

    def _facts(self) -> Mapping[str, str]:
        sections = self.settings.sections
        return {
            "task": sections.task,
            "scheme": sections.scheme,
            **self.settings.scheme.name_parts(self.settings.parts),
            "rounds": str(self.settings.rounds),
            "clients": str(sections.federation.clients),
            "seed": str(sections.seed),
        }


@dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Result):
    """What training one run or several seeds of it came to.

    Parameters
    ----------
    folder : folder of the run, or of its seeds
    runs : summary of each run; the figures below are means over them
    learner_accuracy : of the true model on the validation set
    learner_balanced_accuracy, learner_auc, learner_f1 : its further scores there, None where they
        are not defined
    exposure : learning queries over all rounds
    completed : share of runs that owe no update at the end
    updates_done, updates_missing : updates of the true model, and updates still owed
    rounds, learning_queries : rounds of a run, and those that sent the true weights
    rejected_replies : replies that were not valid
    """

    folder: Path
    runs: tuple[RunSummary, ...]

    learner_accuracy: float = field(init=False)
    learner_balanced_accuracy: float | None = field(init=False)
    learner_auc: float | None = field(init=False)
    learner_f1: float | None = field(init=False)
    exposure: float = field(init=False)
    completed: float = field(init=False)
    updates_done: float = field(init=False)
    updates_missing: float = field(init=False)
    rounds: float = field(init=False)
    learning_queries: float = field(init=False)
    rejected_replies: float = field(init=False)

    def __post_init__(self) -> None:
        for mean in fields(self):
            if not mean.init:
                values = [getattr(run, mean.name) for run in self.runs]
                known = [float(value) for value in values if value is not None]
                object.__setattr__(self, mean.name, float(np.mean(known)) if known else None)

    def plot(self) -> Figure:
        """Return a figure of the true model's score and the exposure by round."""
        from covertfl.display.curves import plot_training

        folders = [self.folder / f"seed-{number}" for number in range(len(self.runs))]
        folders = folders if folders[0].is_dir() else [self.folder]
        records = [read_run_records(path) for path in folders]
        return plot_training(
            stack_by_round(records, "learner_score"), stack_by_round(records, "exposure")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl train --json` prints."""
        return {"out": str(self.folder), "runs": [run.to_dict() for run in self.runs]}

    def _facts(self) -> Mapping[str, str]:
        return {
            "runs": str(len(self.runs)),
            "learner accuracy": f"{self.learner_accuracy:.4f}",
            "exposure": f"{self.exposure:.1%}",
            "updates done": f"{self.updates_done:g}",
            "updates missing": f"{self.updates_missing:g}",
            "folder": str(self.folder),
        }

    def __rich__(self) -> RenderableType:
        from covertfl.display.run_tables import render_training

        return render_training(self.runs)


def nest_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a run file: each key in the section that has it."""
    sections, content = _list_sections(keys), dict[str, Any]()
    # What belongs to another scheme is refused with the run file.
    others = {name for scheme in SCHEMES.values() for name in scheme.sections}
    for key, value in keys.items():
        if key == "problem" and isinstance(value, FiniteHorizon | QueueProblem | LoadedProblem):
            loaded = resolve_problem(value)
            content |= describe_problem(loaded.problem)
            content |= {} if loaded.states is None else {"states": loaded.states.to_dict()}
        elif key in sections or key in others:
            plain = _plain(value)
            has_kind = "kind" in sections.get(key, ()) and isinstance(plain, str)
            section = {"kind": plain} if has_kind else plain
            content[key] = _merge(content.get(key), section, key)
        else:
            place = _find_section(key, sections)
            content[place] = _merge(content.get(place), {key: _plain(value)}, place)
    return content


def _list_sections(keys: Mapping[str, Any]) -> Sections:
    """Return the sections of run files of the scheme that the keys name."""
    name = keys.get("scheme", DEFAULT)
    model = find_model(find_scheme(name, "Run: scheme")) if isinstance(name, str) else RunSections
    return {
        name: tuple(getattr(field.annotation, "model_fields", ()))
        for name, field in model.model_fields.items()
    }


def _merge(before: Any, section: Any, name: str) -> Any:
    if not isinstance(before, dict) or not isinstance(section, dict):
        return dict(section) if isinstance(section, dict) else section
    twice = sorted(set(before) & set(section))
    if twice:
        raise InvalidInput(f"Run: [{name}] {twice[0]} must be given once, got it twice")
    return before | section


def _find_section(key: str, sections: Sections) -> str:
    places = [name for name, known in sections.items() if key in known]
    if len(places) == 1:
        return places[0]
    if places:
        ways = " or ".join(f"{name}={{{key!r}: ...}}" for name in places)
        raise InvalidInput(f"Run: {key} is a key of several sections; give it as {ways}")
    known = [*sections, *(name for names in sections.values() for name in names)]
    near = difflib.get_close_matches(key, known, n=1)
    hint = (
        f"; did you mean {near[0]}?" if near else f"; allowed are {', '.join(sorted(set(known)))}"
    )
    raise InvalidInput(f"Run: unknown key {key}{hint}")


def _plain(value: Any) -> Any:
    """Return what a run file could hold: paths as text, tuples and arrays as lists."""
    match value:
        case os.PathLike():
            return str(read_path(value, "a path"))
        case np.ndarray() | np.generic():
            return value.tolist()
        case Mapping():
            return {key: _plain(entry) for key, entry in value.items()}
        case list() | tuple():
            return [_plain(entry) for entry in value]
    return value
