"""Accuracies along chains of jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.errors import InvalidInput
from covertfl.kernels.cnn.kernel import CnnKernel
from covertfl.kernels.job import Examples
from covertfl.kernels.weights import Vector
from tests.support.plain_loop import OPTIMIZERS
from tests.support.small_cnns import make_chains, make_dropping, make_examples


def find_accuracy(kernel: CnnKernel, weights: Vector, examples: Examples) -> float:
    outputs = kernel.predict(weights, examples.features)
    return float((outputs.argmax(axis=1) == examples.labels).mean())


@pytest.mark.parametrize("enough", [1, 2, 64])
def test_ratings_are_those_of_weights_on_the_way(
    enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covertfl.kernels.cnn.ratings._ENOUGH", enough)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    few, other = make_examples(200, seed=9), make_examples(150, seed=11)
    many = make_examples(300, seed=10)
    chains, stops = make_chains(), [(0, 1, 3), (1,), (1, 2, 3), (0, 1)]
    coarses, fulls = [few, other, other, few], [many, many, other, many]
    rated = kernel.rate_chains(chains, stops, coarse=coarses, full=fulls)
    for chain, places, coarse, full, found in zip(
        chains, stops, coarses, fulls, rated, strict=True
    ):
        held = [
            kernel.run_chains([chain[:stop]])[0] if stop else chain[0].weights for stop in places
        ]
        expected = [find_accuracy(kernel, weights, coarse) for weights in held]
        np.testing.assert_allclose(found.coarse, expected, atol=0.0067)
        best = int(found.coarse.argmax())
        assert found.best == pytest.approx(find_accuracy(kernel, held[best], full), abs=0.0067)
        assert found.last == pytest.approx(find_accuracy(kernel, held[-1], full), abs=0.0067)


def test_chains_that_cannot_be_rated() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    chain, examples = make_chains()[0], make_examples()
    for stops in ((), (4,)):
        with pytest.raises(InvalidInput, match="have stops between"):
            kernel.rate_chains([chain], [stops], coarse=[examples], full=[examples])
    gradient = [replace(chain[0], work="gradient")]
    with pytest.raises(InvalidInput, match="must train"):
        kernel.rate_chains([gradient], [(1,)], coarse=[examples], full=[examples])
