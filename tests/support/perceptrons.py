"""Perceptrons for the tests of the compiled kernel, their jobs, and a plain PyTorch loop."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Loss
from covertfl.kernels.mlp import DropoutLayer, LinearLayer, MlpKernel, MlpLayer, RectifierLayer
from covertfl.kernels.weights import Layout, Vector
from tests.support.plain_loop import make_optimizer
from tests.support.tensors import dropout_mask

LOGISTIC: list[MlpLayer] = [LinearLayer(784, 10)]
HEAD: list[MlpLayer] = [
    LinearLayer(128, 128),
    RectifierLayer(),
    DropoutLayer(0.1),
    LinearLayer(128, 1),
]
WIDE: list[MlpLayer] = [LinearLayer(784, 200), RectifierLayer(), LinearLayer(200, 10)]
# Sizes that no vector length divides, a dropped input, no biases, dropout before a rectifier.
ODD: list[MlpLayer] = [
    DropoutLayer(0.2),
    LinearLayer(13, 21, has_bias=False),
    DropoutLayer(0.5),
    RectifierLayer(),
    LinearLayer(21, 37),
    RectifierLayer(),
    DropoutLayer(0.25),
    LinearLayer(37, 3),
]
MODELS: dict[str, tuple[list[MlpLayer], Loss]] = {
    "logistic": (LOGISTIC, "multiclass"),
    "head": (HEAD, "binary"),
    "wide": (WIDE, "multiclass"),
    "odd": (ODD, "multiclass"),
}
OPTIMIZERS = {
    "sgd": LocalOptimizer("sgd", lr=0.05),
    "momentum": LocalOptimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": LocalOptimizer("adam", lr=1e-3),
    "adam-decay": LocalOptimizer("adam", lr=1e-3, betas=(0.8, 0.99), weight_decay=0.1),
    "adamw": LocalOptimizer("adamw", lr=1e-3, weight_decay=0.1),
}


def linear_layers(layers: list[MlpLayer]) -> list[LinearLayer]:
    return [layer for layer in layers if isinstance(layer, LinearLayer)]


def make_layout(layers: list[MlpLayer]) -> Layout:
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for number, layer in enumerate(linear_layers(layers)):
        names.append(f"{number}.weight")
        shapes.append((layer.outputs, layer.inputs))
        if layer.has_bias:
            names.append(f"{number}.bias")
            shapes.append((layer.outputs,))
    return Layout(tuple(names), tuple(shapes))


def draw_weights(layers: list[MlpLayer], seed: int = 0) -> Vector:
    generator = np.random.default_rng(seed)
    layout = make_layout(layers)
    parts = [
        generator.uniform(-1.0, 1.0, shape) / np.sqrt(shape[-1] if len(shape) > 1 else 100.0)
        for shape in layout.shapes
    ]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def make_examples(layers: list[MlpLayer], loss: Loss, num: int = 300) -> Examples:
    generator = np.random.default_rng(1)
    linear = linear_layers(layers)
    features = generator.standard_normal((num, linear[0].inputs)).astype(np.float32)
    if loss == "binary":
        return Examples(features, generator.integers(0, 2, num).astype(np.float32))
    return Examples(features, generator.integers(0, linear[-1].outputs, num))


def make_kernel(
    name: str = "odd",
    optimizer: LocalOptimizer | None = None,
    *,
    threads: int | None = None,
    vector_length: int = 16,
) -> MlpKernel:
    layers, loss = MODELS[name]
    return MlpKernel(
        make_layout(layers),
        layers,
        loss,
        optimizer or LocalOptimizer(),
        threads=threads,
        vector_length=vector_length,
    )


def make_jobs(name: str = "odd", num: int = 5) -> list[LocalJob]:
    """Jobs of different lengths, some with a short last batch, one without rows."""
    layers, loss = MODELS[name]
    examples = make_examples(layers, loss)
    generator = np.random.default_rng(2)
    lengths = [107, 80, 0, 3, 40, 61, 99]
    return [
        LocalJob(
            draw_weights(layers, seed), examples, generator.permutation(300)[:length], 40, seed
        )
        for seed, length in enumerate((lengths * num)[:num])
    ]


def measure_loss(
    layers: list[MlpLayer],
    parts: dict[str, torch.Tensor],
    job: LocalJob,
    rows: npt.NDArray[np.int64],
    step: int,
    loss: Loss,
) -> torch.Tensor:
    """Return the mean loss of a batch, layer by layer, with the masks of the kernel."""
    values = torch.tensor(job.examples.features[rows])
    labels = torch.tensor(job.examples.labels[rows])
    number, dropouts = 0, 0
    for layer in layers:
        if isinstance(layer, LinearLayer):
            bias = parts.get(f"{number}.bias")
            values = torch.nn.functional.linear(values, parts[f"{number}.weight"], bias)
            number += 1
        elif isinstance(layer, RectifierLayer):
            values = values.relu()
        else:
            mask = dropout_mask(job.seed, step, dropouts, tuple(values.shape), layer.rate)
            values = values * torch.tensor(mask)
            dropouts += 1
    if loss == "binary":
        return torch.nn.functional.binary_cross_entropy_with_logits(values[:, 0], labels)
    return torch.nn.functional.cross_entropy(values, labels)


def train_plainly(
    layers: list[MlpLayer], loss: Loss, options: LocalOptimizer, job: LocalJob
) -> Vector:
    """Return the weights after one pass of a plain PyTorch loop."""
    layout = make_layout(layers)
    parts = {
        name: torch.tensor(part, requires_grad=True)
        for name, part in layout.split(job.weights).items()
    }
    optimizer = make_optimizer(list(parts.values()), options)
    for step, start in enumerate(range(0, len(job.rows), job.batch_size)):
        rows = job.rows[start : start + job.batch_size]
        optimizer.zero_grad()
        torch.autograd.backward(measure_loss(layers, parts, job, rows, step, loss))
        optimizer.step()
    return layout.join({name: part.detach().numpy() for name, part in parts.items()})
