"""The audit: what every kind of eavesdropper would have got from finished runs.

Eavesdroppers are fed the public folder alone.  The private folder, where there is one, only says
afterwards who was right, and the validation set what their weights are worth; neither reaches them.
A public folder by itself can be audited too: then it is not known which trajectory is the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from covertfl.eavesdroppers.eavesdropper import Eavesdropper, Means, Scheme, SeenQuery
from covertfl.eavesdroppers.registry import EAVESDROPPERS, list_possible
from covertfl.eavesdroppers.separation import Separator
from covertfl.errors import InvalidInput
from covertfl.kernels.job import LocalJob
from covertfl.kernels.weights import Layout, Vector, name_content
from covertfl.runs.build import KernelCache, build_federation
from covertfl.runs.clients import ClientResponder
from covertfl.runs.federation import Federation
from covertfl.runs.run_file import read_run
from covertfl.runs.transcript import SETTINGS, SUMMARY, PublicTranscript, read_lines

# The client that the eavesdroppers who take part are.
SPY = 0


@dataclass(frozen=True, eq=False)
class Overheard:
    """What clients were sent, told apart.

    Parameters
    ----------
    queries : in order
    layout : of the weights
    """

    queries: tuple[SeenQuery, ...]
    layout: Layout

    @property
    def num_trajectories(self) -> int:
        """Trajectories told apart."""
        return 1 + max(query.trajectory for query in self.queries)


@dataclass(frozen=True, eq=False)
class Finding:
    """What one eavesdropper made of one run.

    Parameters
    ----------
    named : 1 if its last belief is in the true trajectory, 0 if not, a share where it ties; None
        where the truth is not known
    accuracy : (N,) of its estimate after each round, None where there is nothing to score with
    belief : over trajectories, at the end
    """

    named: float | None
    accuracy: tuple[float, ...] | None
    belief: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class RunAudit:
    """The audit of one run.

    Parameters
    ----------
    path : its folder
    num_queries, num_trajectories : as overheard
    misplaced : queries that separation put on the wrong trajectory, None where it is not known
    findings : by eavesdropper
    summary : of the run, None for a public folder
    federation : that was run, None for a public folder
    private : records of the rounds, empty where there are none
    learner : (N,) accuracy of the true weights after each round, empty where it is not known
    """

    path: Path
    num_queries: int
    num_trajectories: int
    misplaced: int | None
    findings: Mapping[str, Finding]
    summary: Mapping[str, Any] | None
    federation: Federation | None
    private: tuple[Mapping[str, Any], ...]
    learner: tuple[float, ...]


def overhear(folder: Path, layout: Layout | None = None) -> Overheard:
    """Read a public folder and tell the trajectories in it apart.

    Parameters
    ----------
    layout : of the weights; taken from the first query where None
    """
    transcript, separator = PublicTranscript(folder), Separator()
    if not transcript.records:
        raise InvalidInput(f"{folder / 'rounds.jsonl'} holds no query")
    read: dict[str, Vector] = {}
    queries = []
    for record in transcript.records:
        if record.weights not in read:
            parts = _read_parts(transcript, record.weights, folder)
            layout = layout or _infer_layout(parts)
            read[record.weights] = _join(layout, parts, folder, record.weights)
        weights = read[record.weights]
        trajectory, moved = separator.place(weights)
        queries.append(SeenQuery(record.round, trajectory, weights, moved))
    assert layout is not None
    return Overheard(tuple(queries), layout)


def _read_parts(transcript: PublicTranscript, name: str, folder: Path) -> dict[str, Vector]:
    try:
        return transcript.read_weights(name)
    except KeyError as error:  # a kind of number that numpy does not have
        raise InvalidInput(
            f"{folder / 'weights' / name}.safetensors must hold numbers of 16, 32 or 64 bits that "
            f"numpy knows, got {error.args[0]}"
        ) from error


def _infer_layout(parts: Mapping[str, Vector]) -> Layout:
    names = tuple(sorted(parts))  # a file gives them in any order
    return Layout(names, tuple(parts[name].shape for name in names))


def _join(
    layout: Layout, parts: Mapping[str, npt.NDArray[np.floating]], folder: Path, name: str
) -> Vector:
    """The weights of a query; what cannot be compared with others is refused."""
    path = folder / "weights" / f"{name}.safetensors"
    try:
        weights = layout.join(parts)
    except InvalidInput as error:
        raise InvalidInput(f"{path} is of another model than the rest: {error}") from error
    if not np.isfinite(weights).all():
        raise InvalidInput(f"{path} must hold finite numbers, got NaN or infinity")
    return weights


def keep_recorded(
    overheard: Overheard, private: Sequence[Mapping[str, Any]], path: Path
) -> tuple[Overheard, tuple[Mapping[str, Any], ...]]:
    """The rounds that both sides have: in a run that was cut off one may be ahead.

    Raises
    ------
    InvalidInput
        where a run that has ended has more on one side than on the other
    """
    rounds = min(len(overheard.queries), len(private))
    if (path / SUMMARY).exists() and max(len(overheard.queries), len(private)) > rounds:
        raise InvalidInput(
            f"{path} must have as many public as private rounds, got {len(overheard.queries)} "
            f"and {len(private)}"
        )
    return Overheard(overheard.queries[:rounds], overheard.layout), tuple(private[:rounds])


def find_truth(
    overheard: Overheard, private: Sequence[Mapping[str, Any]]
) -> tuple[dict[int, bool], int]:
    """Which of the trajectories told apart are the true one, and how many queries went astray.

    A trajectory is taken for what most of its queries were.
    """
    actual = [int(record["trajectory"]) for record in private]
    owners: dict[int, list[int]] = {}
    for query, trajectory in zip(overheard.queries, actual, strict=True):
        owners.setdefault(query.trajectory, []).append(trajectory)
    main = {number: max(set(own), key=own.count) for number, own in owners.items()}
    astray = sum(owner != main[number] for number, own in owners.items() for owner in own)
    # A trajectory split in two is a failure as well: all but its largest part went astray.
    for trajectory in set(main.values()):
        parts = [
            own.count(trajectory) for number, own in owners.items() if main[number] == trajectory
        ]
        astray += sum(parts) - max(parts)
    return {number: owner == 0 for number, owner in main.items()}, astray


def listen(
    eavesdropper: Eavesdropper,
    queries: Sequence[SeenQuery],
    truth: Mapping[int, bool] | None,
    scores: ScoreBook | None,
) -> Finding:
    """Feed an eavesdropper the queries one by one and see what it makes of them."""
    curve = []
    for query in queries:
        eavesdropper.observe(query)
        if scores is not None:
            curve.append(scores.rate(eavesdropper.estimate()))
    belief = eavesdropper.belief()
    named = None
    if truth is not None:
        favourites = np.flatnonzero(belief >= belief.max() * (1.0 - 1e-12))
        named = float(np.mean([truth[int(number)] for number in favourites]))
    return Finding(named, tuple(curve) if scores is not None else None, tuple(belief.tolist()))


class ScoreBook:
    """Accuracies of weights, each worked out once."""

    def __init__(self, clients: ClientResponder) -> None:
        self._clients = clients
        self._known: dict[str, float] = {}

    def rate(self, candidates: Sequence[Vector]) -> float:
        """Mean accuracy of what an eavesdropper holds."""
        return float(np.mean([self._find(weights) for weights in candidates]))

    def _find(self, weights: Vector) -> float:
        key = name_content(weights.tobytes())  # the weights themselves would fill the memory
        if key not in self._known:
            self._known[key] = self._clients.score(weights)
        return self._known[key]


@dataclass(frozen=True, eq=False)
class OpenedRun:
    """A run's folder, read and told apart; what all of its eavesdroppers share.

    Parameters
    ----------
    path : the folder
    overheard : what clients were sent
    private : records of the rounds, empty where there are none
    federation : that was run; None for a public folder, and for a task made in Python
    """

    path: Path
    overheard: Overheard
    private: tuple[Mapping[str, Any], ...]
    federation: Federation | None

    @property
    def clients(self) -> ClientResponder | None:
        """The clients, where the run had some and they can be made again."""
        responder = None if self.federation is None else self.federation.responder
        return responder if isinstance(responder, ClientResponder) else None

    @cached_property
    def scores(self) -> ScoreBook | None:
        """Accuracies on the validation set, where there is one."""
        return None if self.clients is None else ScoreBook(self.clients)

    @cached_property
    def means(self) -> Means:
        """What an eavesdropper may have."""
        return Means() if self.federation is None else find_means(self.federation)


def open_run(path: Path, kernels: KernelCache) -> OpenedRun:
    """Read a run's folder, or a public folder such as a client recorded it."""
    if not (path / SETTINGS).exists():
        public = path / "public" if (path / "public").is_dir() else path
        if not (public / "rounds.jsonl").exists():
            raise InvalidInput(
                f"{public} is neither the folder of a run nor a public folder: "
                "run.toml or rounds.jsonl is needed"
            )
        return OpenedRun(path, overhear(public), (), None)
    settings = read_run(path / SETTINGS)
    # A task made in Python is not in its folder: weights cannot be scored, beliefs can.
    federation = None if settings.sections.task == "own" else build_federation(settings, kernels)
    overheard = overhear(
        path / "public", None if federation is None else federation.responder.layout
    )
    private_file = path / "private" / "rounds.jsonl"
    private: tuple[Mapping[str, Any], ...] = ()
    if private_file.exists():
        private = tuple(read_lines(private_file))
    if private:
        overheard, private = keep_recorded(overheard, private, path)
    return OpenedRun(path, overheard, private, federation)


