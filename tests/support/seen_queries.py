"""Hand-made queries for eavesdroppers, which are asked by name, and a model with two weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from covertfl.arrays import FloatArray
from covertfl.eavesdroppers.eavesdropper import KnownScheme, Listener, Means, Rehearsed, SeenQuery
from covertfl.eavesdroppers.registry import EAVESDROPPERS, make_eavesdropper
from covertfl.kernels.job import Examples, Layout, LocalJob, LocalOptimizer, Vector, Work
from covertfl.kernels.mlp import LinearLayer, MlpKernel

__all__ = [
    "EAVESDROPPERS",
    "Examples",
    "KnownScheme",
    "Listener",
    "Means",
    "Rehearsed",
    "SeenQuery",
    "Vector",
    "follow_schedule",
    "listen",
    "make_classes_kernel",
    "make_eavesdropper",
    "make_line_means",
    "make_queries",
    "share_odds",
    "sigmoid",
    "vector",
]

# One input, one output: the logit of x is weight * x + bias.
LINE = Layout(("weight", "bias"), ((1, 1), (1,)))


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


def make_queries(sent: Iterable[tuple[int, Sequence[float]]]) -> list[SeenQuery]:
    """Return queries from (trajectory, weights) pairs, one per round."""
    latest: dict[int, Vector] = {}
    queries = []
    for number, (trajectory, numbers) in enumerate(sent, start=1):
        weights, before = vector(*numbers), latest.get(trajectory)
        moved = None
        if before is not None:
            moved = math.dist(weights.tolist(), before.tolist())
        latest[trajectory] = weights
        queries.append(SeenQuery(number, trajectory, weights, moved))
    return queries


def follow_schedule(order: Sequence[int]) -> list[SeenQuery]:
    """Return queries of which only the trajectory matters; each moves by 1."""
    counts: dict[int, int] = {}
    sent = []
    for trajectory in order:
        counts[trajectory] = counts.get(trajectory, -1) + 1
        sent.append((trajectory, (100.0 * trajectory, float(counts[trajectory]))))
    return make_queries(sent)


def listen(name: str, queries: Iterable[SeenQuery], means: Means | None = None) -> Listener:
    """Return an eavesdropper that has seen the queries."""
    eavesdropper = make_eavesdropper(name, means or Means())
    for query in queries:
        eavesdropper.observe(query)
    return eavesdropper


def share_odds(*log_scores: float) -> FloatArray:
    """Return beliefs in proportion to exp of the scores."""
    values = np.exp(np.array(log_scores))
    return np.asarray(values / values.sum())


def make_line_means(*, lr: float = 1.0, work: Work = "train", copies: int = 1) -> Means:
    """Two examples, x = 1 with label 1 and x = -1 with label 0, and plain gradient descent.

    With bias 0 the mean loss is log(1 + exp(-w)), and a pass takes w to w + lr / (1 + exp(w)).
    """
    features = np.tile(np.array([[1.0], [-1.0]], dtype=np.float32), (copies, 1))
    labels = np.tile(np.array([1.0, 0.0], dtype=np.float32), copies)
    data = Examples(features, labels)
    kernel = MlpKernel(LINE, [LinearLayer(1, 1)], "binary", LocalOptimizer("sgd", lr=lr), threads=1)

    def reply(round_number: int, weights: Vector) -> LocalJob:
        return LocalJob(weights, data, np.arange(len(data)), len(data), round_number, work)

    return Means(kernel=kernel, data=data, reply=reply)


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def make_classes_kernel(inputs: int, classes: int) -> MlpKernel:
    """Return one linear layer without a bias for several classes."""
    layout, layers = (
        Layout(("weight",), ((classes, inputs),)),
        [LinearLayer(inputs, classes, False)],
    )
    return MlpKernel(layout, layers, "multiclass", LocalOptimizer(), threads=1)
