"""The decoys beside a true trajectory of the toxicity task, in a short training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch")

from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.job import LocalJob, LocalKernel, LocalOptimizer, Vector
from covertfl.schemes.decoys.decoy import DecoyView, average_results
from covertfl.schemes.decoys.registry import DECOYS, make_decoy
from covertfl.tasks.registry import make_task
from covertfl.tasks.scores import compute_losses, score_accuracy
from covertfl.tasks.task import DataSettings, TrainingTask

MOVES, BATCH_SIZE = 6, 40
Replies: TypeAlias = npt.NDArray[np.float32]
Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Trajectories:
    """True weights and a decoy's after each move; cosines of replies with the decoy's moves."""

    task: TrainingTask
    kernel: LocalKernel
    true: list[Vector]
    decoy: list[Vector]
    alignment: list[float]

    def accuracies(self, weights: list[Vector]) -> list[float]:
        validation = self.task.validation
        return [
            score_accuracy(self.kernel.predict(w, validation.features), validation.labels, "binary")
            for w in weights[1:]
        ]

    def public_losses(self, weights: list[Vector]) -> list[float]:
        public = self.task.public
        outputs = [self.kernel.predict(w, public.features) for w in weights[1:]]
        return [float(compute_losses(output, public.labels, "binary").mean()) for output in outputs]

    def length_ratios(self) -> list[float]:
        own, true = (
            np.linalg.norm(np.diff(np.stack(w), axis=0), axis=1) for w in (self.decoy, self.true)
        )
        return list(own / true)


@cache
def make_toxicity(share: float) -> tuple[TrainingTask, LocalKernel]:
    task = make_task(DataSettings(task="toxicity", seed=3, public_positive_share=share))
    return task, choose_kernel(task.make_model, task.loss, LocalOptimizer())


def ask(share: float, weights: Vector, seed: int) -> tuple[Replies, Counts]:
    task, kernel = make_toxicity(share)
    generator, jobs = np.random.default_rng([7, seed]), []
    for rows in task.clients[:12]:
        taken = int(generator.integers(1, 39)) * BATCH_SIZE
        order = generator.permutation(rows)[:taken]
        jobs.append(LocalJob(weights, task.train, order, BATCH_SIZE, seed))
    return np.stack(kernel.run(jobs)), np.array([len(job.rows) for job in jobs])


@cache
def train(share: float) -> list[Vector]:
    task, _ = make_toxicity(share)
    true = [draw_weights(task.make_model, seed=0)]
    for number in range(MOVES):
        true.append(average_results(*ask(share, true[-1], number)).astype(np.float32))
    return true


@cache
def run(kind: str, share: float) -> Trajectories:
    task, kernel = make_toxicity(share)
    decoy = make_decoy(kind, task, batch_size=BATCH_SIZE)
    generator = np.random.default_rng(5)
    true, weights, alignment = train(share), [draw_weights(task.make_model, seed=1)], []
    for number in range(MOVES):
        replies, examples = np.empty((0, len(true[0])), np.float32), np.empty(0, np.int64)
        if decoy.needs_replies:
            replies, examples = ask(share, weights[-1], 100 + number)
        view = DecoyView(weights[-1], true[number], replies, examples, number, kernel.predict)
        results = kernel.run(decoy.plan(view, generator=generator))
        weights.append(decoy.move(view, results, generator=generator))
        if decoy.needs_replies:
            asked, done = replies - weights[-2], weights[-1] - weights[-2]
            lengths = np.linalg.norm(asked, axis=1) * np.linalg.norm(done)
            alignment.append(float(np.mean(asked @ done / lengths)))
    return Trajectories(task, kernel, true, weights, alignment)


def test_the_true_model_learns() -> None:
    trained = run("public", 0.1)
    assert trained.accuracies(trained.true)[-1] > 0.78


def test_public_without_positives_guesses() -> None:
    trained = run("public", 0.0)
    assert trained.accuracies(trained.decoy)[-1] <= 0.53


def test_public_with_few_positives_learns_a_little() -> None:
    trained = run("public", 0.1)
    assert 0.55 <= trained.accuracies(trained.decoy)[-1] <= 0.72


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_adversarial_guesses_in_every_move_and_fits_the_public_set(share: float) -> None:
    trained = run("adversarial", share)
    assert max(trained.accuracies(trained.decoy)) <= 0.53
    pairs = zip(
        trained.public_losses(trained.decoy), trained.public_losses(trained.true), strict=True
    )
    assert all(own < true for own, true in pairs)


def test_mirrored_contradicts_its_clients() -> None:
    trained = run("mirrored", 0.1)
    assert max(trained.alignment) < -0.5
    assert trained.accuracies(trained.decoy)[-1] < 0.4


def test_random_learns_nothing() -> None:
    trained = run("random", 0.1)
    start, *_, end = trained.public_losses([trained.decoy[0], *trained.decoy])
    assert abs(end - start) < 0.2
    assert abs(trained.accuracies(trained.decoy)[-1] - 0.5) < 0.12


# The mirrored decoy runs away, and one job is noisier than the mean of many.
FACTORS = {"random": 1.6, "public": 4.0, "adversarial": 2.5}


@pytest.mark.parametrize("kind", sorted(set(DECOYS) - {"mirrored"}))
def test_moves_are_about_as_long_as_true_ones(kind: str) -> None:
    ratios = run(kind, 0.1).length_ratios()
    assert max(ratios) <= FACTORS[kind]
    assert min(ratios) >= 1.0 / FACTORS[kind]
