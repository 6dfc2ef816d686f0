"""The compiled kernel for perceptrons: vectors, cases worked by hand, any shape, its layers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, Layout, LocalJob, LocalOptimizer, Loss, OptimizerName
from covertfl.kernels.mlp import DropoutLayer, LinearLayer, MlpKernel, MlpLayer, RectifierLayer

pytest.importorskip("torch")
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import ModelFactory, describe_layout
from covertfl.kernels.choose import _list_layers, choose_kernel, draw_weights
from tests.kernels.test_contract import make_perceptron
from tests.support.plain_loop import OPTIMIZERS, make_images, train_plainly
from tests.support.tensors import dropout_mask


def make_head() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 1))


def make_wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


# The model, its inputs and its loss.
MODELS: dict[str, tuple[ModelFactory, tuple[int, ...], Loss]] = {
    "logistic": (lambda: nn.Sequential(nn.Linear(784, 10)), (784,), "multiclass"),
    "head": (make_head, (128,), "binary"),
    "wide": (make_wide, (1, 28, 28), "multiclass"),
    "odd": (make_perceptron, (242,), "multiclass"),
}


def make_kernel(
    name: str, optimizer: LocalOptimizer | None = None, *, vector_length: int = 16
) -> MlpKernel:
    make_model, _, loss = MODELS[name]
    module, options = make_model(), optimizer or LocalOptimizer()
    layers = _list_layers(module)
    assert layers is not None
    return MlpKernel(describe_layout(module), layers, loss, options, vector_length=vector_length)


def make_job(name: str) -> LocalJob:
    make_model, shape, loss = MODELS[name]
    examples = make_images(120, shape)
    if loss == "binary":
        examples = Examples(examples.features, (examples.labels > 0).astype(np.float32))
    return LocalJob(draw_weights(make_model, seed=2), examples, np.arange(107), 40, 5)


@pytest.mark.parametrize("vector_length", [4, 8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_vectors_of_every_length_agree_with_autograd(name: str, vector_length: int) -> None:
    options, job = OPTIMIZERS["momentum"], make_job(name)
    jobs = [job, replace(job, work="gradient")]
    make_model, _, loss = MODELS[name]
    results = make_kernel(name, options, vector_length=vector_length).run(jobs)
    expected = TorchKernel(make_model, loss, options).run(jobs)
    for result, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=0.0, atol=1e-5)
    plain = train_plainly(make_model, options, job)
    np.testing.assert_allclose(results[0], plain, rtol=0.0, atol=1e-5)


LINE = [LinearLayer(2, 1)]
LINE_LAYOUT = Layout(("weight", "bias"), ((1, 2), (1,)))


def test_a_step_worked_by_hand() -> None:
    """Two inputs, one logit at 0: the derivative is 1/2 - label; the mean of two examples."""
    examples = Examples(
        np.array([[1.0, 2.0], [3.0, -4.0]], dtype=np.float32), np.array([1, 0], dtype=np.float32)
    )
    job = LocalJob(np.zeros(3, dtype=np.float32), examples, np.array([0, 1]), 2, 0)
    # d/dw = (-1/2 (1, 2) + 1/2 (3, -4)) / 2 = (1/2, -3/2), d/db = 0
    kernel = MlpKernel(LINE_LAYOUT, LINE, "binary", LocalOptimizer("sgd", lr=0.1))
    np.testing.assert_allclose(kernel.run([job])[0], [-0.05, 0.15, 0.0], atol=1e-7)
    gradient = kernel.run([replace(job, work="gradient")])[0]
    np.testing.assert_allclose(gradient, [0.5, -1.5, 0.0], atol=1e-7)
    # Adam's first step is lr in the direction of the sign.
    kernel = MlpKernel(LINE_LAYOUT, LINE, "binary", LocalOptimizer("adam", lr=0.1))
    np.testing.assert_allclose(kernel.run([job])[0], [-0.1, 0.1, 0.0], atol=1e-6)
    # Momentum: two passes over the same batch with derivatives worked by hand.
    kernel = MlpKernel(LINE_LAYOUT, LINE, "binary", LocalOptimizer("sgd", lr=0.1, momentum=0.5))
    twice = replace(job, rows=np.array([0, 1, 0, 1]))
    logits = np.array([-0.05 + 0.3, -0.15 - 0.6])
    derivatives = (1.0 / (1.0 + np.exp(-logits)) - [1.0, 0.0]) / 2.0
    second = np.array([derivatives @ [1.0, 3.0], derivatives @ [2.0, -4.0], derivatives.sum()])
    expected = [-0.05, 0.15, 0.0] - 0.1 * (0.5 * np.array([0.5, -1.5, 0.0]) + second)
    np.testing.assert_allclose(kernel.run([twice])[0], expected, atol=1e-6)


def test_bits_do_not_depend_on_where_arrays_lie() -> None:
    job, kernel = make_job("head"), make_kernel("head")
    shifted = np.empty(job.examples.features.size + 1, dtype=np.float32)[1:]
    shifted = shifted.reshape(job.examples.features.shape)
    shifted[:] = job.examples.features
    weights = np.concatenate([[np.float32(0.0)], job.weights])[1:]
    moved = replace(job, weights=weights, examples=Examples(shifted, job.examples.labels))
    assert kernel.run([job])[0].tobytes() == kernel.run([moved])[0].tobytes()


def test_subnormal_numbers_are_flushed_in_jobs_only() -> None:
    """Numbers below 1e-38 become 0 inside the kernel; the caller's arithmetic is unchanged."""
    job, kernel = make_job("wide"), make_kernel("wide", OPTIMIZERS["sgd"])
    kernel.threads = 1
    tiny = Examples(job.examples.features * np.float32(1e-40), job.examples.labels)
    zero = Examples(np.zeros_like(job.examples.features), job.examples.labels)
    result = kernel.run([replace(job, examples=tiny)])[0]
    assert result.tobytes() == kernel.run([replace(job, examples=zero)])[0].tobytes()
    kernel.predict(job.weights, tiny.features)
    assert np.float32(1e-20) * np.float32(1e-20) > 0.0
    assert (np.full(64, 1e-20, dtype=np.float32) ** 2 > 0.0).all()