def audit_run(path: Path, kernels: KernelCache, *, names: Sequence[str] | None = None) -> RunAudit:
    """Let every eavesdropper that can listen to a run's folder, or to a public folder."""
    return audit_opened(open_run(path, kernels), names=names)


def audit_opened(run: OpenedRun, *, names: Sequence[str] | None = None) -> RunAudit:
    """Let eavesdroppers listen to a run.

    Parameters
    ----------
    names : of eavesdroppers; all that are possible where None
    """
    _check_names(names)
    overheard, private = run.overheard, run.private
    truth, misplaced = find_truth(overheard, private) if private else (None, None)
    findings = {
        name: listen(EAVESDROPPERS[name](run.means), overheard.queries, truth, run.scores)
        for name in _choose_names(run.means, names)
    }
    learner: tuple[float, ...] = ()
    if private and run.clients is not None:  # the score of a function is no accuracy
        metrics = read_lines(run.path / "metrics.jsonl")
        learner = tuple(line["learner_score"] for line in metrics)[: len(private)]
    return RunAudit(
        run.path,
        len(overheard.queries),
        overheard.num_trajectories,
        misplaced,
        findings,
        _read_summary(run.path) if (run.path / SETTINGS).exists() else None,
        run.federation,
        private,
        learner,
    )


