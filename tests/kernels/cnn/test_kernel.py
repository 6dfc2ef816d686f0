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
from covertfl.kernels.choose import draw_weights
from covertfl.kernels.cnn.blocks import Block
from covertfl.kernels.cnn.kernel import CnnKernel
from covertfl.tasks.models import make_paper_cnn, make_small_cnn
from tests.support.plain_loop import OPTIMIZERS
from tests.support.small_cnns import make_dropping, make_examples, make_jobs, make_plain


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


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_jobs_do_not_depend_on_their_stack(
    most: int, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a stack takes few of them, and steps are prepared two by two."""
    jobs = make_jobs(make_dropping)
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS[optimizer], "cpu")
    expected = [kernel.run([job])[0] for job in jobs]
    monkeypatch.setattr("covertfl.kernels.cnn.steps._STACKED_JOBS", most)
    monkeypatch.setattr("covertfl.kernels.cnn.steps._TABLE_STEPS", 2)
    for one, other in zip(kernel.run(jobs), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-6)


def test_jobs_that_do_not_fit_run_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = CnnKernel(make_dropping, "multiclass", OPTIMIZERS["adam"], "cpu")
    together = kernel.run(make_jobs(make_dropping))
    monkeypatch.setattr("covertfl.kernels.cnn.kernel._HELD_FLOATS", 5 * kernel.layout.size)
    for one, other in zip(together, kernel.run(make_jobs(make_dropping)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-6)


def test_what_was_trained_before_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert kernel.run([still])[0].tobytes() == job.weights.tobytes()


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


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InvalidInput, match="precision must be float16 or tf32 or"):
        CnnKernel(make_plain, "binary", LocalOptimizer(), "cpu", precision="half")  # type: ignore[arg-type]
