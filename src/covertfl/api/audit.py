"""`audit`: what every kind of eavesdropper would have got from finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from covertfl.api.result import Result
from covertfl.auditing import summary
from covertfl.auditing.folders import audit_folders, write_audit
from covertfl.auditing.threats import Threat
from covertfl.decision.arguments import Source, read_callback, read_count, read_path
from covertfl.eavesdroppers.registry import EAVESDROPPER_PLUG_INS, EAVESDROPPERS
from covertfl.errors import InvalidInput
from covertfl.tasks.task import TrainingTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class AuditReport(summary.AuditSummary, Result):
    """What eavesdroppers get from runs that differ in their seeds only.

    Parameters
    ----------
    num_runs : number of audited runs
    learner : its accuracy, completion and exposure
    threats : one entry per eavesdropper, with its `name`, `names_true`, `verdict` and more
    bound : largest probability of naming the true trajectory by the schedule alone (formula F4 of
        docs/paper_map.md), None if it does not apply
    coalitions : what clients that pool their queries get, one entry for each size
    separation : how well queries were separated into trajectories
    mismatch : test of the rounds against the problem's oracle, None if it cannot be made
    notes : reasons to read the figures with care
    trajectories : rounds of the queries on each trajectory of a single run; empty for several
    not_tried : what eavesdroppers that were not tried would need, by name
    """

    __repr__ = Result.__repr__

    def find(self, name: str) -> Threat:
        """Return the entry of one eavesdropper."""
        for threat in self.threats:
            if threat.name == name:
                return threat
        known = ", ".join(threat.name for threat in self.threats)
        raise InvalidInput(f"name must be one of {known}, got {name!r}")

    def save(self, folder: Source) -> None:
        """Keep the audit in a run's folder, where `covertfl report` finds it."""
        write_audit(read_path(folder, "folder"), self)

    def plot(self) -> Figure:
        """Return a figure of how often each eavesdropper names the true model."""
        from covertfl.display.curves import plot_threats

        return plot_threats(self.threats)

    def _facts(self) -> Mapping[str, str]:
        return {
            "runs": str(self.num_runs),
            **{
                threat.name: f"{threat.names_true:.0%}"
                for threat in self.threats
                if threat.names_true is not None
            },
        }

    def __rich__(self) -> RenderableType:
        from covertfl.display.run_tables import render_audit

        return render_audit(self)


def audit(
    *folders: Source,
    eavesdroppers: Sequence[str] | None = None,
    task: TrainingTask | str | None = None,
    trajectories: int | None = None,
    rehearsals: int | None = 0,
    trained: int = 0,
    trained_on: Literal["public", "federation"] = "public",
    on_progress: Callable[[str, float], None] | None = None,
) -> AuditReport:
    """Return what eavesdroppers would have got from runs that differ in their seeds only.

    Parameters
    ----------
    folders : folders of runs or of their seeds, or public folders that a client recorded
    eavesdroppers : names to audit, those of plug-ins included; all that are built in and possible
        where None
    task : that the runs had, if it was made in Python, or "module:function" that returns it, whose
        code is run; with a public folder, the task whose model and data eavesdroppers have
    trajectories : number of trajectories (K) that eavesdroppers know of; None for that of the
        settings, which a public folder does not have
    rehearsals : number of simulated runs of the same settings that a single run is compared with,
        which takes about a second for each; None for as many as `covertfl audit` makes
    trained : number of simulated runs that the eavesdroppers `trained`, `trained-public` and
        `trained-listener` learn from; 0 to leave these out
    trained_on : "public" for runs that an eavesdropper can simulate from the public set,
        "federation" for runs of the same federation with the answers given, an upper bound
    on_progress : called with a detail and the share done

    Raises
    ------
    InvalidInput
        if a folder holds no run, runs differ in more than their seeds, `rehearsals` is given with
        several runs, or a task or a plug-in cannot be used
    """
    if not folders:
        raise InvalidInput("folders of runs are needed, got none")
    if eavesdroppers is not None:
        _check_names(eavesdroppers)
    if trajectories is not None:
        read_count(trajectories, "trajectories", least=2)
    if rehearsals is not None:
        read_count(rehearsals, "rehearsals", least=0)
    read_count(trained, "trained", least=0)
    if trained_on not in ("public", "federation"):
        raise InvalidInput(f"trained_on must be public or federation, got {trained_on!r}")
    if not isinstance(task, TrainingTask | str | None):
        raise InvalidInput(f"task must be a TrainingTask or module:function, got {task!r}")
    paths = [read_path(folder, "folder") for folder in folders]
    found = audit_folders(
        paths,
        names=eavesdroppers,
        task=task,
        trajectories=trajectories,
        rehearsals=rehearsals,
        trained=trained,
        trained_on=trained_on,
        on_progress=read_callback(on_progress, "on_progress"),
    )
    return AuditReport(**{field.name: getattr(found, field.name) for field in fields(found)})


def _check_names(names: Sequence[str]) -> None:
    known = ", ".join(EAVESDROPPERS)
    if isinstance(names, str | bytes) or not isinstance(names, Sequence) or not names:
        raise InvalidInput(f"eavesdroppers must be a list of {known}, got {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"eavesdroppers must be of {known}, got {name!r}")
        EAVESDROPPER_PLUG_INS.check(name, "eavesdroppers")
