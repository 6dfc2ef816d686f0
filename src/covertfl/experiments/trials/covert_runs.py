"""Learner and eavesdropper of many runs: the part that the paper's tables have in common.

The metric is the same for every policy (D23): accuracy of the final estimate (6), and beside it the
largest over all rounds, which is the learner's worst.  A tie in (6) counts half.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from covertfl.experiments.trials.averages import average, share, shorten
from covertfl.experiments.trials.cells import CellStore, Key
from covertfl.experiments.trials.schedule import (
    Held,
    Schedule,
    follow_estimate,
    list_needed_moves,
    name_truth,
)
from covertfl.experiments.trials.scorer import Scorer
from covertfl.experiments.trials.setups import PreparedRun, PublicData
from covertfl.experiments.trials.walks import (
    RatesChains,
    Trajectory,
    drive,
    walk_chain,
    walk_decoy,
    walk_truth,
)
from covertfl.runs.participation import count_examples


@dataclass(frozen=True)
class Eavesdropping:
    """What an eavesdropper holds, and what is done against it."""

    public: PublicData
    decoy: str = "public"

    def describe(self) -> dict[str, Any]:
        """As keys keep it."""
        return {"public": vars(self.public), "decoy": self.decoy}


@dataclass(frozen=True, eq=False)
class RunOutcome:
    """One run against one eavesdropper.

    Parameters
    ----------
    learner : (N,) accuracy of the true weights after each round
    eavesdropper : (N,) accuracy of the estimate (6) after each round
    worst : the largest of these, on the whole validation set
    final : the last of these, on the whole validation set
    named : 1 where the last estimate is the true trajectory, one half for a tie
    exposure : learning queries over rounds
    completed : whether no update is owed
    updates : that were made
    """

    learner: list[float]
    eavesdropper: list[float]
    worst: float
    final: float
    named: float
    exposure: float
    completed: bool
    updates: int


def judge(schedule: Schedule, truth: Trajectory, decoy: Trajectory) -> RunOutcome:
    """Put a run's trajectories together as the eavesdropper of (6) saw them."""
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
        name_truth(held[-1]),
        schedule.exposure,
        schedule.is_completed,
        updates,
    )


def _rate(held: Held, true: Mapping[int, float], decoy: Mapping[int, float]) -> float:
    """Accuracy of an estimate, the mean of both where they tie."""
    parts = [] if held.true is None else [true[held.true]]
    if held.decoy is not None:
        parts.append(decoy[held.decoy])
    return sum(parts) / len(parts)


