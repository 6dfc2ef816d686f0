"""Local training as a plain PyTorch loop, for the tests of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from covertfl.kernels.choose import draw_weights
from covertfl.kernels.job import Examples, LocalJob, LocalOptimizer, Vector
from tests.support.tensors import dropout_mask

OPTIMIZERS = {
    "sgd": LocalOptimizer("sgd", lr=0.05),
    "momentum": LocalOptimizer("sgd", lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": LocalOptimizer("adam", lr=1e-3, weight_decay=0.1),
    "adamw": LocalOptimizer("adamw", lr=1e-3, weight_decay=0.1),
}


def make_images(num: int, image: tuple[int, ...], seed: int = 0) -> Examples:
    """Return images of noise in three classes."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((num, *image)).astype(np.float32)
    return Examples(features, generator.integers(0, 3, num))


def make_uneven_jobs(
    make_model: Callable[[], nn.Module], sets: Sequence[Examples]
) -> list[LocalJob]:
    """Return jobs on two sets of examples, of several lengths, batch sizes and kinds."""
    generator, num = np.random.default_rng(1), len(sets[0])
    kinds = [(50, 20), (40, 20), (0, 20), (7, 20), (60, 20), (30, 8)]
    jobs = [
        LocalJob(
            draw_weights(make_model, seed=number % 3),
            sets[number % 2],
            generator.permutation(num)[:length],
            batch_size,
            number,
        )
        for number, (length, batch_size) in enumerate(kinds)
    ]
    return jobs + [replace(job, work="gradient") for job in jobs[:4]]


def train_plainly(
    make_model: Callable[[], nn.Module], options: LocalOptimizer, job: LocalJob
) -> Vector:
    """Return the weights after one pass, with torch's optimizers and the kernels' masks."""
    module = make_model()
    nn.utils.vector_to_parameters(torch.tensor(job.weights), module.parameters())
    optimizer = make_optimizer(list(module.parameters()), options)
    for step, start in enumerate(range(0, len(job.rows), job.batch_size)):
        rows = job.rows[start : start + job.batch_size]
        values, dropouts = torch.tensor(job.examples.features[rows]), 0
        for layer in module.children():
            if isinstance(layer, nn.Dropout):
                mask = dropout_mask(job.seed, step, dropouts, tuple(values.shape), layer.p)
                values, dropouts = values * torch.tensor(mask), dropouts + 1
            else:
                values = layer(values)
        labels = torch.tensor(job.examples.labels[rows])
        optimizer.zero_grad()
        if labels.is_floating_point():
            loss = nn.functional.binary_cross_entropy_with_logits(values[:, 0], labels)
        else:
            loss = nn.functional.cross_entropy(values, labels)
        torch.autograd.backward(loss)
        optimizer.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def make_optimizer(
    parameters: list[torch.Tensor], options: LocalOptimizer
) -> torch.optim.Optimizer:
    """Return torch's own optimizer."""
    decay = options.weight_decay
    if options.name == "sgd":
        return torch.optim.SGD(
            parameters, options.lr, momentum=options.momentum, weight_decay=decay
        )
    kind = torch.optim.Adam if options.name == "adam" else torch.optim.AdamW
    return kind(parameters, options.lr, options.betas, eps=options.eps, weight_decay=decay)
