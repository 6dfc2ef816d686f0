"""The compiled kernel for perceptrons against autograd, a plain loop and cases worked by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss, OptimizerName, Work
from covertfl.kernels.mlp import DropoutLayer, LinearLayer, MlpKernel, MlpLayer, RectifierLayer

pytest.importorskip("torch")
import torch

from tests.support.perceptrons import (
    MODELS,
    OPTIMIZERS,
    draw_weights,
    linear_layers,
    make_examples,
    make_jobs,
    make_kernel,
    make_layout,
    measure_loss,
    train_plainly,
)
from tests.support.tensors import dropout_mask


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_is_that_of_a_plain_loop(name: str, optimizer: str) -> None:
    layers, loss = MODELS[name]
    options = OPTIMIZERS[optimizer]
    job = make_jobs(name)[0]
    result = make_kernel(name, options).run([job])[0]
    plain = train_plainly(layers, loss, options, job)
    assert np.abs(plain - job.weights).max() > 1e-3
    np.testing.assert_allclose(result, plain, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("vector_length", [4, 8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(name: str, vector_length: int) -> None:
    layers, loss = MODELS[name]
    job = replace(make_jobs(name)[0], work="gradient")
    result = make_kernel(name, vector_length=vector_length).run([job])[0]
    layout = make_layout(layers)
    parts = {
        key: torch.tensor(part, requires_grad=True)
        for key, part in layout.split(job.weights).items()
    }
    for step, start in enumerate(range(0, len(job.rows), job.batch_size)):
        rows = job.rows[start : start + job.batch_size]
        share = len(rows) / len(job.rows)
        torch.autograd.backward(share * measure_loss(layers, parts, job, rows, step, loss))
    grads = {key: part.grad for key, part in parts.items() if part.grad is not None}
    expected = layout.join({key: grad.numpy() for key, grad in grads.items()})
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-7)


def test_a_step_worked_by_hand() -> None:
    """Two inputs, one logit at 0: the derivative is 1/2 - label; the mean of two examples."""
    layers: list[MlpLayer] = [LinearLayer(2, 1)]
    examples = Examples(
        np.array([[1.0, 2.0], [3.0, -4.0]], dtype=np.float32), np.array([1, 0], dtype=np.float32)
    )
    start = np.zeros(3, dtype=np.float32)
    job = LocalJob(start, examples, np.array([0, 1]), 2, 0)
    # d/dw = (-1/2 (1, 2) + 1/2 (3, -4)) / 2 = (1/2, -3/2), d/db = 0
    kernel = MlpKernel(make_layout(layers), layers, "binary", LocalOptimizer("sgd", lr=0.1))
    np.testing.assert_allclose(kernel.run([job])[0], [-0.05, 0.15, 0.0], atol=1e-7)
    gradient = kernel.run([replace(job, work="gradient")])[0]
    np.testing.assert_allclose(gradient, [0.5, -1.5, 0.0], atol=1e-7)
    # Adam's first step is lr in the direction of the sign.
    kernel = MlpKernel(make_layout(layers), layers, "binary", LocalOptimizer("adam", lr=0.1))
    np.testing.assert_allclose(kernel.run([job])[0], [-0.1, 0.1, 0.0], atol=1e-6)
    # Momentum: two passes over the same batch with derivatives worked by hand.
    kernel = MlpKernel(
        make_layout(layers), layers, "binary", LocalOptimizer("sgd", lr=0.1, momentum=0.5)
    )
    twice = replace(job, rows=np.array([0, 1, 0, 1]))
    logits = np.array([-0.05 + 0.3, -0.15 - 0.6])
    derivatives = (1.0 / (1.0 + np.exp(-logits)) - [1.0, 0.0]) / 2.0
    second = np.array([derivatives @ [1.0, 3.0], derivatives @ [2.0, -4.0], derivatives.sum()])
    expected = [-0.05, 0.15, 0.0] - 0.1 * (0.5 * np.array([0.5, -1.5, 0.0]) + second)
    np.testing.assert_allclose(kernel.run([twice])[0], expected, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_bits_depend_on_the_job_alone(name: str) -> None:
    jobs = make_jobs(name, 7)
    together = make_kernel(name, threads=2).run(jobs)
    assert [r.tobytes() for r in make_kernel(name, threads=1).run(jobs)] == [
        r.tobytes() for r in together
    ]
    backwards = make_kernel(name, threads=3).run(jobs[::-1])[::-1]
    kernel = make_kernel(name)
    for job, result, again in zip(jobs, together, backwards, strict=True):
        assert kernel.run([job])[0].tobytes() == result.tobytes() == again.tobytes()


def test_bits_do_not_depend_on_where_arrays_lie() -> None:
    job = make_jobs("head")[0]
    shifted = np.empty(job.examples.features.size + 1, dtype=np.float32)[1:]
    shifted = shifted.reshape(job.examples.features.shape)
    shifted[:] = job.examples.features
    weights = np.concatenate([[np.float32(0.0)], job.weights])[1:]
    moved = replace(job, weights=weights, examples=Examples(shifted, job.examples.labels))
    kernel = make_kernel("head")
    assert kernel.run([job])[0].tobytes() == kernel.run([moved])[0].tobytes()


def test_widest_vectors_agree_with_the_narrowest() -> None:
    job = make_jobs("odd")[0]
    options = OPTIMIZERS["momentum"]
    narrow = make_kernel("odd", options, vector_length=4).run([job])[0]
    wide = make_kernel("odd", options, vector_length=16).run([job])[0]
    np.testing.assert_allclose(narrow, wide, rtol=0.0, atol=1e-6)


def test_inputs_are_left_as_they_were() -> None:
    jobs = make_jobs("odd", 3)
    before = [(job.weights.copy(), job.rows.copy()) for job in jobs]
    features = jobs[0].examples.features.copy()
    for job in jobs:
        job.weights.flags.writeable = False
        job.rows.flags.writeable = False
    jobs[0].examples.features.flags.writeable = False
    results = make_kernel("odd").run(jobs)
    for job, (weights, rows), result in zip(jobs, before, results, strict=True):
        assert np.array_equal(job.weights, weights)
        assert np.array_equal(job.rows, rows)
        assert not np.shares_memory(result, job.weights)
    assert np.array_equal(jobs[0].examples.features, features)


def test_no_rows_and_no_jobs() -> None:
    job = replace(make_jobs("odd")[0], rows=np.zeros(0, dtype=np.int64))
    kernel = make_kernel("odd")
    assert kernel.run([]) == []
    assert kernel.run([job])[0].tobytes() == job.weights.tobytes()
    assert not kernel.run([replace(job, work="gradient")])[0].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", MODELS)
def test_what_is_not_finite_stays_so(name: str, value: float) -> None:
    jobs = make_jobs(name, 2)
    features = jobs[0].examples.features.copy()
    features[jobs[0].rows[5]] = value
    spoiled = replace(jobs[0], examples=Examples(features, jobs[0].examples.labels))
    kernel = make_kernel(name)
    results = kernel.run([spoiled, jobs[1]])
    assert not np.isfinite(results[0]).all()
    assert results[1].tobytes() == kernel.run([jobs[1]])[0].tobytes()
    outputs = kernel.predict(jobs[0].weights, features)
    is_finite = np.logical_and.reduce(np.isfinite(outputs), axis=1)
    assert not is_finite[jobs[0].rows[5]] or name == "odd"
    assert is_finite.sum() >= len(features) - 1


def test_subnormal_numbers_are_flushed_in_jobs_only() -> None:
    """Numbers below 1e-38 become 0 inside the kernel; the caller's arithmetic is unchanged."""
    job = make_jobs("wide")[0]
    tiny = Examples(job.examples.features * np.float32(1e-40), job.examples.labels)
    kernel = make_kernel("wide", OPTIMIZERS["sgd"], threads=1)
    result = kernel.run([replace(job, examples=tiny)])[0]
    zero = Examples(np.zeros_like(job.examples.features), job.examples.labels)
    assert result.tobytes() == kernel.run([replace(job, examples=zero)])[0].tobytes()
    kernel.predict(job.weights, tiny.features)
    assert np.float32(1e-20) * np.float32(1e-20) > 0.0
    assert (np.full(64, 1e-20, dtype=np.float32) ** 2 > 0.0).all()


