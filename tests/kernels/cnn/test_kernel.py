"""The kernel for stacks of convolutional networks: against a plain loop and the general kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.cnn.passes import PlainPasses
from covertfl.kernels.cnn.trainer import StackTrainer
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.chain import Stops
from covertfl.kernels.choose import draw_weights
from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.cnn.kernel import CnnKernel
from covertfl.tasks.models import make_paper_cnn, make_small_cnn
from tests.support.plain_loop import OPTIMIZERS
from tests.support.small_cnns import (
    make_chains,
    make_dropping,
    make_examples,
    make_jobs,
    make_plain,
    start_together,
)


def test_the_networks_of_the_images_task() -> None:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((12, 1, 28, 28)).astype(np.float32)
    examples = Examples(features, generator.integers(0, 10, 12))
    for make_model in (make_small_cnn, make_paper_cnn):
        weights = draw_weights(make_model, seed=0)
        job = LocalJob(weights, examples, np.arange(12), 5, 3, "gradient")
        kernel = CnnKernel(make_model, "multiclass", LocalOptimizer(), "cpu")
        expected = TorchKernel(make_model, "multiclass", LocalOptimizer()).run([job])[0]
        np.testing.assert_allclose(kernel.run([job])[0], expected, rtol=0.0, atol=1e-6)


def test_a_gradient_is_that_of_all_rows() -> None:
    job = replace(make_jobs(make_plain)[0], work="gradient")
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu")
    first, whole = kernel.run([job, replace(job, batch_size=50)])
    np.testing.assert_allclose(first, whole, rtol=0.0, atol=1e-6)
    assert np.abs(first).max() > 1e-2


def test_a_chain_is_its_jobs_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a stack takes only two of them, and steps are prepared two by two."""
    monkeypatch.setattr("covertfl.kernels.cnn.steps._STACKED_JOBS", 2)
    monkeypatch.setattr("covertfl.kernels.cnn.steps._TABLE_STEPS", 2)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
    for chain, result in zip(make_chains(), kernel.run_chains(make_chains()), strict=True):
        weights = chain[0][0].weights
        for (job,) in chain:
            weights = kernel.run([replace(job, weights=weights)])[0]
        np.testing.assert_allclose(result, weights, rtol=0.0, atol=1e-5)


def test_momentum_begins_anew_in_every_job_of_a_chain() -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["momentum"], "cpu")
    chain = make_chains()[0]
    middle = kernel.run_chains([chain[:2]])[0]
    expected = kernel.run([replace(chain[2][0], weights=middle)])[0]
    np.testing.assert_allclose(kernel.run_chains([chain])[0], expected, rtol=0.0, atol=1e-6)


