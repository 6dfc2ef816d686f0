"""The compiled kernel of convolutional networks: against a plain loop, autograd and differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import ModelFactory
from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.cnn.blocks import describe_network
from covertfl.kernels.cnn.cpu import CnnCpuKernel, _choose_vector_length, fits_cpu_kernel
from covertfl.kernels.job import Vector
from covertfl.tasks.models import make_paper_cnn, make_small_cnn
from tests.support.plain_loop import OPTIMIZERS
from tests.support.small_cnns import make_dropping, make_examples, make_jobs, make_plain

pytestmark = pytest.mark.slow


def make_odd() -> nn.Module:
    """A window of one row, windows of three pixels that leave a border out, 17 and 33 outputs."""
    return nn.Sequential(
        nn.Conv2d(2, 17, (1, 4)),
        nn.MaxPool2d(3),
        nn.ReLU(),
        nn.Conv2d(17, 33, 2, bias=False),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(66, 3, bias=False),
    )


def make_narrow() -> nn.Module:
    """A convolution to one pixel, and one of that pixel."""
    return nn.Sequential(
        nn.Conv2d(2, 3, 11), nn.ReLU(), nn.Conv2d(3, 5, 1), nn.ReLU(), nn.Flatten(), nn.Linear(5, 1)
    )


MODELS: list[ModelFactory] = [make_plain, make_dropping, make_odd]


def make_binary(examples: Examples) -> Examples:
    return Examples(examples.features, (examples.labels > 0).astype(np.float32))


@pytest.mark.parametrize("vector_length", [4, 8, 16])
@pytest.mark.parametrize("make_model", MODELS)
def test_jobs_are_those_of_autograd(make_model: ModelFactory, vector_length: int) -> None:
    """Uneven jobs and gradients, for each width of vectors."""
    jobs, options = make_jobs(make_model), OPTIMIZERS["adamw"]
    kernel = CnnCpuKernel(make_model, "multiclass", options, vector_length=vector_length)
    expected = TorchKernel(make_model, "multiclass", options).run(jobs)
    for job, result, other in zip(jobs, kernel.run(jobs), expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=0.0, atol=1e-5, err_msg=str(job.seed))


@pytest.mark.parametrize("make_model", MODELS)
def test_bits_do_not_depend_on_the_width_of_fused_vectors(make_model: ModelFactory) -> None:
    jobs = make_jobs(make_model)
    wide, narrow = (
        CnnCpuKernel(make_model, "multiclass", LocalOptimizer(), vector_length=length).run(jobs)
        for length in (16, 8)
    )
    assert all(np.array_equal(*pair) for pair in zip(wide, narrow, strict=True))


@pytest.mark.parametrize(("outputs", "expected"), [(8, 8), (16, 16), (24, 8), (64, 16)])
def test_vectors_are_no_wider_than_the_network_fills(outputs: int, expected: int) -> None:
    """A convolution does nearly all the work; with 24 outputs, 32 would be a third more."""
    module = nn.Sequential(
        nn.Conv2d(1, outputs, 5), nn.MaxPool2d(12), nn.Flatten(), nn.Linear(4 * outputs, 2)
    )
    network = describe_network(module, (1, 28, 28))
    assert network is not None
    assert _choose_vector_length(network) == expected


def measure_precisely(make_model: ModelFactory, weights: Vector, job: LocalJob) -> float:
    """Return the mean loss of a job's rows in double precision."""
    module = make_model().double().eval()
    nn.utils.vector_to_parameters(torch.tensor(weights).double(), module.parameters())
    outputs = module(torch.tensor(job.examples.features[job.rows]).double())
    labels = torch.tensor(job.examples.labels[job.rows])
    return nn.functional.cross_entropy(outputs, labels).item()


def test_a_gradient_is_that_of_finite_differences() -> None:
    job = replace(make_jobs(make_plain)[0], work="gradient")
    gradient = CnnCpuKernel(make_plain, "multiclass", LocalOptimizer()).run([job])[0]
    generator = np.random.default_rng(0)
    for place in generator.choice(len(gradient), 40, replace=False):
        ends = []
        for sign in (1.0, -1.0):
            moved = job.weights.astype(np.float64)
            moved[place] += sign * 1e-6
            ends.append(measure_precisely(make_plain, cast(Vector, moved), job))
        assert gradient[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-6)


def test_the_networks_of_the_images_task() -> None:
    generator = np.random.default_rng(0)
    features = generator.standard_normal((120, 1, 28, 28)).astype(np.float32)
    examples = Examples(features, generator.integers(0, 10, 120))
    models: list[Callable[[], nn.Module]] = [make_small_cnn, make_paper_cnn]
    for make_model in models:
        kernel = choose_kernel(make_model, "multiclass", LocalOptimizer())
        assert isinstance(kernel, CnnCpuKernel)
        weights = draw_weights(make_model, seed=0)
        # One batch that does not pass through the network at once, and several.
        whole = LocalJob(weights, examples, np.arange(110), 110, 3, "gradient")
        jobs = [whole, LocalJob(weights, examples, np.arange(25), 10, 3)]
        other = TorchKernel(make_model, "multiclass", LocalOptimizer())
        for result, expected in zip(kernel.run(jobs), other.run(jobs), strict=True):
            np.testing.assert_allclose(result, expected, rtol=0.0, atol=1e-5)
        np.testing.assert_allclose(
            kernel.predict(weights, features), other.predict(weights, features), atol=1e-6
        )


def test_a_binary_loss_and_convolutions_of_one_pixel() -> None:
    job = replace(make_jobs(make_narrow)[0], examples=make_binary(make_examples()))
    for work in ("train", "gradient"):
        jobs = [replace(job, work=work)]
        result = CnnCpuKernel(make_narrow, "binary", LocalOptimizer()).run(jobs)[0]
        expected = TorchKernel(make_narrow, "binary", LocalOptimizer()).run(jobs)[0]
        np.testing.assert_allclose(result, expected, rtol=0.0, atol=1e-6)


def test_ties_and_zeros_pass_derivatives_as_torch_does() -> None:
    """Equal pixels: the first of a window's maxima has the derivative, and none has it at 0."""
    features = np.zeros((6, 2, 11, 11), dtype=np.float32)
    features[1:] = np.arange(1, 6).reshape(5, 1, 1, 1) // 2
    examples = Examples(features, np.arange(6) % 3)
    for make_model in (make_plain, make_dropping):
        weights = draw_weights(make_model, seed=2)

        job = LocalJob(weights, examples, np.arange(6), 6, 0, "gradient")
        expected = TorchKernel(make_model, "multiclass", LocalOptimizer()).run([job])[0]
        result = CnnCpuKernel(make_model, "multiclass", LocalOptimizer()).run([job])[0]
        np.testing.assert_allclose(result, expected, rtol=0.0, atol=1e-6)


def test_only_networks_that_fit_are_taken() -> None:
    optimizer = LocalOptimizer()
    for make_model in (*MODELS, make_narrow):
        assert fits_cpu_kernel(make_model(), optimizer)
        assert not fits_cpu_kernel(make_model(), LocalOptimizer(eps=0.0))
    others = [
        nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()),
        nn.Sequential(nn.Conv2d(1, 3, 4, padding=1), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Conv2d(1, 3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(3, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(3, 2)),
    ]
    for module in others:
        assert not fits_cpu_kernel(module, optimizer)