def test_extreme_logits() -> None:
    layers: list[MlpLayer] = [LinearLayer(1, 3)]
    kernel = MlpKernel(make_layout(layers), layers, "multiclass", LocalOptimizer("sgd", lr=1.0))
    examples = Examples(np.array([[1000.0]], dtype=np.float32), np.array([1]))
    start = np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0], dtype=np.float32)
    job = LocalJob(start, examples, np.array([0]), 1, 0, "gradient")
    np.testing.assert_allclose(kernel.run([job])[0], [1000.0, -1000.0, 0.0, 1.0, -1.0, 0.0])


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_the_forward_pass(name: str) -> None:
    layers, loss = MODELS[name]
    features = make_examples(layers, loss, 2100).features
    weights = draw_weights(layers)
    values = torch.tensor(features)
    parts = make_layout(layers).split(weights)
    number = 0
    for layer in layers:
        if isinstance(layer, LinearLayer):
            bias = parts.get(f"{number}.bias", np.zeros(layer.outputs, dtype=np.float32))
            values = values @ torch.tensor(parts[f"{number}.weight"]).T + torch.tensor(bias)
            number += 1
        elif isinstance(layer, RectifierLayer):
            values = values.relu()
    predicted = make_kernel(name).predict(weights, features)
    assert predicted.shape == (2100, linear_layers(layers)[-1].outputs)
    np.testing.assert_allclose(predicted, values.numpy(), rtol=1e-4, atol=1e-5)
    single = make_kernel(name, threads=1)
    assert single.predict(weights, features).tobytes() == predicted.tobytes()
    assert single.predict(weights, features[7:8]).tobytes() == predicted[7:8].tobytes()
    assert single.predict(weights, features[:0]).shape == (0, predicted.shape[1])


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
    layers: list[MlpLayer] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [LinearLayer(inputs, outputs), RectifierLayer(), DropoutLayer(rate)]
    layers = layers[:-2]
    # A large eps keeps rounding of gradients near 0 from being blown up.
    options = LocalOptimizer(name, lr=0.01, eps=1e-2)
    examples = make_examples(layers, "multiclass", 50)
    job = LocalJob(draw_weights(layers), examples, np.arange(num_rows), batch_size, 3)
    kernel = MlpKernel(make_layout(layers), layers, "multiclass", options)
    plain = train_plainly(layers, "multiclass", options, job)
    np.testing.assert_allclose(kernel.run([job])[0], plain, rtol=0.0, atol=1e-5)


