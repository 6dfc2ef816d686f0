"""Federations of the paper's tables, trained on the package's own round, and what they come to.

Runs of one seed differ in their policies and in the public set, which the eavesdropper owns and the
decoy is made for.  They are trained side by side, so that the simulated engine trains what they
have in common once: the true trajectory of a policy, and what two policies do before they differ.

The metric is the same for every policy (D23): the accuracy of the eavesdropper's final estimate,
equation (6), and beside it the peak over all rounds.  A tie in the estimate counts half.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from covertfl.decision.problem import FiniteHorizon
from covertfl.decision.problem_file import read_preset_text
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.listeners import MajorityEavesdropper
from covertfl.evaluation.horizon import HorizonEvaluation, evaluate_horizon_policy
from covertfl.files.text import parse_toml
from covertfl.kernels.job import Examples, Vector
from covertfl.runs.engine import ClientWork, Validation, Work
from covertfl.runs.participation import Clients
from covertfl.runs.records import NoRecords
from covertfl.runs.round import Begun, run_rounds
from covertfl.runs.settings import build_run
from covertfl.runs.simulated import SimulatedEngine, run_together
from covertfl.runs.state import Federation, RunState, start_run
from covertfl.runs.train import KernelCache, build_federation, require_torch
from covertfl.schemes.decoys.decoy import Decoy
from covertfl.schemes.decoys.registry import make_decoy
from covertfl.schemes.policies import RunPolicy
from covertfl.schemes.scheduled import Scheduled
from covertfl.schemes.scheme import Outcome, Query, Scheme
from covertfl.tasks.registry import make_task
from covertfl.tasks.task import DataSettings, DirichletSplit, TrainingTask
from paper.averages import DIGITS, average, average_estimate, average_levels, round_curve, share
from paper.cells import CellStore, Key
from paper.experiment import Reading

Transition = tuple[tuple[float, ...], ...]

BATCH_SIZE = 40  # the paper's
CELL_FORM = 5  # of the content of a cell; another number where what it means has changed
# Digits of an accuracy in a cell; results have fewer, and must not be rounded twice.
CELL_DIGITS = 9


@dataclass(frozen=True)
class PublicData:
    """The data of the eavesdropper.

    Parameters
    ----------
    size : relative to a client's data
    positive_share : share of toxic comments
    classes, class_share : number of good classes of images; their share, None for the natural
    """

    size: float = 1.0
    positive_share: float = 0.1
    classes: int | None = None
    class_share: float | None = None


@dataclass(frozen=True)
class Setup:
    """A federation, and the problem that its policies are solved for; policy and seed are open.

    Parameters
    ----------
    reading, preset : of the problem
    rounds, updates : N and M
    clients, participation : how many, and how many take part by oracle state
    acceptance, min_share : when a round is a success
    learning_rate : of the clients' Adam, or of the server's with fedsgd
    thinning : every how-many-th example is used, 1 for all
    client_thinning : every how-many-th example of a client is used, on top of that
    split : concentration of a Dirichlet split by class, None for clients that are alike
    transition : of the oracle, None for the preset's
    """

    task: Literal["toxicity", "mnist", "digits"]
    reading: Reading
    rounds: int
    updates: int
    clients: int
    participation: tuple[int, ...]
    preset: str = "main"
    model: str | None = None
    acceptance: Literal["data", "model"] = "data"
    min_share: float = 0.25
    algorithm: Literal["fedavg", "fedsgd"] = "fedavg"
    learning_rate: float = 1e-3
    thinning: int = 1
    client_thinning: int = 1
    split: float | None = None
    transition: Transition | None = None

    def describe(self) -> dict[str, Any]:
        """Return the settings as keys of cells and results hold them."""
        return asdict(self)


def choose_acceptance(reading: Reading) -> Literal["data", "model"]:
    """Return `data` in the sound reading, `model` (printed probabilities) in the paper's (D19)."""
    return "data" if reading == "sound" else "model"


def choose_learning_rate(reading: Reading) -> float:
    """Return the learning rate of the paper's text, or of its published code (D24)."""
    return 1e-4 if reading == "paper-code" else 1e-3