def test_extreme_logits() -> None:
    kernel = choose_kernel(
        lambda: nn.Sequential(nn.Linear(1, 3)), "multiclass", LocalOptimizer("sgd", lr=1.0)
    )
    examples = Examples(np.array([[1000.0]], dtype=np.float32), np.array([1]))
    start = np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0], dtype=np.float32)
    job = LocalJob(start, examples, np.array([0]), 1, 0, "gradient")
    np.testing.assert_allclose(kernel.run([job])[0], [1000.0, -1000.0, 0.0, 1.0, -1.0, 0.0])


@settings(deadline=None, max_examples=40)
@given(
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    num_rows=st.integers(1, 30),
    batch_size=st.integers(1, 35),
    name=st.sampled_from(["sgd", "adam", "adamw"]),
    rate=st.sampled_from([0.0, 0.3]),
)
def test_any_shape(
    widths: list[int], num_rows: int, batch_size: int, name: OptimizerName, rate: float
) -> None:
    def make_model() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(rate)]
        return nn.Sequential(*layers[:-2])

    # A large eps keeps rounding of gradients near 0 from being blown up.
    options = LocalOptimizer(name, lr=0.01, eps=1e-2)
    examples = make_images(50, (widths[0],))
    examples = Examples(examples.features, examples.labels % widths[-1])
    job = LocalJob(draw_weights(make_model, seed=0), examples, np.arange(num_rows), batch_size, 3)
    kernel = choose_kernel(make_model, "multiclass", options)
    assert isinstance(kernel, MlpKernel)
    plain = train_plainly(make_model, options, job)
    np.testing.assert_allclose(kernel.run([job])[0], plain, rtol=0.0, atol=1e-5)


def test_bad_models_are_refused() -> None:
    cases: list[tuple[list[MlpLayer], Loss, str]] = [
        ([RectifierLayer()], "binary", "last layer"),
        ([*LINE, RectifierLayer()], "binary", "last layer"),
        ([LinearLayer(2, 2), LinearLayer(4, 1)], "binary", "cannot follow"),
        ([DropoutLayer(1.0), *LINE], "multiclass", "dropout rate"),
        ([LinearLayer(3, 2)], "multiclass", "have 8 weights, the layout 3"),
    ]
    for layers, loss, message in cases:
        with pytest.raises(InvalidInput, match=message):
            MlpKernel(LINE_LAYOUT, layers, loss, LocalOptimizer())


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_compiled_masks_are_the_same(seed: int) -> None:
    """The gradient of a linear layer of dropped inputs shows the mask."""
    kernel = choose_kernel(
        lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(50, 1, bias=False)),
        "binary",
        LocalOptimizer(),
    )
    examples = Examples(np.ones((1, 50), dtype=np.float32), np.zeros(1, dtype=np.float32))
    start = np.zeros(50, dtype=np.float32)
    job = LocalJob(start, examples, np.array([0]), 1, seed, "gradient")
    expected = 0.5 * dropout_mask(seed, 0, 0, (1, 50), 0.3)[0]
    np.testing.assert_array_equal(kernel.run([job])[0], expected)
