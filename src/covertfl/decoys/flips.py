"""The sign flips of replicas: generators of subgroups, chosen so that decoys tell classes badly.

A decoy is the true model with some inputs reflected.  Whether it still ranks examples depends on
which axes are flipped, and over random flips its ranking (AUC) has a deviation of about 0.1.  A
server that holds labelled examples draws several candidates and keeps one whose reflections of a
linear fit separate the classes badly, and answer the public set as the fit itself does.

This keeps the theorem of docs/exchangeable.md: reflecting all inputs, those of the public set
included, reflects the fit, so the outputs of each reflected fit, and with them the choice, stay the
same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from covertfl.arrays import BoolArray, FloatArray
from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples
from covertfl.kernels.weights import Float32Array

MOST_GENERATORS = 3  # of a subgroup of 8
CANDIDATES = 500
SHAPE = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # quantiles of outputs that are compared
MOST_ROWS = 5000  # examples that candidates are compared on
RIDGE = 0.1  # penalty of the linear fit, as a share of the inputs' mean square


def draw_generators(
    free: BoolArray,
    count: int,
    *,
    generator: np.random.Generator,
    known: Examples | None = None,
    public: Float32Array | None = None,
) -> Float32Array:
    """Draw (count, d) sign flips of free axes that generate a subgroup of order 2^count.

    The first ones do not depend on how many are drawn.

    Parameters
    ----------
    free : (d,) axes that may be flipped
    count : 1, 2 or 3
    known : labelled examples that the server holds, to compare candidates; None to take the first
    public : (n, d) inputs of the public set, on which a decoy should answer like the truth

    Raises
    ------
    InvalidInput
        if there are fewer free axes than generators
    """
    if int(free.sum()) < count:
        raise InvalidInput(
            f"{2**count} trajectories need at least {count} axes that the public set does not "
            f"know, got {int(free.sum())}"
        )
    has_classes = known is not None and len(np.unique(known.labels[:MOST_ROWS])) > 1
    fit = _fit(known) if known is not None and has_classes else None
    chosen = np.ones((0, len(free)), dtype=np.float32)
    for _ in range(count):
        members, candidates = span(chosen), _draw_new(free, chosen, generator=generator)
        best = next(candidates)
        if fit is not None:
            others = np.stack([best, *(next(candidates) for _ in range(CANDIDATES - 1))])
            new = (others[:, np.newaxis] * members).reshape(-1, len(free))
            apart = _separate(*fit, new).reshape(CANDIDATES, -1).max(axis=1)
            score = apart / np.median(apart)
            if public is not None:
                differ = _differ(fit[2], public, new).reshape(CANDIDATES, -1).max(axis=1)
                score += differ / np.median(differ)
            best = others[int(np.argmin(score))]
        chosen = np.concatenate([chosen, best[np.newaxis]])
    return chosen


def span(generators: Float32Array) -> Float32Array:
    """Return the (2^g, d) signs of the subgroup that (g, d) flips generate.

    Members are numbered so that the product of members a and b is member a ^ b (bitwise).
    """
    signs = np.ones((1, generators.shape[1]), dtype=np.float32)
    for flips in generators:
        signs = np.concatenate([signs, signs * flips])
    return signs


def _draw_new(
    free: BoolArray, chosen: Float32Array, *, generator: np.random.Generator
) -> Iterator[Float32Array]:
    """Yield random flips of free axes that are not in the span of those already chosen.

    One of every two neighbours among the free axes is flipped, so that as much is flipped of strong
    axes as of weak ones.
    """
    members, places = span(chosen), np.flatnonzero(free)
    while True:
        first = generator.integers(0, 2, size=-(-len(places) // 2))
        flipped = np.column_stack([first, 1 - first]).ravel()[: len(places)]
        drawn = np.ones(len(free), dtype=np.float32)
        drawn[places] = 1.0 - 2.0 * flipped
        if not np.any(np.all(members == drawn, axis=1)):
            yield drawn


def _fit(known: Examples) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return inputs (n, d), classes (n, c) as 0 and 1, and a linear fit (c, d) by ridge regression.

    Of two classes the second is fitted, of more each against the others.
    """
    inputs = known.features[:MOST_ROWS].astype(np.float64)
    labels = known.labels[:MOST_ROWS].astype(np.int64)
    classes = np.unique(labels)
    wanted = (labels[:, np.newaxis] == (classes[1:] if len(classes) == 2 else classes)).astype(
        np.float64
    )
    gram = inputs.T @ inputs
    penalty = RIDGE * np.trace(gram) / len(gram)
    moments = inputs.T @ (wanted - wanted.mean(axis=0))
    return inputs, wanted, np.linalg.solve(gram + penalty * np.eye(len(gram)), moments).T


def _differ(fit: FloatArray, public: Float32Array, signs: Float32Array) -> FloatArray:
    """Return (k,) how far reflections of a fit answer otherwise than the fit does, on some inputs.

    Quantiles of standardised outputs are compared: their shape, not their level and scale.
    """
    inputs = public[:MOST_ROWS].astype(np.float64)
    worst = np.zeros(len(signs))
    for weights in fit:
        shapes = []
        for outputs in (inputs @ weights[:, np.newaxis], inputs @ (signs * weights).T):
            spread = outputs.std(axis=0) + 1e-12
            shapes.append(np.quantile((outputs - outputs.mean(axis=0)) / spread, SHAPE, axis=0))
        worst = np.maximum(worst, np.abs(shapes[1] - shapes[0]).mean(axis=0))
    return worst + 1e-12


def _separate(
    inputs: FloatArray, wanted: FloatArray, fit: FloatArray, signs: Float32Array
) -> FloatArray:
    """Return (k,) how far reflections of a fit separate the classes: the largest |d'| of a class.

    d' is the difference of the mean outputs of a class and the rest in units of their deviation.
    """
    separations = np.zeros(len(signs))
    for weights, is_class in zip(fit, wanted.T, strict=True):
        outputs = inputs @ (signs * weights).T
        inside, outside = outputs[is_class == 1.0], outputs[is_class == 0.0]
        if len(inside) and len(outside):
            spread = np.sqrt(0.5 * (inside.var(axis=0) + outside.var(axis=0))) + 1e-12
            apart = np.abs(inside.mean(axis=0) - outside.mean(axis=0)) / spread
            separations = np.maximum(separations, apart)
    return separations
