"""Stacked jobs of modules with buffers, normalisation and dropout: as one by one, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.choose import draw_weights
from covertfl.kernels.job import Vector
from tests.kernels.autograd.test_kernel import Noisy, Smoothed
from tests.support.buffered_models import TOKENS, WORDS, ResNet18, TinyTransformer

SGD = LocalOptimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01)


def make_normed() -> nn.Module:
    """BatchNorm with and without a momentum and with batch statistics only, GroupNorm, dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Conv2d(6, 6, 3),
        nn.GroupNorm(3, 6),
        nn.BatchNorm2d(6, momentum=None),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, 8),
        nn.BatchNorm1d(8, affine=False),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )


class Counting(nn.Module):
    """A module with buffers that are no weights: one counts batches, one sums integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 3)
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("total", torch.zeros(2, dtype=torch.int64))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Scale the outputs by what was counted before."""
        calls, total = self.get_buffer("calls"), self.get_buffer("total")
        scale = 1.0 + calls + 0.01 * total.sum()
        if self.training:
            calls.add_(1)
            self.total = total + (values > 0.0).sum() % 7
        outputs: torch.Tensor = self.linear(values.flatten(1)) * scale
        return outputs


class Branching(nn.Module):
    """A module whose way depends on its values, which no stack can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(192, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Turn the outputs round if the mean input is negative."""
        outputs: torch.Tensor = self.linear(values.flatten(1))
        return -outputs if float(values.detach().mean()) < 0.0 else outputs


MODELS: list[Callable[[], nn.Module]] = [make_normed, Counting]


def make_jobs(
    make_model: Callable[[], nn.Module], image: tuple[int, ...] = (3, 8, 8)
) -> list[LocalJob]:
    """Return jobs of several lengths, some with a last batch of one example or a short one."""
    generator = np.random.default_rng(0)
    features = generator.normal(0.3, 1.5, size=(60, *image)).astype(np.float32)
    examples = Examples(features, generator.integers(0, 3, 60))
    lengths = [31, 40, 0, 7, 23, 40, 21, 1]
    jobs = [
        LocalJob(
            draw_weights(make_model, seed=number % 3),
            examples,
            generator.permutation(60)[:length],
            10,
            number,
        )
        for number, length in enumerate(lengths)
    ]
    return jobs + [replace(job, work="gradient") for job in jobs[:4]]


def assert_close(results: list[Vector], expected: list[Vector], tolerance: float = 1e-6) -> None:
    """Assert that vectors agree to a share of their largest number."""
    for number, (one, other) in enumerate(zip(results, expected, strict=True)):
        scale = max(float(np.abs(other).max()), 1.0)
        np.testing.assert_allclose(
            one, other, rtol=0.0, atol=tolerance * scale, err_msg=str(number)
        )


def make_kernels(make_model: Callable[[], nn.Module]) -> tuple[TorchKernel, TorchKernel]:
    """Return a kernel that stacks jobs and one that runs them one by one."""
    stacked = TorchKernel(make_model, "multiclass", SGD, batched=True)
    return stacked, TorchKernel(make_model, "multiclass", SGD)


@pytest.mark.parametrize("make_model", MODELS)
def test_a_stack_is_its_jobs_one_by_one(make_model: Callable[[], nn.Module]) -> None:
    jobs = make_jobs(make_model)
    stacked, single = make_kernels(make_model)
    results = stacked.run(jobs)
    assert stacked._stacks.can_stack(jobs)
    assert np.abs(results[0] - jobs[0].weights).max() > 1e-3
    assert_close(results, single.run(jobs))


def test_a_step_of_a_deep_network() -> None:
    """One batch only: normalised layers magnify differences of rounding from step to step."""
    jobs = [
        replace(job, rows=job.rows[:size])
        for job, size in zip(make_jobs(ResNet18, (3, 32, 32)), (10, 10, 5, 6, 10, 1), strict=False)
    ]
    jobs += [replace(job, work="gradient") for job in jobs]
    stacked, single = make_kernels(ResNet18)
    results = stacked.run(jobs)
    assert stacked._stacks.can_stack(jobs)
    assert_close(results, single.run(jobs), 1e-5)


@pytest.mark.parametrize("make_model", MODELS)
def test_order_and_company_do_not_matter(make_model: Callable[[], nn.Module]) -> None:
    jobs = make_jobs(make_model)
    kernel = make_kernels(make_model)[0]
    together = kernel.run(jobs)
    assert_close(kernel.run(jobs[::-1])[::-1], together)
    assert_close([kernel.run([job])[0] for job in jobs], together)
    assert [one.tobytes() for one in kernel.run(jobs)] == [one.tobytes() for one in together]


def test_buffers_are_measured_in_a_stack() -> None:
    generator = np.random.default_rng(3)
    features = generator.normal(2.0, 3.0, size=(41, 3)).astype(np.float32)
    data = Examples(features, generator.integers(2, size=41))
    job = LocalJob(draw_weights(Smoothed, seed=4), data, np.arange(41), 10, 3)
    jobs = [job, replace(job, rows=np.arange(25)), replace(job, work="gradient")]
    stacked, single = make_kernels(Smoothed)
    results = stacked.run(jobs)
    assert stacked._stacks.can_stack(jobs)
    assert_close(results, single.run(jobs))
    level = stacked.layout.locate("level")
    assert np.abs(results[0][level]).max() > 1.0
    assert not results[2][stacked.layout.num_trained :].any()


def test_a_transformer_with_constants() -> None:
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, WORDS, size=(30, TOKENS)).astype(np.float32)
    data = Examples(tokens, generator.integers(0, 2, 30).astype(np.float32))
    jobs = [
        LocalJob(draw_weights(TinyTransformer, seed=n), data, np.arange(12 + 5 * n), 8, n)
        for n in range(3)
    ]
    stacked = TorchKernel(TinyTransformer, "binary", SGD, batched=True)
    results = stacked.run(jobs)
    assert stacked._stacks.can_stack(jobs)
    assert_close(results, TorchKernel(TinyTransformer, "binary", SGD).run(jobs))


@pytest.mark.parametrize("make_model", [Noisy, Branching])
def test_what_cannot_be_stacked_runs_one_by_one(make_model: Callable[[], nn.Module]) -> None:
    """A module that draws from torch's generator draws by job, whatever else runs."""
    image = (64,) if make_model is Noisy else (3, 8, 8)
    jobs = make_jobs(make_model, image)
    stacked, single = make_kernels(make_model)
    results = stacked.run(jobs)
    assert not stacked._stacks.can_stack(jobs)
    for one, other in zip(results, single.run(jobs), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("make_model", [*MODELS, Noisy])
def test_a_gpu_repeats_itself(make_model: Callable[[], nn.Module]) -> None:
    image = (64,) if make_model is Noisy else (3, 8, 8)
    jobs = make_jobs(make_model, image)
    kernel = TorchKernel(make_model, "multiclass", SGD, "cuda")
    first, again = kernel.run(jobs), kernel.run(jobs)
    assert [one.tobytes() for one in first] == [one.tobytes() for one in again]
    if make_model is not Noisy:
        for one, other in zip(first, make_kernels(make_model)[1].run(jobs), strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-4)
