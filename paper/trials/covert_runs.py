"""Learner and eavesdropper of many runs: the part that the paper's tables have in common.

The metric is the same for every policy (D23): the accuracy of the eavesdropper's final estimate,
equation (6), and beside it the peak over all rounds.  A tie in the estimate counts half.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from covertfl.evaluation.horizon import HorizonEvaluation
from covertfl.kernels.job import LocalKernel
from covertfl.kernels.weights import Vector
from paper.trials.averages import (
    DIGITS,
    average,
    average_estimate,
    average_levels,
    round_curve,
    share,
)
from paper.trials.batches import run_walks
from paper.trials.cells import CellStore, Key
from paper.trials.schedule import Held, Schedule, follow_estimate, list_needed_moves, score_estimate
from paper.trials.scorer import Scorer
from paper.trials.setups import PublicData, load_task
from paper.trials.trial import Trial
from paper.trials.walks import SharedSteps, Trajectory, Walk, walk_decoy, walk_truth


@dataclass(frozen=True)
class Eavesdropping:
    """The data of an eavesdropper, and the decoy that is used against it."""

    public: PublicData
    decoy: str = "public"

    def describe(self) -> dict[str, Any]:
        """Return the content that keys of cells hold."""
        return {"public": vars(self.public), "decoy": self.decoy}


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


def judge(
    schedule: Schedule, truth: Trajectory, decoy: Trajectory, expected: HorizonEvaluation
) -> RunOutcome:
    """Combine a run's trajectories to what the eavesdropper's estimate, equation (6), reaches."""
    held = follow_estimate(schedule)
    true, other = truth.coarse | truth.full, decoy.coarse | decoy.full
    curve = [_rate(entry, true, other) for entry in held]
    exact = [
        _rate(entry, truth.full, decoy.full)
        for entry in held
        if (entry.true is None or entry.true in truth.full)
        and (entry.decoy is None or entry.decoy in decoy.full)
    ]
    updates, learner = 0, []
    for learns, moves in zip(schedule.learns, schedule.moves, strict=True):
        updates += learns and moves
        learner.append(true[updates])
    return RunOutcome(
        learner,
        curve,
        max(exact),
        _rate(held[-1], truth.full, decoy.full),
        score_estimate(held[-1]),
        schedule.exposure,
        schedule.is_completed,
        updates,
        expected,
    )


def _rate(held: Held, true: Mapping[int, float], decoy: Mapping[int, float]) -> float:
    """Return the accuracy of an estimate, the mean of both trajectories in a tie."""
    parts = [] if held.true is None else [true[held.true]]
    if held.decoy is not None:
        parts.append(decoy[held.decoy])
    return sum(parts) / len(parts)


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


CELL_FORM = 4  # of the content of a cell; another number where what it means has changed
# Digits of an accuracy in a cell; results have fewer, and must not be rounded twice.
CELL_DIGITS = 9
# Examples in a decoy's move for each one that the paper's decoy uses.
_EFFORT = {"public": 1, "adversarial": 12}
# Numbers of a trial and of an eavesdropper; None for the true trajectory, the same for all.
Place = tuple[int, int | None]


@dataclass(frozen=True, eq=False)
class Part:
    """One trajectory of a trial.

    Parameters
    ----------
    against : the eavesdropper that the decoy is made for, None for the true trajectory
    needed : numbers of moves after which the decoy's weights are held, in increasing order
    truth : true weights by number of updates, for decoys that use them
    keeps_weights : whether the true weights are returned, by number of updates
    """

    trial: Trial
    against: Eavesdropping | None
    needed: Sequence[int] = ()
    truth: Sequence[Vector] = ()
    keeps_weights: bool = False

    def make_key(self, stride: int) -> Key:
        """Return the key of its cell."""
        own = {**self.trial.key, "stride": stride, "form": CELL_FORM}
        if self.against is None:
            return {"part": "truth", **own}
        return {"part": "decoy", **own, **self.against.describe()}

    @property
    def family(self) -> Hashable:
        """Return what it has in common with the parts that differ in the policy alone."""
        return (self.trial.setup, self.trial.seed, id(self.trial.clients.kernel), self.against)

    def make_walk(self, scorer: Scorer, shared: SharedSteps) -> Walk:
        """Return the walk that trains it; `shared` are the steps of its family."""
        trial, schedule, keeps = self.trial, self.trial.schedule, self.keeps_weights
        if self.against is None:
            return walk_truth(
                trial.clients,
                schedule,
                scorer,
                keeps_weights=keeps,
                shared=shared,
                start=trial.start,
            )
        clients = trial.with_public(self.against.public, self.against.decoy)
        # The paper's decoy under FedAvg is one long training, whatever the rounds bring.
        is_chain = self.against.decoy == "public"
        return walk_decoy(
            clients,
            schedule,
            self.needed,
            scorer,
            self.truth,
            is_chain=is_chain,
            shared=shared,
            start=trial.start,
        )

    def count_examples(self) -> int:
        """Return the number of examples to train on; for a decoy an estimate."""
        clients, schedule = self.trial.clients, self.trial.schedule
        if self.against is None:
            rounds = schedule.list_queries(learns=True)
            return sum(clients.count_examples(schedule.attendances[n - 1]) for n, _ in rounds)
        size = self.against.public.size * float(clients.sizes.mean())
        return int(self.needed[-1] * size / 2.0) * _EFFORT[self.against.decoy]


class CovertRuns:
    """Trajectories of trials, taken from the store or trained together.

    Parameters
    ----------
    stride : of the coarse rating of weights
    threads : that average replies while a GPU trains

    `examples` counts what all returned trajectories were trained on, now or before; a move that was
    made once for several of them counts once.
    """

    def __init__(self, store: CellStore, *, stride: int = 1, threads: int = 1) -> None:
        self._store, self._stride, self._threads = store, stride, threads
        self._scorers: dict[tuple[int, LocalKernel], Scorer] = {}
        self._trained = 0
        self.examples = 0

    def work_out(
        self, trials: Sequence[Trial], against: Sequence[Eavesdropping], at_once: int | None = None
    ) -> dict[tuple[int, int], RunOutcome]:
        """Return the outcomes by number of trial and of eavesdropper.

        `at_once` trials are trained as one batch and kept together, all of them if None.  A trial
        whose outcomes are all in the store is not prepared.
        """
        outcomes: dict[tuple[int, int], RunOutcome] = {}
        missing = []
        for number, trial in enumerate(trials):
            kept = [self._store.find(self._make_key(trial, one)) for one in against]
            contents = [content for content in kept if content is not None]
            if len(contents) < len(against):
                missing.append(number)
                continue
            for other, (one, content) in enumerate(zip(against, contents, strict=True)):
                outcomes[number, other] = _unpack_outcome(content["outcome"])
                self.examples += content["decoy_examples"]
                # Each part counts once, also if its own cell is used, too.
                for part, name in ((Part(trial, None), "truth"), (Part(trial, one), "decoy")):
                    self._store.count(part.make_key(self._stride), content[f"{name}_seconds"])
            self.examples += contents[0]["truth_examples"] if contents else 0
        found = self._work_out([trials[number] for number in missing], against, at_once)
        return outcomes | {(missing[n], other): one for (n, other), one in found.items()}

    def _make_key(self, trial: Trial, against: Eavesdropping) -> Key:
        """Return the key of an outcome."""
        own = {**trial.key, "stride": self._stride, "form": CELL_FORM}
        return {"part": "outcome", **own, **against.describe()}

    def _work_out(
        self, trials: Sequence[Trial], against: Sequence[Eavesdropping], at_once: int | None
    ) -> dict[tuple[int, int], RunOutcome]:
        """Compute and keep the outcomes of trials."""
        parts = _list_parts(trials, against)
        kept = {place: self._find(part) for place, part in parts.items()}
        found = {place: trajectory for place, trajectory in kept.items() if trajectory is not None}
        missing = {place: part for place, part in parts.items() if place not in found}
        self._store.plan(sum(part.count_examples() for part in missing.values()))
        size = at_once or max(len(trials), 1)
        for start in range(0, len(trials), size):
            batch = {p: part for p, part in missing.items() if start <= p[0] < start + size}
            found |= self._train(batch)
        self.examples += sum(trajectory.examples for trajectory in found.values())
        outcomes = {}
        for number, trial in enumerate(trials):
            expected, truth = trial.evaluate(), found[number, None]
            for other, one in enumerate(against):
                decoy = found[number, other]
                outcome = judge(trial.schedule, truth, decoy, expected)
                outcomes[number, other] = outcome
                keys = (parts[number, place].make_key(self._stride) for place in (None, other))
                truth_seconds, decoy_seconds = map(self._store.find_seconds, keys)
                content = {
                    "outcome": vars(outcome) | {"expected": vars(expected)},
                    "truth_examples": truth.examples,
                    "decoy_examples": decoy.examples,
                    "truth_seconds": truth_seconds,
                    "decoy_seconds": decoy_seconds,
                }
                self._store.keep(self._make_key(trial, one), content, 0.0)
        return outcomes

    def _find(self, part: Part) -> Trajectory | None:
        """Return a trajectory that needs no training or is in the store, None otherwise."""
        if part.against is not None and not part.needed:
            return Trajectory()
        content = self._store.find(part.make_key(self._stride))
        return None if content is None else _unpack(content)

    def _train(self, missing: Mapping[Place, Part]) -> dict[Place, Trajectory]:
        decoys = {place: part for place, part in missing.items() if part.against is not None}
        if all(part.against and part.against.decoy == "public" for part in decoys.values()):
            return self._run(missing)
        # Other decoys use the true weights, which cells do not keep.
        trials = {number: part.trial for (number, _), part in missing.items()}
        trained = self._run(
            {(n, None): Part(trial, None, keeps_weights=True) for n, trial in trials.items()}
        )
        return trained | self._run(
            {
                (number, other): replace(part, truth=trained[number, None].weights)
                for (number, other), part in decoys.items()
            }
        )

    def _run(self, parts: Mapping[Place, Part]) -> dict[Place, Trajectory]:
        """Train trajectories side by side; each is kept as a cell as soon as it has ended.

        What is returned is what a later call finds in the store, so that it makes no difference
        when it was computed.  Walks that end together share the time since others did, by examples.
        """
        places = list(parts)
        found: dict[Place, Trajectory] = {}
        since = time.perf_counter()

        def keep(ended: Mapping[int, Trajectory]) -> None:
            nonlocal since
            spent, since = time.perf_counter() - since, time.perf_counter()
            total = sum(trajectory.examples for trajectory in ended.values())
            for number, trajectory in ended.items():
                part, asked = trajectory.examples / total if total else 0.0, parts[places[number]]
                key = asked.make_key(self._stride)
                content = self._store.keep(key, _pack(trajectory), spent * part)
                self._count(0, spared=max(asked.count_examples() - trajectory.examples, 0))
                found[places[number]] = replace(_unpack(content), weights=trajectory.weights)

        self._load_tasks(parts.values())
        shared = {part.family: SharedSteps() for part in parts.values()}
        walks = [
            (
                part.trial.clients.kernel,
                part.make_walk(self._find_scorer(part.trial), shared[part.family]),
            )
            for part in parts.values()
        ]
        run_walks(walks, on_batch=self._count, on_end=keep, threads=self._threads)
        return found

    def _load_tasks(self, parts: Collection[Part]) -> None:
        """Load the data of all decoys, several at a time, so that a GPU need not wait for them."""
        if self._threads > 1:
            asked = {(p.trial.setup, p.trial.seed, p.against.public) for p in parts if p.against}
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(lambda place: load_task(*place), asked))

    def _count(self, examples: int, spared: int = 0) -> None:
        self._trained += examples
        self._store.advance(examples + spared, f"{self._trained:,} examples trained on")

    def _find_scorer(self, trial: Trial) -> Scorer:
        """Return the scorer of a trial's own validation set; of a common one there is one."""
        clients = trial.clients
        place = (id(clients.task.validation), clients.kernel)
        if place not in self._scorers:  # a scorer keeps the set, and so the number of it
            self._scorers[place] = Scorer(clients.task, clients.kernel, stride=self._stride)
        return self._scorers[place]


