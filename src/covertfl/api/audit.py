"""`audit`: what every kind of eavesdropper would have got from finished runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from covertfl.api.arguments import Source, read_path
from covertfl.api.result import Result
from covertfl.auditing import summary
from covertfl.auditing.folders import audit_folders, write_audit
from covertfl.auditing.summary import Threat
from covertfl.eavesdroppers.registry import EAVESDROPPERS
from covertfl.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType


@dataclass(frozen=True, eq=False, repr=False)
class AuditReport(Result):
    """What leaked, by eavesdropper.

    Parameters
    ----------
    details : the audit of each run, and all of them put together
    """

    details: summary.AuditReport

    @property
    def threats(self) -> tuple[Threat, ...]:
        """Return one entry per eavesdropper: `name`, `names_true`, `verdict` and more."""
        return self.details.threats

    @property
    def num_runs(self) -> int:
        """Return the number of runs that were audited."""
        return len(self.details.runs)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what stands against taking the audit at its word."""
        return tuple(self.to_dict()["warnings"])

    def find(self, name: str) -> Threat:
        """Return the entry of one eavesdropper."""
        for threat in self.threats:
            if threat.name == name:
                return threat
        known = ", ".join(threat.name for threat in self.threats)
        raise InvalidInput(f"name must be one of {known}, got {name!r}")

    def save(self, folder: Source) -> None:
        """Keep the audit in a run's folder, where `covertfl report` finds it."""
        write_audit(read_path(folder, "folder"), self.details)

    def plot(self) -> Figure:
        """Return a figure of how often each eavesdropper names the true model."""
        from covertfl.display.curves import plot_threats

        return plot_threats(self.threats)

    def to_dict(self) -> dict[str, Any]:
        """Return what `covertfl audit --json` prints."""
        return self.details.to_dict()

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
        from covertfl.display.audit_tables import render_audit

        return render_audit(self.details)


def audit(
    *folders: Source,
    eavesdroppers: Sequence[str] | None = None,
    on_progress: Callable[[str, float], None] | None = None,
) -> AuditReport:
    """Return what eavesdroppers would have got from runs that differ in their seeds only.

    Parameters
    ----------
    folders : of runs, of their seeds, or public folders that a client recorded
    eavesdroppers : names to audit, all that are possible where None
    on_progress : called with a detail and the share done

    Raises
    ------
    InvalidInput
        if a folder holds no run, or runs differ in more than their seeds
    """
    if not folders:
        raise InvalidInput("folders of runs are needed, got none")
    for name in eavesdroppers or ():
        if name not in EAVESDROPPERS:
            raise InvalidInput(f"eavesdroppers must be of {', '.join(EAVESDROPPERS)}, got {name!r}")
    paths = [read_path(folder, "folder") for folder in folders]
    return AuditReport(audit_folders(paths, names=eavesdroppers, on_progress=on_progress))
