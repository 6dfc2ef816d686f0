"""The choice of a kernel, and initial weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Layout, LocalOptimizer
from covertfl.kernels.mlp import MlpKernel

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import describe_layout
from covertfl.kernels.choose import check_device, choose_kernel, draw_weights


def make_perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 4, bias=False)
    )


def make_tied() -> nn.Module:
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.ReLU(), linear)


PERCEPTRONS: list[Callable[[], nn.Module]] = [
    make_perceptron,
    lambda: nn.Sequential(nn.Linear(12, 4)),
    lambda: nn.Sequential(nn.Dropout(0.2), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 4)),
]
OTHERS: list[Callable[[], nn.Module]] = [
    lambda: nn.Linear(12, 4),
    lambda: nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 4)),
    lambda: nn.Sequential(nn.Linear(12, 4), nn.ReLU()),
    lambda: nn.Sequential(nn.Linear(12, 4), nn.Dropout(1.0), nn.Linear(4, 4)),
    lambda: nn.Sequential(nn.Flatten(2), nn.Linear(12, 4)),
    make_tied,
]


@pytest.mark.parametrize("make_model", PERCEPTRONS)
def test_perceptrons_get_the_compiled_kernel(make_model: Callable[[], nn.Module]) -> None:
    kernel = choose_kernel(make_model, "multiclass", LocalOptimizer())
    other = TorchKernel(make_model, "multiclass", LocalOptimizer())
    assert isinstance(kernel, MlpKernel) and kernel.layout == other.layout
    features = np.random.default_rng(0).standard_normal((60, 12)).astype(np.float32)
    weights = draw_weights(make_model, seed=3)
    found, expected = kernel.predict(weights, features), other.predict(weights, features)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("make_model", OTHERS)
def test_other_models_get_autograd(make_model: Callable[[], nn.Module]) -> None:
    assert isinstance(choose_kernel(make_model, "multiclass", LocalOptimizer()), TorchKernel)


def test_without_eps_autograd_is_taken() -> None:
    optimizer = LocalOptimizer(eps=0.0)
    assert isinstance(choose_kernel(make_perceptron, "multiclass", optimizer), TorchKernel)


def test_devices() -> None:
    with pytest.raises(InvalidInput, match="device must be cpu or cuda, got 'tpu'"):
        choose_kernel(make_perceptron, "multiclass", LocalOptimizer(), "tpu")
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="device 'cuda' is not available"):
            choose_kernel(make_perceptron, "multiclass", LocalOptimizer(), "cuda")


def test_a_gpu_that_is_not_there_is_named_with_the_last_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("cuda:1")
    with pytest.raises(InvalidInput, match="'cuda:2' is not available; the last is cuda:1"):
        check_device("cuda:2")


def test_first_weights() -> None:
    state = torch.get_rng_state()
    first = draw_weights(make_perceptron, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert first.dtype == np.float32
    assert first.tobytes() == draw_weights(make_perceptron, seed=1).tobytes()
    assert not np.array_equal(first, draw_weights(make_perceptron, seed=2))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = make_perceptron()
    expected = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    np.testing.assert_array_equal(first, expected)


def test_choosing_leaves_the_generator_alone() -> None:
    state = torch.get_rng_state()
    for make_model in (make_perceptron, make_tied):
        choose_kernel(make_model, "multiclass", LocalOptimizer())
    assert torch.equal(state, torch.get_rng_state())


def test_layouts() -> None:
    expected = Layout(("1.weight", "1.bias", "4.weight"), ((9, 12), (9,), (4, 9)))
    assert describe_layout(make_perceptron()) == expected
    normed = Layout(("0.weight", "0.bias", "0.running_mean", "0.running_var"), ((2,),) * 4, 2)
    assert describe_layout(nn.Sequential(nn.BatchNorm1d(2))) == normed
    assert draw_weights(lambda: nn.BatchNorm1d(2), seed=0).tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
