"""A convolutional network with BatchNorm, and the division of the images of scikit-learn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from torch import nn

PUBLIC, TEST = 200, 300  # images that no node trains on


class Images(NamedTuple):
    """Images (n, 1, 8, 8) with pixels in [0, 1], and (n,) digits."""

    pixels: npt.NDArray[np.float32]
    digits: npt.NDArray[np.int64]


def make_model() -> nn.Module:
    """Return the network; BatchNorm's running statistics are buffers of it."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def load_images() -> tuple[Images, Images, Images]:
    """Load all images: the nodes' ones, the public ones and those for tests."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    shaped = (pixels[order] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    images, labels = shaped, digits[order].astype(np.int64)
    cuts = (len(labels) - PUBLIC - TEST, len(labels) - TEST)
    parts = zip(np.split(images, cuts), np.split(labels, cuts), strict=True)
    nodes, public, test = (Images(*part) for part in parts)
    return nodes, public, test


def load_share(number: int, shares: int) -> Images:
    """Load a node's images, one of several equal parts."""
    nodes, _, _ = load_images()
    return Images(nodes.pixels[number::shares], nodes.digits[number::shares])