@dataclass(frozen=True)
class Condition:
    """A policy, the data of the eavesdropper, and the decoy that is used against it."""

    policy: str
    public: PublicData
    decoy: str = "public"


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """One run against one eavesdropper.

    Parameters
    ----------
    learner : (N,) accuracy of the true weights after each round
    eavesdropper : (N,) accuracy of the estimate after each round
    peak, final : largest accuracy of the estimate over rounds, and that of the last estimate, on
        the whole validation set
    named : 1 if the last estimate is the true trajectory, 0.5 in a tie
    exposure : share of learning queries among rounds
    completed : whether no update is owed
    expected : exact costs and probabilities of the run's policy
    """

    learner: list[float]
    eavesdropper: list[float]
    peak: float
    final: float
    named: float
    exposure: float
    completed: bool
    updates: int
    expected: HorizonEvaluation


# --- federations ---------------------------------------------------------------------------------


def make_run_content(setup: Setup, policy: str, seed: int, device: str) -> dict[str, Any]:
    """Return the content of a run file for one run; its decoy is ungated, as the paper's is."""
    problem = parse_toml(read_preset_text(f"{setup.reading}/{setup.preset}"), setup.preset)
    problem["horizon"] = {"rounds": setup.rounds, "updates": setup.updates}
    if setup.transition is not None:
        rows = [list(row) for row in setup.transition]
        problem["oracle"] = {**problem["oracle"], "transition": rows}
    return {
        "task": "own",
        "seed": seed,
        "federation": {
            "clients": setup.clients,
            "participation": list(setup.participation),
            "acceptance": setup.acceptance,
            "min_share": setup.min_share,
            "algorithm": setup.algorithm,
            "optimizer": {"name": "adam", "lr": setup.learning_rate},
            "batch_size": BATCH_SIZE,
        },
        "policy": {"kind": policy},
        "decoy": {"kind": "public", "gated": False},
        "engine": {"device": device},
        **problem,
    }


def load_task(setup: Setup, seed: int, public: PublicData) -> TrainingTask:
    """Load model and data; all but the public set does not depend on what is public."""
    settings = DataSettings(
        task=setup.task,
        seed=seed,
        clients=setup.clients,
        split="iid" if setup.split is None else DirichletSplit(dirichlet=setup.split),
        public_size=public.size,
        public_positive_share=public.positive_share,
        public_classes=public.classes,
        public_class_share=public.class_share,
        model=setup.model,
        same_clients=True,
    )
    task = make_task(settings)
    assert isinstance(task, TrainingTask)
    stride = setup.thinning * setup.client_thinning
    return replace(
        task,
        clients=tuple(np.ascontiguousarray(rows[::stride]) for rows in task.clients),
        public=take_part(task.public, setup.thinning),
        validation=take_part(task.validation, setup.thinning),
    )


class SparingClients(SimulatedEngine):
    """Clients that do not train in rounds that are not accepted, whose replies move nothing."""

    def ask(self, query: Query, scheme: Scheme, clients: Clients) -> Generator[Work, Any, Outcome]:
        """Send a query, unless the data of the round are too few or it fails at random."""
        here = self.draw_clients(query, clients)
        examples = self.count_examples(here, clients)
        if self.accepts(query, clients, examples):
            return (yield from super().ask(query, scheme, clients))
        fault = partial(scheme.fault, query)
        none = yield ClientWork(query.round, query.payload, here, clients, fault, needed=False)
        return Outcome(here.clients, here.batches, examples, none, accepted=False)


def take_part(examples: Examples, stride: int) -> Examples:
    """Return every `stride`-th example."""
    if stride == 1:
        return examples
    features = np.ascontiguousarray(examples.features[::stride])
    return Examples(features, examples.labels[::stride].copy())


def prepare_runs(
    setup: Setup,
    seed: int,
    conditions: Sequence[Condition],
    kernels: KernelCache,
    *,
    device: str,
    stride: int,
) -> list[Federation]:
    """Return the federations of a seed's runs; their weights are scored on part of the images.

    Each policy is solved for once.  Clients, validation set and model are the same objects in all
    of them, so that the engine knows what they have in common.
    """
    whole = load_task(setup, seed, PublicData())
    task = replace(whole, validation=take_part(whole.validation, stride))
    solved: dict[str, Federation] = {}
    for policy in dict.fromkeys(condition.policy for condition in conditions):
        content = make_run_content(setup, policy, seed, device)
        settings = build_run(content, "reproduce", folder=Path()).with_task(task)
        solved[policy] = build_federation(settings, kernels)

    @lru_cache(None)
    def make_parts(public: PublicData, decoy: str) -> tuple[Clients, Decoy]:
        """Return what belongs to a public set, the same for all policies."""
        own = replace(task, public=load_task(setup, seed, public).public)
        optimizer = next(iter(solved.values())).scheme.setup.optimizer
        algorithm = setup.algorithm
        made = make_decoy(
            decoy, own, batch_size=BATCH_SIZE, algorithm=algorithm, optimizer=optimizer
        )
        return Clients(own), made

    found = []
    for one in conditions:
        federation, (clients, decoy) = solved[one.policy], make_parts(one.public, one.decoy)
        scheme, engine = find_scheme(federation), federation.engine
        if not scheme.policy.takes_every_reply:
            assert isinstance(engine, SimulatedEngine)
            engine = SparingClients(engine.settings, engine.acceptance)
        scheme = replace(scheme, decoy=decoy)
        found.append(replace(federation, scheme=scheme, engine=engine, clients=clients))
    return found


