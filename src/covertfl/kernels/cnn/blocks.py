"""A convolutional network as blocks, and where its weights lie while many copies are trained.

A block is one weighted layer with the rectifier, pooling and dropout that follow it.  A linear
layer is a convolution of an image of one pixel.  The memory layout is (rows, columns, channels) in
the images, in the convolutions' weights and in the columns of the linear layer after the images, so
that products run along the channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from covertfl.arrays import IntArray

# Parameters start at multiples of this many numbers, for aligned reads.
_ALIGNMENT = 32


@dataclass(frozen=True)
class Block:
    """One weighted layer with its rectifier, pooling and dropout."""

    height: int  # of the input images
    width: int
    channels: int
    kernel_height: int  # of the convolution, with stride 1 and no padding
    kernel_width: int
    outputs: int  # output channels
    weights_start: int  # of the (outputs, kernel_height, kernel_width, channels) weights
    biases_start: int | None  # None without biases
    is_rectified: bool = False
    pool: int = 1  # side length of the max-pooling windows; 1 without pooling
    rate: float | None = None  # probability that an element is dropped; None without dropout
    dropout: int = 0  # number of the dropout in the network, from 0

    @property
    def out_height(self) -> int:
        """Height after the convolution."""
        return self.height - self.kernel_height + 1

    @property
    def out_width(self) -> int:
        """Width after the convolution."""
        return self.width - self.kernel_width + 1

    @property
    def depth(self) -> int:
        """Number of weights of one output."""
        return self.kernel_height * self.kernel_width * self.channels

    @property
    def is_pooled(self) -> bool:
        """Whether pooling or dropout follows."""
        return self.pool > 1 or self.rate is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of the output images."""
        return self.out_height // self.pool, self.out_width // self.pool, self.outputs

    @property
    def flops(self) -> int:
        """Number of operations in a forward pass over one image."""
        return 2 * self.out_height * self.out_width * self.outputs * self.depth


@dataclass(frozen=True, eq=False)
class Network:
    """Blocks, and the positions of the weights in the padded vector that kernels work on."""

    blocks: tuple[Block, ...]  # in the order of the forward pass
    places: IntArray  # (P,) position of each weight in the padded vector
    size: int  # length of the padded vector; padding stays 0

    @property
    def flops(self) -> int:
        """Number of operations in a forward and backward pass, without gradients by the images."""
        return 3 * sum(block.flops for block in self.blocks) - self.blocks[0].flops


def describe_network(module: nn.Module, image: tuple[int, ...]) -> Network | None:
    """Return the blocks of a sequential network; None if it is something else.

    It may have convolutions, rectifiers, poolings, dropouts, and linear layers after a flattening;
    `image` is the shape (channels, height, width) of one example.
    """
    if type(module) is not nn.Sequential or len(set(module)) < len(module) or len(image) != 3:
        return None
    builder = _Builder(image)
    if not all(builder.add(child) for child in module):
        return None
    return builder.build()


class _Builder:
    """Builder of a network from its layers, one by one."""

    def __init__(self, image: tuple[int, ...]) -> None:
        channels, height, width = image
        self.shape = (height, width, channels)
        self.is_flat = False
        self.blocks: list[Block] = []
        self.places: list[IntArray] = []
        self.size = self.dropouts = 0

    def add(self, layer: nn.Module) -> bool:
        """Add a layer; return whether that is possible."""
        if type(layer) is nn.Conv2d:
            return self._add_convolution(layer)
        if type(layer) is nn.Linear:
            return self._add_linear(layer)
        if type(layer) is nn.Flatten:
            self.is_flat = True
            return layer.start_dim == 1 and layer.end_dim == -1
        return bool(self.blocks) and self._extend(layer)

    def build(self) -> Network | None:
        """Return the network if it has a convolution and ends in a bare linear layer, else None."""
        if not self.blocks or not self.is_flat:
            return None
        first, last = self.blocks[0], self.blocks[-1]
        if first.kernel_height * first.kernel_width == 1 or last.out_height * last.out_width > 1:
            return None
        if last.is_rectified or last.is_pooled:
            return None
        return Network(tuple(self.blocks), np.concatenate(self.places), self.size)

    def _add_convolution(self, layer: nn.Conv2d) -> bool:
        height, width, channels = self.shape
        rows, columns = layer.kernel_size
        plain = (
            layer.stride == layer.dilation == (1, 1)
            and layer.padding in ((0, 0), "valid")
            and layer.groups == 1
            and layer.in_channels == channels
        )
        if not plain or self.is_flat or rows > height or columns > width:
            return False
        self._append(layer, self.shape, (rows, columns), (rows, columns, channels))
        return True

    def _add_linear(self, layer: nn.Linear) -> bool:
        height, width, channels = self.shape
        inputs = height * width * channels
        if not self.is_flat or layer.in_features != inputs:
            return False
        self._append(layer, (1, 1, inputs), (1, 1), self.shape)
        return True

    def _append(
        self,
        layer: nn.Conv2d | nn.Linear,
        image: tuple[int, int, int],
        kernel: tuple[int, int],
        order: tuple[int, int, int],
    ) -> None:
        """Append a block; `order` are the rows, columns and channels in an output's weights."""
        outputs = len(layer.weight)
        places = np.arange(layer.weight.numel()).reshape(outputs, *order)
        weights_start = self._reserve(places.transpose(0, 3, 1, 2))
        biases_start = None if layer.bias is None else self._reserve(np.arange(outputs))
        block = Block(*image, *kernel, outputs, weights_start, biases_start)
        self.blocks.append(block)
        self.shape = block.shape

    def _reserve(self, order: IntArray) -> int:
        start = self.size
        self.places.append(start + order.ravel())
        self.size = start + -(-order.size // _ALIGNMENT) * _ALIGNMENT
        return start

    def _extend(self, layer: nn.Module) -> bool:
        """Add a layer that follows a weighted one: each kind once, and no pooling after dropout.

        The rectifier may come at any position among them, since it commutes with the others.
        """
        block = self.blocks[-1]
        if type(layer) is nn.ReLU and not block.is_rectified:
            block = replace(block, is_rectified=True)
        elif type(layer) is nn.MaxPool2d and not self.is_flat and _is_plain_pool(layer, block):
            size = layer.kernel_size
            block = replace(block, pool=size if isinstance(size, int) else size[0])
        elif type(layer) is nn.Dropout and block.rate is None and layer.p < 1.0:
            block = replace(block, rate=layer.p, dropout=self.dropouts)
            self.dropouts += 1
        else:
            return False
        self.blocks[-1], self.shape = block, block.shape
        return True


def _is_plain_pool(layer: nn.MaxPool2d, block: Block) -> bool:
    """Return whether the windows are squares that tile the image, and nothing is pooled yet."""
    sizes = {
        side
        for size in (layer.kernel_size, layer.stride)
        for side in ((size,) if isinstance(size, int) else size)
    }
    plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.ceil_mode
    room = min(block.out_height, block.out_width)
    plain = plain and not layer.return_indices and not block.is_pooled
    return plain and len(sizes) == 1 and 1 < min(sizes) <= room