def test_a_mean_is_that_of_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights and of gradients, by numbers of rows, also where a stack takes only two jobs."""
    monkeypatch.setattr("covertfl.kernels.cnn.steps._STACKED_JOBS", 2)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
    jobs = make_jobs(make_dropping)
    groups = [start_together(group) for group in (jobs[:3], [jobs[4], jobs[0], jobs[3]], jobs[6:8])]
    for group, mean in zip(groups, kernel.average_jobs(groups), strict=True):
        rows = [len(job.rows) for job in group]
        expected = np.average(np.stack(kernel.run(group)), axis=0, weights=rows)
        np.testing.assert_allclose(mean, expected, rtol=0.0, atol=1e-6)
    with pytest.raises(InvalidInput, match="at least one example"):
        kernel.average_jobs([jobs[:1], [jobs[2]]])


def test_a_chain_of_means_is_its_moves_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As FedAvg goes from round to round, in the company of other chains, in few slots or many."""
    jobs = [job for job in make_jobs(make_dropping) if job.work == "train"]
    rounds = [jobs[:3], [jobs[3], jobs[2]], [jobs[1]], [jobs[2]], jobs[:4]]
    chains = [[start_together(move) for move in rounds], *make_chains(), [[jobs[2]]]]
    found = []
    for most in (1, 2, 512):
        monkeypatch.setattr("covertfl.kernels.cnn.steps._STACKED_JOBS", most)
        kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
        found.append(kernel.run_chains(chains))
    weights = chains[0][0][0].weights
    for move in chains[0]:
        own = [replace(job, weights=weights) for job in move]
        weights = kernel.average_jobs([own])[0] if any(len(job.rows) for job in move) else weights
    for results in found:
        np.testing.assert_allclose(results[0], weights, rtol=0.0, atol=1e-5)
        assert results[-1].tobytes() == jobs[2].weights.tobytes()
        for one, other in zip(results, found[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-5)


def test_chains_that_do_not_fit_run_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
    together = kernel.run_chains(make_chains())
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._HELD_FLOATS", 3 * kernel.layout.size)
    for one, other in zip(together, kernel.run_chains(make_chains()), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-6)


def test_what_a_slot_held_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that follows one whose weights are not finite, with every optimizer."""
    monkeypatch.setattr("covertfl.kernels.cnn.steps._STACKED_JOBS", 1)
    job = replace(make_jobs(make_plain)[0], rows=np.arange(30))
    spoiled = Examples(np.full_like(job.examples.features, np.nan), job.examples.labels)
    long = replace(job, examples=spoiled, rows=np.arange(50))
    for optimizer in OPTIMIZERS.values():
        kernel = CnnKernel(make_plain, "multiclass", optimizer, "cpu")
        bad, good = kernel.run([long, job])
        assert not np.isfinite(bad).all()
        np.testing.assert_array_equal(good, kernel.run([job])[0])


@pytest.mark.parametrize("steps", [1, 2])
def test_pieces_of_a_gradient_make_the_whole(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [job for job in make_jobs(make_dropping) if job.work == "gradient"]
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), "cpu")
    whole = kernel.run(jobs)
    monkeypatch.setattr("covertfl.kernels.cnn.trainer._PIECE_STEPS", steps)
    monkeypatch.setattr("covertfl.kernels.cnn.steps._STACKED_JOBS", 3)
    for one, other in zip(whole, kernel.run(jobs), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-7)
    assert np.abs(whole[0]).max() > 1e-3


def test_a_binary_loss_worked_by_hand() -> None:
    """All weights 0 but the last bias: the derivative by that bias is 1/2 - label, on average."""

    def make_binary() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(243, 1))

    labels = np.array([1, 0, 0, 0], dtype=np.float32)
    examples = Examples(make_examples(4).features, labels)
    size = draw_weights(make_binary, seed=0).size
    job = LocalJob(np.zeros(size, np.float32), examples, np.arange(4), 3, 0, "gradient")
    kernel = CnnKernel(make_binary, "binary", LocalOptimizer(), "cpu")
    gradient = kernel.run([job])[0]
    np.testing.assert_allclose(gradient[-1], 0.25, atol=1e-7)
    assert not gradient[:-1].any()
    still = replace(job, rows=job.rows[:0], work="train")
    stops = [Stops((0, 1), (1,))]
    (rated,) = kernel.rate_chains([[[still]]], stops, coarse=examples, full=examples)
    assert rated.coarse.tolist() == [0.75, 0.75] and rated.full == {0: 0.75, 1: 0.75}


SGD = LocalOptimizer("sgd", lr=1e-9)


class Narrow(PlainPasses):
    """Passes whose outputs are infinite beyond the range of 16-bit floats."""

    def convolve(
        self, block: Block, x: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        y = super().convolve(block, x, weights, dtype)
        return torch.where(y.abs() > 65504.0, torch.inf, y)


def test_what_a_narrow_range_cannot_hold_is_computed_with_more() -> None:
    small = make_jobs(make_plain)[0]
    features = small.examples.features * np.float32(1e6)
    large = replace(small, examples=Examples(features, small.examples.labels))
    kernel, plain = (CnnKernel(make_plain, "multiclass", SGD, "cpu") for _ in range(2))
    narrow = StackTrainer(Narrow(), "multiclass", SGD, kernel._memory)
    kernel._trainers = [narrow]
    assert [np.isfinite(result).all() for result in kernel.run([small, large])] == [True, False]
    assert not np.isfinite(kernel.predict(small.weights, features)).all()
    kernel._trainers = [narrow, *plain._trainers]
    for one, other in zip(kernel.run([small, large]), plain.run([small, large]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for job in (small, large):
        found, expected = (
            each.predict(job.weights, job.examples.features) for each in (kernel, plain)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    chains, stops = [[[small]], [[large]]], [Stops((0, 1), (1,))] * 2
    for held_out in (small.examples, large.examples):
        rated, expected_rated = (
            each.rate_chains(chains, stops, coarse=held_out, full=held_out)
            for each in (kernel, plain)
        )
        for own, same in zip(rated, expected_rated, strict=True):
            assert own.is_finite and own.full == same.full
            assert own.coarse.tolist() == same.coarse.tolist()
    kernel._trainers = [narrow]
    rated = kernel.rate_chains(chains, stops, coarse=small.examples, full=large.examples)
    assert [each.is_finite for each in rated] == [False, False]


def test_predictions_have_no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covertfl.kernels.cnn.trainer._PREDICT_ROWS", 25)
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._PREDICTED_WEIGHTS", 2)
    kernel = CnnKernel(make_dropping, "multiclass", LocalOptimizer(), "cpu")
    features = make_examples().features
    weights = [draw_weights(make_dropping, seed=seed) for seed in range(3)]
    found = kernel.predict_many(weights, features)
    for vector, outputs in zip(weights, found, strict=True):
        module = make_dropping().eval()
        nn.utils.vector_to_parameters(torch.tensor(vector), module.parameters())
        expected = module(torch.tensor(features)).detach().numpy()
        np.testing.assert_allclose(outputs, expected, atol=1e-5)
        np.testing.assert_allclose(kernel.predict(vector, features), expected, atol=1e-5)
    assert kernel.predict(weights[0], features[:0]).shape == (0, 3)


def test_bad_chains_are_refused() -> None:
    kernel = CnnKernel(make_plain, "multiclass", LocalOptimizer(), "cpu")
    job = make_jobs(make_plain)[0]
    for empty in ([], [[job], []]):
        with pytest.raises(InvalidInput, match="at least one job"):
            kernel.run_chains([empty])
    with pytest.raises(InvalidInput, match="must train"):
        kernel.run_chains([[[job], [replace(job, work="gradient")]]])
    with pytest.raises(InvalidInput, match="same batch size"):
        kernel.run_chains([[[job], [replace(job, batch_size=3)]]])
    with pytest.raises(InvalidInput, match="the same weights"):
        kernel.run_chains([[[job, replace(job, weights=job.weights + 1.0)]]])
    with pytest.raises(InvalidInput, match="precision must be float16 or tf32 or"):
        CnnKernel(make_plain, "binary", LocalOptimizer(), "cpu", precision="half")  # type: ignore[arg-type]