def find_scheme(federation: Federation) -> Scheduled:
    """Return the scheme of a federation."""
    assert isinstance(federation.scheme, Scheduled)
    return federation.scheme


def find_policy(federation: Federation) -> RunPolicy:
    """Return the policy of a federation."""
    return find_scheme(federation).policy


# --- runs ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Settled:
    """Ends a run whose rounds that are left change nothing that is asked for.

    Nothing is owed, so that they all obfuscate, and learning queries stay in the majority.
    """

    federation: Federation

    def begin(self, state: RunState, *, is_repeated: bool) -> Begun | None:
        """Return what the next round starts from, None to end the run."""
        is_certain = 2 * state.learning_queries > self.federation.settings.rounds
        takes_every_reply = find_policy(self.federation).takes_every_reply
        is_done = state.queue.backlog == 0 and not takes_every_reply
        return None if is_done and is_certain else Begun(state, self.federation.clients)


Place = tuple[int, int]  # a trajectory, 0 for the true one, and a number of its moves


class Listening:
    """A run that is under way, and the estimate of the eavesdropper after each of its rounds.

    Accuracies during the run may be those on part of the images.  Some weights are rated again on
    all images: those of the last estimate, and the best of each trajectory (`list_rated`).
    """

    def __init__(self, start: RunState) -> None:
        self._eavesdropper = MajorityEavesdropper(Means())
        self._sent: dict[int, tuple[Place, Vector]] = {}  # by trajectory, as they were first seen
        self._held: list[list[Place]] = []
        self._learner: list[Place] = []
        self._accuracies: dict[Place, float] = {}
        self._kept: dict[str, tuple[Place, Vector]] = {}
        self._last: dict[Place, Vector] = {}
        self._state = start
        self._keep("first", *self._look(0))
        self._keep_best("best", *self._look(0))

    def _look(self, trajectory: int) -> tuple[Place, Vector]:
        """Return the present weights of a trajectory, and note their accuracy."""
        shown = self._state.scheme
        place = trajectory, (shown.updates, shown.moves)[trajectory]
        self._accuracies[place] = round(self._state.scores[trajectory], CELL_DIGITS)
        return place, (shown.true, shown.decoy)[trajectory]

    def _keep(self, name: str, place: Place, weights: Vector) -> None:
        self._kept[name] = place, weights

    def _keep_best(self, name: str, place: Place, weights: Vector) -> None:
        """Keep weights if they are more accurate than all before."""
        known = self._kept.get(name)
        if known is None or self._accuracies[place] > self._accuracies[known[0]]:
            self._keep(name, place, weights)

    def hear(self, after: RunState) -> None:
        """Take note of a round; what was queried in it were weights of the state before."""
        counts = zip(self._state.queries, after.queries, strict=True)
        trajectory = next(n for n, (before, now) in enumerate(counts) if now > before)
        self._sent[trajectory] = place, weights = self._look(trajectory)
        number = list(self._sent).index(trajectory)
        self._eavesdropper.observe(SeenQuery(after.round, number, weights, None))
        estimate = self._eavesdropper.estimate()
        self._last = {
            place: weights
            for place, weights in self._sent.values()
            if any(weights is one for one in estimate)
        }
        self._held.append(sorted(self._last))
        for place, weights in self._last.items():
            if place[0] > 0:
                self._keep("last decoy", place, weights)
                self._keep_best("best decoy", place, weights)
        self._state = after
        self._keep("last", *self._look(0))
        self._keep_best("best", *self._look(0))
        self._learner.append(self._kept["last"][0])

    def list_rated(self) -> dict[Place, Vector]:
        """Return the weights that are rated on all images, once the run has ended."""
        names = {"best", "last", "best decoy", "last decoy"}
        if all(trajectory > 0 for trajectory, _ in self._last):
            names.add("first")
        return self._last | dict(kept for name, kept in self._kept.items() if name in names)

    def judge(
        self, rated: Mapping[Place, float] | None, expected: HorizonEvaluation, rounds: int
    ) -> RunOutcome:
        """Return what became of the run; `rated` are accuracies on all images, None if all are."""
        full = self._accuracies if rated is None else rated
        left = rounds - len(self._held)  # as the last one
        held, learner = ([*places, *places[-1:] * left] for places in (self._held, self._learner))
        known = self._accuracies | dict(full)
        is_true, is_decoy = (
            any((trajectory > 0) == kind for trajectory, _ in self._last) for kind in (False, True)
        )
        return RunOutcome(
            [known[place] for place in learner],
            [_average_held(places, known) for places in held],
            max(_average_held(places, full) for places in held if full.keys() >= set(places)),
            _average_held(held[-1], full),
            0.5 * (is_true + (not is_decoy)),
            self._state.learning_queries / rounds,
            self._state.queue.backlog == 0,
            self._state.updates,
            expected,
        )