def summarise(outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    """A row of a table: means over seeds with t intervals, shares with Wilson's."""
    return {
        "seeds": len(outcomes),
        "learner": average([run.learner[-1] for run in outcomes], most=1.0),
        "eavesdropper": average([run.final for run in outcomes], most=1.0),
        "worst": average([run.worst for run in outcomes], most=1.0),
        "named": share([run.named for run in outcomes]),
        "exposure": average([run.exposure for run in outcomes], most=1.0),
        "completion": share([float(run.completed) for run in outcomes]),
        "updates": average([float(run.updates) for run in outcomes]),
        "by_seed": {
            "learner": shorten([run.learner[-1] for run in outcomes]),
            "eavesdropper": shorten([run.final for run in outcomes]),
            "exposure": shorten([run.exposure for run in outcomes]),
        },
    }


# Of an accuracy in a cell; results have fewer, and must not be rounded twice.
CELL_DIGITS = 9
# Examples of a decoy's move for each that the paper's decoy uses.
_EFFORT = {"public": 1, "adversarial": 12}
_Found = TypeVar("_Found")


def _known(found: _Found | None) -> _Found:
    assert found is not None
    return found


def count_true_examples(run: PreparedRun) -> int:
    """Examples that the true trajectory of a run is trained on."""
    batch_size = run.federation.settings.sections.federation.batch_size
    schedule = run.schedule
    rounds = zip(schedule.attendances, schedule.learns, schedule.moves, strict=True)
    return sum(
        int(count_examples(who.batches, run.answers.sizes[who.clients], batch_size).sum())
        for who, learns, moves in rounds
        if learns and moves
    )


# --- working out, with cells --------------------------------------------------------------------


class CovertRuns:
    """Trajectories of prepared runs, taken from the store or trained together.

    Parameters
    ----------
    store : of finished cells
    stride : of the coarse scoring of decoys
    threads : that put replies together while a GPU trains

    `examples` counts what all trajectories that it gave out were trained on, now or before.
    """

    def __init__(self, store: CellStore, *, stride: int = 1, threads: int = 1) -> None:
        self._store, self._stride, self._threads = store, stride, threads
        self._scorers: dict[tuple[str, str | None], Scorer] = {}
        self._trained = 0
        self.examples = 0

    def work_out(
        self,
        runs: Sequence[PreparedRun],
        against: Sequence[Eavesdropping],
        *,
        at_once: int | None = None,
    ) -> dict[tuple[int, int], RunOutcome]:
        """Outcomes by number of run and of eavesdropper.

        Parameters
        ----------
        at_once : runs that are trained as one batch and kept together; all where None
        """
        needed = [list_needed_moves(follow_estimate(run.schedule)) for run in runs]
        truths = {number: self._find_truth(run) for number, run in enumerate(runs)}
        decoys = {
            (number, other): self._find_decoy(run, against[other], needed[number])
            for number, run in enumerate(runs)
            for other in range(len(against))
        }
        missing = {number for number, found in truths.items() if found is None}
        pending = {place for place, found in decoys.items() if found is None}
        self._announce(runs, against, needed, missing, pending)
        size = at_once or len(runs)
        for start in range(0, len(runs), size):
            part = range(start, start + size)
            self._train(
                runs,
                against,
                needed,
                (truths, [number for number in sorted(missing) if number in part]),
                (decoys, [place for place in sorted(pending) if place[0] in part]),
            )
        for found in (*truths.values(), *decoys.values()):
            self.examples += _known(found).examples
        return {
            (number, other): judge(runs[number].schedule, _known(truths[number]), _known(found))
            for (number, other), found in decoys.items()
        }

    def _train(
        self,
        runs: Sequence[PreparedRun],
        against: Sequence[Eavesdropping],
        needed: Sequence[Sequence[int]],
        truths: tuple[dict[int, Trajectory | None], list[int]],
        decoys: tuple[dict[tuple[int, int], Trajectory | None], list[tuple[int, int]]],
    ) -> None:
        """Add to both what is missing of them."""
        if all(entry.decoy == "public" for entry in against):
            trained = self._train_together(runs, against, needed, truths[1], decoys[1])
            truths[0].update(trained[0])
            decoys[0].update(trained[1])
            return
        # Other decoys look at the true weights, which cells do not keep.
        wanted = {*truths[1], *(number for number, _ in decoys[1])}
        found = self._train_truths(runs, wanted)
        truths[0].update(found)
        decoys[0].update(self._train_decoys(runs, against, needed, decoys[1], found))

    def _announce(
        self,
        runs: Sequence[PreparedRun],
        against: Sequence[Eavesdropping],
        needed: Sequence[Sequence[int]],
        missing: Iterable[int],
        pending: Iterable[tuple[int, int]],
    ) -> None:
        """Plan in examples that are to be trained on; those of decoys are a guess."""
        amount = sum(count_true_examples(runs[number]) for number in missing)
        for number, other in pending:
            size = against[other].public.size * float(runs[number].answers.sizes.mean())
            amount += int(needed[number][-1] * size / 2.0) * _EFFORT[against[other].decoy]
        self._store.plan(amount)

    # --- training ---

    def _train_together(
        self,
        runs: Sequence[PreparedRun],
        against: Sequence[Eavesdropping],
        needed: Sequence[Sequence[int]],
        missing: Iterable[int],
        pending: Iterable[tuple[int, int]],
    ) -> tuple[dict[int, Trajectory], dict[tuple[int, int], Trajectory]]:
        """Both kinds of walks as one batch, where decoys do not look at the true weights."""
        first, second = sorted(missing), sorted(pending)
        walks = [(runs[n].answers.kernel, self._walk_truth(runs[n])) for n in first]
        walks += [
            (runs[n].answers.kernel, self._walk_decoy(runs[n], against[m], needed[n], ()))
            for n, m in second
        ]
        keys = [self._truth_key(runs[n]) for n in first]
        keys += [self._decoy_key(runs[n], against[m]) for n, m in second]
        found = self._drive(walks, keys)
        return (
            dict(zip(first, found[: len(first)], strict=True)),
            dict(zip(second, found[len(first) :], strict=True)),
        )

    def _train_truths(
        self, runs: Sequence[PreparedRun], wanted: Iterable[int]
    ) -> dict[int, Trajectory]:
        numbers = sorted(wanted)
        walks = [
            (runs[n].answers.kernel, self._walk_truth(runs[n], keeps_weights=True)) for n in numbers
        ]
        found = self._drive(walks, [self._truth_key(runs[n]) for n in numbers])
        return dict(zip(numbers, found, strict=True))

    def _train_decoys(
        self,
        runs: Sequence[PreparedRun],
        against: Sequence[Eavesdropping],
        needed: Sequence[Sequence[int]],
        pending: Iterable[tuple[int, int]],
        truths: Mapping[int, Trajectory],
    ) -> dict[tuple[int, int], Trajectory]:
        places = sorted(pending)
        walks = [
            (
                runs[n].answers.kernel,
                self._walk_decoy(runs[n], against[m], needed[n], truths[n].weights),
            )
            for n, m in places
        ]
        found = self._drive(walks, [self._decoy_key(runs[n], against[m]) for n, m in places])
        return dict(zip(places, found, strict=True))

    def _walk_truth(self, run: PreparedRun, *, keeps_weights: bool = False) -> Any:
        scorer = self._find_scorer(run)
        return walk_truth(run.answers, run.schedule, scorer, keeps_weights=keeps_weights)

    def _walk_decoy(
        self, run: PreparedRun, against: Eavesdropping, needed: Sequence[int], truth: Any
    ) -> Any:
        answers, scorer = run.with_public(against.public, against.decoy), self._find_scorer(run)
        # The paper's decoy under FedAvg is one training that goes on and on.
        is_chain = against.decoy == "public" and run.setup.algorithm == "fedavg" and needed[-1] > 0
        if is_chain and isinstance(answers.kernel, RatesChains):
            return walk_chain(answers, run.schedule, needed, scorer)
        return walk_decoy(answers, run.schedule, needed, scorer, truth)

    def _drive(self, walks: Sequence[Any], keys: Sequence[Key]) -> list[Trajectory]:
        """Trajectories of walks, each kept as a cell as soon as it has ended.

        What is given out is what a later call will find, so that it makes no difference when it
        was computed.  Walks that end together share the time since others did, by their examples.
        """
        found: dict[int, Trajectory] = {}
        since = time.perf_counter()

        def keep(outcomes: Mapping[int, Trajectory]) -> None:
            nonlocal since
            spent, since = time.perf_counter() - since, time.perf_counter()
            total = sum(trajectory.examples for trajectory in outcomes.values())
            for number, trajectory in outcomes.items():
                part = trajectory.examples / total if total else 1.0 / len(outcomes)
                content = self._store.keep(keys[number], _pack(trajectory), spent * part)
                kept = _known(_unpack(content))
                found[number] = replace(kept, weights=trajectory.weights)

        drive(walks, on_batch=self._count, ended=keep, threads=self._threads)
        return [found[number] for number in range(len(walks))]

    def _count(self, examples: int) -> None:
        self._trained += examples
        self._store.advance(examples, f"{self._trained:,} examples trained on")

    def _find_scorer(self, run: PreparedRun) -> Scorer:
        place = (run.setup.task, run.setup.model)
        if place not in self._scorers:
            self._scorers[place] = Scorer(run.answers.task, run.answers.kernel, stride=self._stride)
        return self._scorers[place]

    # --- cells ---

    def _truth_key(self, run: PreparedRun) -> Key:
        return {"part": "truth", **run.key, "stride": self._stride}

    def _decoy_key(self, run: PreparedRun, against: Eavesdropping) -> Key:
        return {"part": "decoy", **run.key, **against.describe(), "stride": self._stride}

    def _find_truth(self, run: PreparedRun) -> Trajectory | None:
        return _unpack(self._store.find(self._truth_key(run)))

    def _find_decoy(
        self, run: PreparedRun, against: Eavesdropping, needed: Sequence[int]
    ) -> Trajectory | None:
        if not needed:
            return Trajectory()
        return _unpack(self._store.find(self._decoy_key(run, against)))


def _pack(trajectory: Trajectory) -> dict[str, Any]:
    """Accuracies as a cell keeps them."""
    return {
        "coarse": _list_pairs(trajectory.coarse),
        "full": _list_pairs(trajectory.full),
        "examples": trajectory.examples,
    }


def _list_pairs(scores: Mapping[int, float]) -> list[tuple[int, float]]:
    """Numbers of moves and scores; JSON has no numbers as keys."""
    return [(moves, round(score, CELL_DIGITS)) for moves, score in scores.items()]


def _unpack(content: Mapping[str, Any] | None) -> Trajectory | None:
    if content is None:
        return None
    coarse, full = dict(content["coarse"]), dict(content["full"])
    return Trajectory(coarse, full, examples=content["examples"])
