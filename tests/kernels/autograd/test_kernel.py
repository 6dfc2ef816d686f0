"""The kernel for any torch module: against a plain loop, one by one and stacked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import describe_layout
from covertfl.kernels.choose import draw_weights
from tests.support.plain_loop import make_images, make_uneven_jobs


def make_network() -> nn.Module:
    """A small convolutional network with a normalisation and two dropouts."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(36, 12),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(12, 3),
    )


def make_head() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))


class Noisy(nn.Module):
    """A model that draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the outputs of dropped inputs."""
        dropped = nn.functional.dropout(values.flatten(1), 0.5, self.training)
        outputs: torch.Tensor = self.linear(dropped)
        return outputs


def make_examples(num: int = 120, seed: int = 0) -> Examples:
    return make_images(num, (1, 8, 8), seed)


def make_jobs() -> list[LocalJob]:
    return make_uneven_jobs(make_network, (make_examples(), make_examples(seed=5)))


@pytest.mark.parametrize("make_model", [make_network, Noisy])
def test_bits_depend_on_the_job_alone(make_model: type[nn.Module]) -> None:
    weights = draw_weights(make_model, seed=0)
    jobs = [replace(job, weights=weights) for job in make_jobs()]
    kernel = TorchKernel(make_model, "multiclass", LocalOptimizer(), threads=2)
    together = kernel.run(jobs)
    single = TorchKernel(make_model, "multiclass", LocalOptimizer(), threads=1)
    backwards = single.run(jobs[::-1])[::-1]
    for job, result, again in zip(jobs, together, backwards, strict=True):
        assert kernel.run([job])[0].tobytes() == result.tobytes() == again.tobytes()


@pytest.mark.parametrize("batched", [False, True])
def test_torch_is_left_as_it_was(batched: bool) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    kernel = TorchKernel(Noisy, "multiclass", LocalOptimizer(), batched=batched)
    job = replace(make_jobs()[0], weights=draw_weights(Noisy, seed=0))
    kernel.run([job, job])
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("batched", [False, True])
def test_a_step_worked_by_hand(batched: bool) -> None:
    """One logit at 0: the derivative is 1/2 - label; the mean of two examples."""
    features = np.zeros((2, 64), dtype=np.float32)
    features[:, :2] = [[1.0, 2.0], [3.0, -4.0]]
    examples = Examples(features, np.array([1, 0], dtype=np.float32))
    job = LocalJob(np.zeros(65, dtype=np.float32), examples, np.array([0, 1]), 2, 0)
    kernel = TorchKernel(make_head, "binary", LocalOptimizer("sgd", lr=0.1), batched=batched)
    weights, gradient = kernel.run([job, replace(job, work="gradient")])
    np.testing.assert_allclose(gradient[:2], [0.5, -1.5], atol=1e-7)
    np.testing.assert_allclose(weights[:2], [-0.05, 0.15], atol=1e-7)
    assert not gradient[2:].any()


def test_the_gradient_is_that_of_all_rows() -> None:
    """Without dropout, batches do not matter."""
    examples = Examples(make_examples().features, (make_examples().labels > 0).astype(np.float32))
    weights = draw_weights(make_head, seed=0)
    rows = np.arange(50)
    job = LocalJob(weights, examples, rows, 20, 0, "gradient")
    whole = replace(job, batch_size=50)
    first, second = TorchKernel(make_head, "binary", LocalOptimizer()).run([job, whole])
    np.testing.assert_allclose(first, second, rtol=0.0, atol=1e-6)


class Smoothed(nn.Module):
    """Layers with BatchNorm, one of which counts, and a buffer that is assigned anew."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 2)
        self.norm, self.mean = nn.BatchNorm1d(4), nn.BatchNorm1d(2, momentum=None, affine=False)
        self.register_buffer("level", torch.zeros(3))
        self.register_buffer("mask", torch.full((2,), -torch.inf))
        self.register_buffer("hidden", torch.ones(3), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Track the mean of the inputs in training."""
        level, hidden = self.get_buffer("level"), self.get_buffer("hidden")
        if self.training:
            self.level = 0.5 * level + 0.5 * values.mean(dim=0)
        inner = torch.relu(self.norm(self.inner(values * hidden)))
        outputs: torch.Tensor = self.outer(inner) + self.mean(inner[:, :2])
        return outputs


def test_buffers_are_measured_as_torch_does() -> None:
    """Against torch's own modules and optimizer; jobs do not see the buffers of earlier ones."""
    kernel = TorchKernel(Smoothed, "multiclass", LocalOptimizer("sgd", lr=0.1), threads=1)
    measured = ("level", "norm.running_mean", "norm.running_var")
    assert kernel.layout.names[kernel.layout.names.index("level") :] == (
        *measured,
        "mean.running_mean",
        "mean.running_var",
    )
    assert kernel.layout.measured == 5
    generator = np.random.default_rng(3)
    features = generator.normal(2.0, 3.0, size=(41, 3)).astype(np.float32)
    data = Examples(features, generator.integers(2, size=41))
    job = LocalJob(draw_weights(Smoothed, seed=4), data, np.arange(41), 10, 3)
    torch.manual_seed(4)
    module = Smoothed()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for start in range(0, 41, 10):
        if start == 40:  # a batch of one example
            module.norm.eval()
            module.mean.eval()
        optimizer.zero_grad()
        outputs = module(torch.from_numpy(features[start : start + 10]))
        targets = torch.from_numpy(data.labels[start : start + 10])
        nn.functional.cross_entropy(outputs, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    stored = module.state_dict()
    expected = np.concatenate([np.ravel(stored[name].numpy()) for name in kernel.layout.names])
    for result in kernel.run([job, job, job]):
        np.testing.assert_allclose(result, expected, atol=2e-6)
    outputs = module.eval()(torch.from_numpy(features)).detach().numpy()
    np.testing.assert_allclose(kernel.predict(expected, features), outputs, atol=1e-5)


def test_unfit_models_are_refused() -> None:
    def precise() -> nn.Module:
        module = nn.Linear(2, 2)
        module.register_buffer("scale", torch.ones(1).double())
        return module

    def frozen() -> nn.Module:
        return nn.Linear(2, 2).requires_grad_(False)

    with pytest.raises(InvalidInput, match=r"buffers must be 32-bit floats, got scale of"):
        TorchKernel(precise, "multiclass", LocalOptimizer())
    with pytest.raises(InvalidInput, match=r"weight of torch\.float32, frozen"):
        describe_layout(frozen())
    with pytest.raises(InvalidInput, match=r"torch\.float64"):
        describe_layout(nn.Linear(2, 2).double())
    with pytest.raises(InvalidInput, match="got none"):
        describe_layout(nn.ReLU())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_repeats_itself_and_agrees_with_the_cpu() -> None:
    jobs = make_jobs()
    kernel = TorchKernel(make_network, "multiclass", LocalOptimizer(), "cuda")
    first, again = kernel.run(jobs), kernel.run(jobs)
    plain = TorchKernel(make_network, "multiclass", LocalOptimizer()).run(jobs)
    for one, two, other in zip(first, again, plain, strict=True):
        assert one.tobytes() == two.tobytes()
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-5)
