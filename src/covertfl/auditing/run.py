"""The audit of one run: every eavesdropper is shown the queries of its public folder.

Eavesdroppers see the public folder only.  The private folder decides afterwards who was right, and
the validation set how accurate the captured weights are; neither is shown to an eavesdropper.  A
public folder by itself can be audited too; which trajectory is true is then unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from covertfl.auditing.overheard import (
    Queries,
    Records,
    find_first_matrix,
    find_truth,
    keep_recorded,
    overhear,
)
from covertfl.auditing.threats import Finding, ScoreCache, listen
from covertfl.eavesdroppers.eavesdropper import Means, Scheme
from covertfl.eavesdroppers.registry import EAVESDROPPERS, list_possible
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Vector
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import Federation
from covertfl.runs.files import SETTINGS, read_lines
from covertfl.runs.run_file import read_run
from covertfl.runs.summary import SUMMARY, RunSummary, read_summary

SPY = 0  # the client that an eavesdropper is which takes part in the training


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


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run's folder with its queries linked, shared by all of its eavesdroppers.

    Parameters
    ----------
    private : records of the rounds, empty if there are none
    federation : that was run; None for a public folder, and for a task defined in Python
    trajectories : number of trajectories, which is public; None if unknown
    """

    path: Path
    queries: Queries
    private: Records
    federation: Federation | None
    trajectories: int | None = None

    @property
    def part(self) -> slice | None:
        """Return the coordinates by which queries are linked, None for all."""
        layout = None if self.federation is None else self.federation.responder.layout
        pivot = None if layout is None else find_first_matrix(layout)
        return None if layout is None or pivot is None else layout.locate(pivot)

    @property
    def clients(self) -> ClientResponder | None:
        """Return the run's clients, None if it has none or they cannot be built again."""
        responder = None if self.federation is None else self.federation.responder
        return responder if isinstance(responder, ClientResponder) else None

    @cached_property
    def scores(self) -> ScoreCache | None:
        """Return accuracies on the validation set, None if there is no such set."""
        return None if self.clients is None else ScoreCache(self.clients)

    @cached_property
    def means(self) -> Means:
        """Return what an eavesdropper may own and know."""
        return Means() if self.federation is None else find_means(self.federation)


def load_run(path: Path, kernels: KernelCache, *, trajectories: int | None = None) -> LoadedRun:
    """Read a run's folder, or a public folder as a client recorded it.

    Parameters
    ----------
    trajectories : number of trajectories; None for that of the run file, unknown without one
    """
    if not (path / SETTINGS).exists():
        public = path / "public" if (path / "public").is_dir() else path
        if not (public / "rounds.jsonl").exists():
            raise InvalidInput(
                f"{public} is neither the folder of a run nor a public folder: "
                "run.toml or rounds.jsonl is needed"
            )
        queries = overhear(public, trajectories=trajectories)
        return LoadedRun(path, queries, (), None, trajectories)
    settings = read_run(path / SETTINGS)
    trajectories = trajectories or 1 + settings.decoy_rule.num_decoys
    # A task defined in Python is not in its folder: weights cannot be scored, beliefs can.
    federation = None if settings.sections.task == "own" else build_federation(settings, kernels)
    layout = None if federation is None else federation.responder.layout
    pivot = None if layout is None else find_first_matrix(layout)
    queries = overhear(path / "public", layout, trajectories=trajectories, pivot=pivot)
    private_file = path / "private" / "rounds.jsonl"
    private: Records = tuple(read_lines(private_file)) if private_file.exists() else ()
    if private:
        queries, private = keep_recorded(queries, private, path)
    return LoadedRun(path, queries, private, federation, trajectories)


def audit_run(path: Path, kernels: KernelCache, *, names: Sequence[str] | None = None) -> RunAudit:
    """Load a run's folder, or a public folder, and audit it; `names` as in `audit_loaded_run`."""
    return audit_loaded_run(load_run(path, kernels), names=names)


def audit_loaded_run(run: LoadedRun, *, names: Sequence[str] | None = None) -> RunAudit:
    """Show eavesdroppers the queries of a run and return what they found.

    Parameters
    ----------
    names : of eavesdroppers; all that the run allows if None

    Raises
    ------
    InvalidInput
        if a name is not that of an eavesdropper
    """
    for name in names or ():
        if name not in EAVESDROPPERS:
            raise InvalidInput(
                f"an eavesdropper must be one of {', '.join(EAVESDROPPERS)}, got {name!r}"
            )
    truth, misplaced = find_truth(run.queries, run.private) if run.private else (None, None)
    findings = {
        name: listen(EAVESDROPPERS[name](run.means), run.queries, truth, run.scores)
        for name in list_possible(run.means)
        if names is None or name in names
    }
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
    )


def _read_learner_curve(run: LoadedRun) -> tuple[float, ...]:
    if not run.private or run.clients is None:  # the score of a function is not an accuracy
        return ()
    metrics = read_lines(run.path / "metrics.jsonl")
    return tuple(line["learner_score"] for line in metrics)[: len(run.private)]


def find_means(federation: Federation) -> Means:
    """Return all that an eavesdropper may have: scheme, public set, a place among the clients."""
    scheme = Scheme(
        federation.problem,
        federation.policy_of_truth,
        federation.policy.takes_every_reply,
        federation.settings.decoy_rule,
    )
    clients, settings = federation.responder, federation.settings
    if not isinstance(clients, ClientResponder):
        return Means(scheme=scheme)
    batch_size = settings.sections.federation.batch_size
    batches = max(len(clients.task.clients[SPY]) // batch_size, 1)

    def reply(round_number: int, weights: Vector) -> LocalJob:
        return clients.make_client_job(SPY, batches, weights, round_number)

    return Means(
        kernel=clients.kernel,
        data=clients.task.public,
        batch_size=batch_size,
        scheme=scheme,
        reply=reply,
        seed=settings.seed,
    )
