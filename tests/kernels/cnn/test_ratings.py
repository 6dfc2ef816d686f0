"""Accuracies along chains of jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from covertfl.errors import InvalidInput
from covertfl.kernels.chain import Moves, Stops
from covertfl.kernels.cnn.kernel import CnnKernel
from covertfl.kernels.job import Examples
from covertfl.kernels.weights import Vector
from tests.support.plain_loop import OPTIMIZERS
from tests.support.small_cnns import (
    make_chains,
    make_dropping,
    make_examples,
    make_jobs,
    start_together,
)


def find_accuracy(kernel: CnnKernel, weights: Vector, examples: Examples) -> float:
    outputs = kernel.predict(weights, examples.features)
    return float((outputs.argmax(axis=1) == examples.labels).mean())


@pytest.mark.parametrize("enough", [1, 2, 64])
def test_ratings_are_those_of_weights_on_the_way(
    enough: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covertfl.kernels.cnn.ratings._ENOUGH", enough)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    coarse, full = make_examples(200, seed=9), make_examples(300, seed=10)
    jobs = [job for job in make_jobs(make_dropping) if job.work == "train"]
    chains = [*make_chains(), [start_together(jobs[:3]), start_together(jobs[1:4])]]
    stops = [
        Stops((0, 1, 3), (3,)),
        Stops((1,)),
        Stops((1, 2, 3), (0, 1)),
        Stops((0, 1), (0, 1)),
        Stops((1, 2), (2,)),
    ]
    seen: list[int] = []
    rated = kernel.rate_chains(chains, stops, coarse=coarse, full=full, on_examples=seen.append)
    assert sum(seen) == sum(len(job.rows) for chain in chains for move in chain for job in move)
    for chain, places, found in zip(chains, stops, rated, strict=True):

        def hold(stop: int, chain: Moves = chain) -> Vector:
            return kernel.run_chains([chain[:stop]])[0] if stop else chain[0][0].weights

        expected = [find_accuracy(kernel, hold(stop), coarse) for stop in places.coarse]
        np.testing.assert_allclose(found.coarse, expected, atol=0.006)
        best = places.coarse[int(found.coarse.argmax())]
        assert set(found.full) == {best, *places.full}
        for stop, rating in found.full.items():
            assert rating == pytest.approx(find_accuracy(kernel, hold(stop), full), abs=0.004)
        assert found.is_finite


def test_chains_that_cannot_be_rated() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    chain, examples = make_chains()[0], make_examples()
    for stops in (Stops(()), Stops((4,)), Stops((1,), (4,)), Stops((-1, 0))):
        with pytest.raises(InvalidInput, match="have stops between"):
            kernel.rate_chains([chain], [stops], coarse=examples, full=examples)
    gradient = [[replace(chain[0][0], work="gradient")]]
    with pytest.raises(InvalidInput, match="must train"):
        kernel.rate_chains([gradient], [Stops((1,))], coarse=examples, full=examples)


def test_a_chain_that_is_not_finite_says_so() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["sgd"], "cpu")
    chain, examples = make_chains()[0], make_examples()
    spoiled = replace(chain[0][0], weights=chain[0][0].weights * np.float32(np.nan))
    chains = [[[spoiled], *chain[1:]], chain]
    rated = kernel.rate_chains(chains, [Stops((0, 3))] * 2, coarse=examples, full=examples)
    assert [each.is_finite for each in rated] == [False, True]