def _list_parts(trials: Sequence[Trial], against: Sequence[Eavesdropping]) -> dict[Place, Part]:
    """Return all trajectories, the true ones first."""
    parts: dict[Place, Part] = {(n, None): Part(trial, None) for n, trial in enumerate(trials)}
    for number, trial in enumerate(trials):
        needed = list_needed_moves(follow_estimate(trial.schedule))
        parts |= {(number, m): Part(trial, one, needed) for m, one in enumerate(against)}
    return parts


def _unpack_outcome(content: Mapping[str, Any]) -> RunOutcome:
    return RunOutcome(**{**content, "expected": HorizonEvaluation(**content["expected"])})


def _pack(trajectory: Trajectory) -> dict[str, Any]:
    """Return the content of a cell, with pairs for scores: JSON has no numbers as keys."""

    def list_pairs(scores: Mapping[int, float]) -> list[tuple[int, float]]:
        return [(moves, round(score, CELL_DIGITS)) for moves, score in scores.items()]

    return {
        "coarse": list_pairs(trajectory.coarse),
        "full": list_pairs(trajectory.full),
        "examples": trajectory.examples,
    }


def _unpack(content: Mapping[str, Any]) -> Trajectory:
    coarse, full = dict(content["coarse"]), dict(content["full"])
    return Trajectory(coarse, full, examples=content["examples"])