def _check_names(names: Sequence[str] | None) -> None:
    unknown = [name for name in names or () if name not in EAVESDROPPERS]
    if unknown:
        raise InvalidInput(
            f"an eavesdropper must be one of {', '.join(EAVESDROPPERS)}, got {unknown[0]!r}"
        )


def _choose_names(means: Means, names: Sequence[str] | None) -> list[str]:
    possible = list_possible(means)
    return possible if names is None else [name for name in possible if name in names]


def _read_summary(path: Path) -> Mapping[str, Any] | None:
    from covertfl.training import read_summary

    return read_summary(path) if (path / SUMMARY).exists() else None


def find_means(federation: Federation) -> Means:
    """All that an eavesdropper on a run may have: scheme, public set, a place among the clients."""
    scheme = Scheme(
        federation.problem,
        federation.policy.policy,
        federation.policy.takes_every_reply,
        federation.responder.num_decoys,
    )
    clients, settings = federation.responder, federation.settings
    if not isinstance(clients, ClientResponder):
        return Means(scheme=scheme)
    own = clients

    def reply(round_number: int, weights: Vector) -> LocalJob:
        batches = len(own.task.clients[SPY]) // settings.sections.federation.batch_size
        return own.make_client_job(SPY, max(batches, 1), weights, round_number)

    return Means(
        kernel=clients.kernel,
        data=clients.task.public,
        batch_size=settings.sections.federation.batch_size,
        scheme=scheme,
        reply=reply,
        seed=settings.seed,
    )