def _average_held(held: Sequence[Place], accuracies: Mapping[Place, float]) -> float:
    """Return the accuracy of an estimate, the mean of both trajectories in a tie."""
    return sum(accuracies[place] for place in held) / len(held)


@dataclass(frozen=True)
class Batch:
    """Runs that are trained side by side.

    Parameters
    ----------
    runs : seed and condition of each
    stride : weights are scored on one in so many images, the last and the best ones on all
    """

    setup: Setup
    runs: tuple[tuple[int, Condition], ...]
    device: str
    stride: int

    def make_key(self, seed: int, condition: Condition) -> Key:
        """Return the key of an outcome's cell; a GPU and a CPU give different ones."""
        return {
            "part": "outcome",
            "form": CELL_FORM,
            "setup": self.setup.describe(),
            "seed": seed,
            "condition": asdict(condition),
            "device": self.device.partition(":")[0],
            "stride": self.stride,
        }


def train(
    batch: Batch, on_share: Callable[[float], None] | None = None
) -> tuple[list[RunOutcome], int]:
    """Train runs side by side; return their outcomes and the number of examples trained on.

    `on_share` is called with the share of the rounds that are done.
    """
    require_torch()
    kernels, federations = KernelCache(), list[Federation]()
    for seed in dict.fromkeys(seed for seed, _ in batch.runs):
        own = [condition for other, condition in batch.runs if other == seed]
        federations += prepare_runs(
            batch.setup, seed, own, kernels, device=batch.device, stride=batch.stride
        )
    starts = start_all(federations)
    heard = [Listening(state) for state in starts]
    examples = done = 0

    def count(trained: int) -> None:
        nonlocal examples
        examples += trained

    def hear(listening: Listening, state: RunState) -> None:
        nonlocal done
        done += 1
        listening.hear(state)
        if on_share is not None:
            on_share(done / (len(federations) * batch.setup.rounds))

    parts = zip(federations, starts, heard, strict=True)
    run_together(
        [
            (run, run_rounds(run, NoRecords(), start, partial(hear, one), Settled(run)))
            for run, start, one in parts
        ],
        on_examples=count,
    )
    rated = (
        [None] * len(heard) if batch.stride == 1 else rate_fully(batch.setup, federations, heard)
    )
    policies = {find_policy(run): run for run in federations}
    expected = {policy: evaluate(run) for policy, run in policies.items()}
    return [
        listening.judge(full, expected[find_policy(run)], batch.setup.rounds)
        for listening, full, run in zip(heard, rated, federations, strict=True)
    ], examples


def start_all(federations: Sequence[Federation]) -> list[RunState]:
    """Return the first states of runs, whose weights are the same objects in all of a seed."""
    first: dict[int, RunState] = {}
    found = []
    for federation in federations:
        seed = federation.settings.seed
        if seed not in first:
            first[seed] = start_run(federation)
        weights = replace(first[seed].scheme, policy=find_policy(federation).policy)
        found.append(replace(first[seed], scheme=weights))
    return found


