"""Convolutional networks for the tests of the kernel that stacks them, and their jobs."""

from __future__ import annotations

from torch import nn

from covertfl.kernels.autograd.module import ModelFactory
from covertfl.kernels.job import Examples, LocalJob
from tests.support.plain_loop import make_images, make_uneven_jobs

IMAGE = (2, 11, 11)


def make_plain() -> nn.Module:
    """Two channels, a bare convolution, a pooling that leaves a border out, no dropout."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 6, (3, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 3 * 4, 9),
        nn.ReLU(),
        nn.Linear(9, 3),
    )


def make_dropping() -> nn.Module:
    """Dropout after pooling, after flattening and before a rectifier; pooling of raw values."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 4),
        nn.MaxPool2d(2),
        nn.Dropout(0.4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(45, 8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(8, 3),
    )


def make_examples(num: int = 60, seed: int = 0) -> Examples:
    return make_images(num, IMAGE, seed)


def make_jobs(make_model: ModelFactory) -> list[LocalJob]:
    return make_uneven_jobs(make_model, (make_examples(), make_examples(seed=5)))