def test_images_are_flattened() -> None:
    jobs = make_jobs("logistic", 1)
    examples = jobs[0].examples
    images = Examples(examples.features.reshape(-1, 1, 28, 28), examples.labels)
    kernel = make_kernel("logistic")
    flat = kernel.run(jobs)[0]
    assert kernel.run([replace(jobs[0], examples=images)])[0].tobytes() == flat.tobytes()


def test_bad_jobs_are_refused() -> None:
    job = make_jobs("odd")[0]
    kernel = make_kernel("odd")
    floats = job.examples.labels.astype(np.float32)
    bad_labels = np.full(300, 3)
    cases = [
        (replace(job, weights=job.weights[:-1]), "weights must be a vector of 1201"),
        (replace(job, weights=job.weights.astype(np.float64)), "32-bit floats"),
        (replace(job, rows=np.array([0, 300])), "between 0 and 299, got 300"),
        (replace(job, rows=np.array([-1])), "between 0 and 299, got -1"),
        (replace(job, rows=np.array([0.5])), "vector of integers"),
        (replace(job, batch_size=0), "batch_size must be at least 1, got 0"),
        (replace(job, work=cast(Work, "rest")), "work must be train or gradient, got 'rest'"),
        (
            replace(job, examples=Examples(job.examples.features[:, :12], job.examples.labels)),
            "features must be 13",
        ),
        (replace(job, examples=Examples(job.examples.features, floats)), "labels of a multiclass"),
        (
            replace(job, examples=Examples(job.examples.features, bad_labels)),
            "labels of job 1 must lie between 0 and 2, got 3",
        ),
    ]
    for case, message in cases:
        with pytest.raises(InvalidInput, match=message):
            kernel.run([job, case])
    with pytest.raises(InvalidInput, match="features must be 13"):
        kernel.predict(job.weights, job.examples.features[:, :12])
    with pytest.raises(InvalidInput, match="weights must be a vector"):
        kernel.predict(job.weights[1:], job.examples.features)


def test_bad_models_are_refused() -> None:
    optimizer = LocalOptimizer()
    cases: list[tuple[list[MlpLayer], Loss, str]] = [
        ([RectifierLayer()], "binary", "last layer"),
        ([LinearLayer(3, 1), RectifierLayer()], "binary", "last layer"),
        ([LinearLayer(3, 2), LinearLayer(4, 1)], "binary", "cannot follow"),
        ([LinearLayer(3, 2)], "binary", "one output, got 2"),
        ([DropoutLayer(1.0), LinearLayer(3, 2)], "multiclass", "dropout rate"),
    ]
    for layers, loss, message in cases:
        with pytest.raises(InvalidInput, match=message):
            MlpKernel(make_layout(layers), layers, loss, optimizer)
    with pytest.raises(InvalidInput, match="have 8 weights, the layout 4"):
        MlpKernel(make_layout([LinearLayer(3, 1)]), [LinearLayer(3, 2)], "multiclass", optimizer)
    with pytest.raises(InvalidInput, match="eps"):
        make_kernel("odd", LocalOptimizer(eps=0.0))
    with pytest.raises(InvalidInput, match="threads"):
        make_kernel("odd", threads=0)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_compiled_masks_are_the_same(seed: int) -> None:
    """The gradient of a linear layer of dropped inputs shows the mask."""
    layers: list[MlpLayer] = [DropoutLayer(0.3), LinearLayer(50, 1, has_bias=False)]
    kernel = MlpKernel(make_layout(layers), layers, "binary", LocalOptimizer())
    examples = Examples(np.ones((1, 50), dtype=np.float32), np.zeros(1, dtype=np.float32))
    start = np.zeros(50, dtype=np.float32)
    job = LocalJob(start, examples, np.array([0]), 1, seed, "gradient")
    expected = 0.5 * dropout_mask(seed, 0, 0, (1, 50), 0.3)[0]
    np.testing.assert_array_equal(kernel.run([job])[0], expected)
