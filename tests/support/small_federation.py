"""Runs of a small federation, made by hand: the true trajectory, and decoys or images of it."""

from __future__ import annotations

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import Means, SeenQuery
from covertfl.eavesdroppers.separation import measure_distance
from covertfl.kernels.job import Examples, Layout, LocalJob, LocalOptimizer, Vector
from covertfl.kernels.mlp import LinearLayer, MlpKernel, MlpLayer, RectifierLayer

# Deviations by axis; inputs differ by class on the first two, and have nothing on the last.
SCALES = np.array([3.0, 2.0, 1.5, 1.0, 0.5, 0.0])
SHIFT = np.array([2.0, 1.5, 0.0, 0.0, 0.0, 0.0])
INPUTS, HIDDEN, CLIENTS, PIVOT = len(SCALES), 8, 5, "0.weight"
LAYERS: list[MlpLayer] = [LinearLayer(INPUTS, HIDDEN), RectifierLayer(), LinearLayer(HIDDEN, 1)]
LAYOUT = Layout(
    ("0.weight", "0.bias", "1.weight", "1.bias"), ((HIDDEN, INPUTS), (HIDDEN,), (1, HIDDEN), (1,))
)
KERNEL = MlpKernel(LAYOUT, LAYERS, "binary", LocalOptimizer("adam", lr=0.02), threads=1)
# Flips of signs: all but the first axis, and the one axis on which there is nothing.
FLIPPED, UNSEEN = np.array([1, -1, -1, 1, -1, -1]), np.array([1, 1, 1, 1, 1, -1])


def draw_examples(number: int, seed: int, *, positives: bool = True) -> Examples:
    generator = np.random.default_rng([7, seed])
    labels = generator.integers(0, 2, number) if positives else np.zeros(number, dtype=np.int64)
    features = generator.standard_normal((number, INPUTS)) * SCALES
    features += (2.0 * labels[:, np.newaxis] - 1.0) * SHIFT
    return Examples(features.astype(np.float32), labels.astype(np.float32))


FEDERATION = tuple(draw_examples(80, client) for client in range(CLIENTS))
PUBLIC = draw_examples(60, 100, positives=False)


def make_job(client: int, round_number: int, weights: Vector) -> LocalJob:
    seed = 1000 * round_number + client
    rows = np.random.default_rng(seed).permutation(80)
    return LocalJob(weights, FEDERATION[client], rows, 20, seed)


def make_means() -> Means:
    """All that an eavesdropper may have which is client 0, without another run or rehearsals."""
    mark = np.random.default_rng(5).standard_normal(LAYOUT.size)
    return Means(
        kernel=KERNEL,
        data=PUBLIC,
        reply=lambda round_number, weights: make_job(0, round_number, weights),
        trajectories=2,
        pivot=PIVOT,
        axes=np.eye(INPUTS),
        fresh=draw_examples(120, 101),
        mark=(mark / np.sqrt(np.sum(mark * mark))).astype(np.float32),
    )


def draw_weights(seed: int) -> Vector:
    drawn = np.random.default_rng([11, seed]).uniform(-0.4, 0.4, LAYOUT.size)
    return drawn.astype(np.float32)


def flip(weights: Vector, signs: FloatArray) -> Vector:
    """The image under changes of sign of the inputs."""
    parts = dict(LAYOUT.split(weights))
    parts[PIVOT] = parts[PIVOT] * signs.astype(np.float32)
    return LAYOUT.join(parts)


def train_truth(
    *, seed: int = 0, generations: int = 10, mark: Vector | None = None
) -> list[Vector]:
    """The true trajectory; its queries are sent in rounds 1, 3, 5, ..., client 0 may mark."""
    ways = [draw_weights(seed)]
    for number in range(generations):
        jobs = [make_job(client, 2 * number + 1, ways[-1]) for client in range(CLIENTS)]
        replies = KERNEL.run(jobs)
        if mark is not None:
            replies[0] = replies[0] + 2.0 * measure_distance(replies[0], ways[-1]) * mark
        ways.append(np.mean(replies, axis=0).astype(np.float32))
    return ways


def train_decoy(*, seed: int = 0, generations: int = 10) -> list[Vector]:
    """A decoy that the server trains on its public set, which has one class only."""
    ways = [draw_weights(1000 + seed)]
    for number in range(generations):
        rows = np.random.default_rng(number).permutation(len(PUBLIC))
        ways += KERNEL.run([LocalJob(ways[-1], PUBLIC, rows, 20, number)])
    return ways


def send_in_turn(*ways: list[Vector]) -> list[SeenQuery]:
    """Queries of several trajectories, one after the other; the first is trajectory 0."""
    queries: list[SeenQuery] = []
    for number in range(len(ways[0])):
        for trajectory, way in enumerate(ways):
            moved = measure_distance(way[number], way[number - 1]) if number else None
            queries.append(SeenQuery(len(queries) + 1, trajectory, way[number], moved))
    return queries


def make_image(truth: list[Vector], signs: FloatArray = FLIPPED) -> list[Vector]:
    return [flip(weights, signs) for weights in truth]