def rate_fully(
    setup: Setup, federations: Sequence[Federation], heard: Sequence[Listening]
) -> list[dict[Place, float]]:
    """Return the accuracies on all images where they are asked for, of equal weights found once."""
    wanted: dict[int, Vector] = {}
    for listening in heard:
        wanted |= {id(weights): weights for weights in listening.list_rated().values()}
    run = federations[0]
    whole = load_task(setup, run.settings.seed, PublicData()).validation
    judges = Validation(replace(run.task, validation=whole), run.kernel)
    found = dict(zip(wanted, judges.score_all(list(wanted.values())), strict=True))
    return [
        {
            place: round(found[id(weights)], CELL_DIGITS)
            for place, weights in listening.list_rated().items()
        }
        for listening in heard
    ]


def evaluate(federation: Federation) -> HorizonEvaluation:
    """Return the exact costs and probabilities of a policy, first oracle state stationary."""
    assert isinstance(federation.problem, FiniteHorizon)
    return evaluate_horizon_policy(federation.problem, find_policy(federation).policy)


# --- outcomes ------------------------------------------------------------------------------------


def compute_outcomes(
    setup: Setup,
    seeds: Sequence[int],
    conditions: Sequence[Condition],
    store: CellStore,
    *,
    device: str = "cpu",
    stride: int = 1,
) -> tuple[dict[Condition, list[RunOutcome]], int]:
    """Return the outcomes of each condition by seed, and the number of examples trained on.

    Outcomes that are not in the store are computed: on a CPU those of each seed are trained side
    by side, seeds in several processes; on a GPU all of them are.
    """
    asked = Batch(setup, tuple((s, one) for s in seeds for one in conditions), device, stride)
    found = {run: store.find(asked.make_key(*run)) for run in asked.runs}
    missing = [run for run, content in found.items() if content is None]
    if device == "cpu":
        left = dict.fromkeys(seed for seed, _ in missing)
        groups = {f"seed {n}": [run for run in missing if run[0] == n] for n in left}
    else:
        groups = {"runs": missing} if missing else {}
    batches = {name: replace(asked, runs=tuple(runs)) for name, runs in groups.items()}
    report = partial(store.report, "rounds") if device != "cpu" else None
    work = {name: partial(train, batch, report) for name, batch in batches.items()}
    for name, (outcomes, examples), seconds in store.compute(work):
        runs = batches[name].runs
        for number, (run, outcome) in enumerate(zip(runs, outcomes, strict=True)):
            # The examples of a batch are divided among its runs, without a rest.
            part = examples // len(runs) + (number < examples % len(runs))
            content = {**vars(outcome), "expected": vars(outcome.expected), "examples": part}
            found[run] = store.keep(asked.make_key(*run), content, seconds / len(runs))
    kept = {run: dict(content) for run, content in found.items() if content is not None}
    total = sum(content.pop("examples") for content in kept.values())
    outcomes_by = {one: [_unpack_outcome(kept[seed, one]) for seed in seeds] for one in conditions}
    return outcomes_by, total


def _unpack_outcome(content: Mapping[str, Any]) -> RunOutcome:
    return RunOutcome(**{**content, "expected": HorizonEvaluation(**content["expected"])})


def make_row(outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """Return a row of a table: means over seeds and shares, with intervals (see `averages`).

    `expected` has the exact probabilities, averaged over the runs' policies.
    """
    learner, named = [run.learner[-1] for run in outcomes], [run.named for run in outcomes]
    final, exact = [run.final for run in outcomes], [run.expected for run in outcomes]
    expected = {
        "completion": [each.finish_prob for each in exact],
        "exposure": [each.exposure for each in exact],
        "minority": [each.minority_prob for each in exact],
        "named": [each.named_prob for each in exact],
    }
    return {
        "seeds": len(outcomes),
        "learner": average(learner, most=1.0),
        "eavesdropper": average_estimate(final, named, expected["named"], learner),
        "worst": average_levels([run.peak for run in outcomes], most=1.0),
        "named": share(named),
        "exposure": average_levels([run.exposure for run in outcomes], most=1.0),
        "completion": share([float(run.completed) for run in outcomes]),
        "updates": average([float(run.updates) for run in outcomes]),
        "expected": {
            name: round(float(np.mean(probs)), DIGITS) for name, probs in expected.items()
        },
        "by_seed": {
            "learner": round_curve(learner),
            "eavesdropper": round_curve(final),
            "exposure": round_curve([run.exposure for run in outcomes]),
        },
    }
