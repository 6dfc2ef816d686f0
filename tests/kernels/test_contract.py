"""What every kernel does alike: jobs as a plain loop runs them, predictions, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from covertfl.errors import InvalidInput
from covertfl.kernels.job import Examples, LocalJob, LocalKernel, LocalOptimizer, Loss, Work

pytest.importorskip("torch")
import torch
from torch import nn

from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import ModelFactory
from covertfl.kernels.choose import choose_kernel, draw_weights
from covertfl.kernels.cnn.cpu import CnnCpuKernel
from covertfl.kernels.cnn.kernel import CnnKernel
from covertfl.kernels.mlp import MlpKernel
from tests.support.plain_loop import OPTIMIZERS, make_images, make_uneven_jobs, train_plainly
from tests.support.small_cnns import IMAGE, make_dropping


def make_perceptron() -> nn.Module:
    """Sizes that no vector length divides, a dropped input, dropout before a rectifier."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(242, 21, bias=False),
        nn.Dropout(0.5),
        nn.ReLU(),
        nn.Linear(21, 37),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(37, 3),
    )


def make_normed() -> nn.Module:
    """A small convolutional network with a normalisation and two dropouts."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(12, 3),
    )


def make_mlp_kernel(
    make_model: ModelFactory, loss: Loss, optimizer: LocalOptimizer, threads: int | None = None
) -> LocalKernel:
    kernel = choose_kernel(make_model, loss, optimizer)
    assert isinstance(kernel, MlpKernel)
    kernel.threads = threads or kernel.threads
    return kernel


def make_stacking(make_model: ModelFactory, loss: Loss, optimizer: LocalOptimizer) -> LocalKernel:
    return TorchKernel(make_model, loss, optimizer, batched=True)


def make_cnn_stack(make_model: ModelFactory, loss: Loss, optimizer: LocalOptimizer) -> LocalKernel:
    return CnnKernel(make_model, loss, optimizer, "cpu")


KERNELS: dict[str, tuple[ModelFactory, Callable[..., LocalKernel]]] = {
    "perceptron": (make_perceptron, make_mlp_kernel),
    "autograd": (make_normed, TorchKernel),
    "autograd, stacked": (make_normed, make_stacking),
    "cnn": (make_dropping, CnnCpuKernel),
    "cnn, stacked": (make_dropping, make_cnn_stack),
}
# The bits of these do not depend on what runs beside a job.
ALONE = ["perceptron", "autograd", "cnn"]


def make(name: str, optimizer: LocalOptimizer | None = None, **options: Any) -> LocalKernel:
    make_model, make_kernel = KERNELS[name]
    return make_kernel(make_model, "multiclass", optimizer or LocalOptimizer(), **options)


def make_jobs(name: str) -> list[LocalJob]:
    """Uneven jobs: with a short last batch, with one short batch, with none; and gradients."""
    return make_uneven_jobs(KERNELS[name][0], (make_images(60, IMAGE), make_images(60, IMAGE, 5)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", KERNELS)
def test_passes_are_those_of_a_plain_loop(name: str, optimizer: str) -> None:
    options, jobs = OPTIMIZERS[optimizer], make_jobs(name)[:6]
    results = make(name, options).run(jobs)
    for job, result in zip(jobs, results, strict=True):
        plain = train_plainly(KERNELS[name][0], options, job)
        np.testing.assert_allclose(result, plain, rtol=0.0, atol=1e-5, err_msg=str(job.seed))
    assert np.abs(results[0] - jobs[0].weights).max() > 1e-3


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "autograd"])
def test_jobs_are_those_of_autograd(name: str) -> None:
    """With dropout and gradients: all kernels hash the same masks."""
    jobs, options = make_jobs(name), OPTIMIZERS["adamw"]
    expected = TorchKernel(KERNELS[name][0], "multiclass", options).run(jobs)
    for job, result, other in zip(jobs, make(name, options).run(jobs), expected, strict=True):
        np.testing.assert_allclose(result, other, rtol=0.0, atol=1e-5, err_msg=str(job.seed))


@pytest.mark.parametrize("name", ALONE)
def test_bits_depend_on_the_job_alone(name: str) -> None:
    jobs, single = make_jobs(name), make(name, threads=1)
    together = make(name, threads=2).run(jobs)
    backwards = single.run(jobs[::-1])[::-1]
    for job, result, again in zip(jobs, together, backwards, strict=True):
        assert single.run([job])[0].tobytes() == result.tobytes() == again.tobytes()


@pytest.mark.parametrize("name", KERNELS)
def test_the_seed_decides_what_is_dropped(name: str) -> None:
    kernel, job = make(name), make_jobs(name)[0]
    seed = cast(int, np.random.default_rng(0).integers(2**62, 2**63))
    other, one, same = kernel.run([job, replace(job, seed=seed), replace(job, seed=int(seed))])
    assert one.tobytes() == same.tobytes() != other.tobytes()


@pytest.mark.parametrize("name", KERNELS)
def test_no_rows_no_jobs_and_inputs_left_alone(name: str) -> None:
    kernel, job = make(name), make_jobs(name)[0]
    assert kernel.run([]) == []
    before, features = job.weights.copy(), job.examples.features.copy()
    for array in (job.weights, job.rows, job.examples.features):
        array.flags.writeable = False
    empty = replace(job, rows=np.zeros(0, dtype=np.int64))
    kept, zero, _ = kernel.run([empty, replace(empty, work="gradient"), job])
    assert kept.tobytes() == before.tobytes() == job.weights.tobytes()
    assert not np.shares_memory(kept, job.weights)
    assert not zero.any()
    np.testing.assert_array_equal(job.examples.features, features)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_not_finite_stays_with_its_job(name: str, value: float) -> None:
    kernel, job = make(name), make_jobs(name)[0]
    features = job.examples.features.copy()
    features[0] = value
    job = replace(job, examples=Examples(features, job.examples.labels), rows=np.arange(1, 30))
    spoiled, clean = kernel.run([replace(job, rows=np.arange(30)), job])
    assert not np.isfinite(spoiled).all()
    if name in ALONE:
        assert clean.tobytes() == kernel.run([job])[0].tobytes()
    assert np.isfinite(clean).all()
    assert np.isfinite(kernel.predict(job.weights, features)[1:]).all()


@pytest.mark.parametrize("name", KERNELS)
def test_predictions_are_the_forward_pass_without_dropout(name: str) -> None:
    make_model, kernel = KERNELS[name][0], make(name)
    weights, features = draw_weights(make_model, seed=1), make_images(700, IMAGE).features
    module = make_model().eval()
    nn.utils.vector_to_parameters(torch.tensor(weights), module.parameters())
    outputs = kernel.predict(weights, features)
    expected = module(torch.tensor(features)).detach().numpy()
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    if name in ALONE:
        assert outputs[650:].tobytes() == kernel.predict(weights, features[650:]).tobytes()
    assert kernel.predict(weights, features[:0]).shape == (0, 3)


@pytest.mark.parametrize("name", KERNELS)
def test_bad_jobs_are_refused(name: str) -> None:
    kernel, job = make(name), make_jobs(name)[0]
    features, labels = job.examples.features, np.full(60, 3)
    floats = labels.astype(np.float32)
    small = Examples(np.ascontiguousarray(features[:, :, :9]), job.examples.labels)
    cases = [
        (replace(job, weights=job.weights[:-1]), "weights must be a vector"),
        (replace(job, weights=cast(Any, job.weights.astype(np.float64))), "32-bit floats"),
        (replace(job, rows=np.array([0, 60])), "must lie between 0 and 59, got .*60"),
        (replace(job, rows=np.array([-1])), "must lie between 0 and 59, got -1"),
        (replace(job, rows=cast(Any, np.array([0.5]))), "vector of integers"),
        (replace(job, batch_size=0), "batch_size must be at least 1, got 0"),
        (replace(job, work=cast(Work, "rest")), "work must be train or gradient, got 'rest'"),
        (replace(job, examples=Examples(features, labels)), "labels .*must lie"),
        (replace(job, examples=Examples(features, floats)), "labels of a multiclass"),
    ]
    if not name.startswith("autograd"):  # any module may take images of another size
        cases.append((replace(job, examples=small), "got shape|fit the model"))
    for case, message in cases:
        with pytest.raises(InvalidInput, match=message):
            kernel.run([job, case])
    with pytest.raises(InvalidInput, match="weights must be a vector"):
        kernel.predict(job.weights[1:], features)
    make_model, make_kernel = KERNELS[name]
    binary = replace(job, examples=Examples(features, np.zeros(60, np.float32)))
    with pytest.raises(InvalidInput, match="one output"):
        make_kernel(make_model, "binary", LocalOptimizer()).run([binary])


def test_bad_options_of_compiled_kernels_are_refused() -> None:
    with pytest.raises(InvalidInput, match="threads must be at least 1"):
        CnnCpuKernel(make_dropping, "multiclass", LocalOptimizer(), threads=0)
    with pytest.raises(InvalidInput, match="eps must be positive"):
        CnnCpuKernel(make_dropping, "multiclass", LocalOptimizer(eps=0.0))
