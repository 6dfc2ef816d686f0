"""A convolutional network as blocks, and where its weights lie while many copies of it are trained.

A block is one weighted layer with what follows it: rectifier, pooling, dropout.  A linear layer is
a convolution of an image of one pixel.  Pixels come before channels in memory (rows, columns,
channels), in the images, in the kernels and in the columns of the linear layer behind the images,
so that products run along the channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

# Parameters begin at multiples of this many numbers, so that they are read in wide words.
_ALIGNMENT = 32


@dataclass(frozen=True)
class Block:
    """One weighted layer and what follows it; sizes are of its inputs.

    Parameters
    ----------
    height, width, channels : of the images that come in
    kernel_height, kernel_width : of the convolution; stride 1, nothing is padded
    outputs : channels that go out
    weights_start : where (outputs, kernel_height, kernel_width, channels) weights begin
    biases_start : where the biases begin; None where there are none
    is_rectified : whether negative outputs become 0
    pool : length of the sides of the windows of which the largest value is kept; 1 for none
    rate : chance that an element is dropped; None without dropout
    dropout : number of the dropout in the network, from 0
    """

    height: int
    width: int
    channels: int
    kernel_height: int
    kernel_width: int
    outputs: int
    weights_start: int
    biases_start: int | None
    is_rectified: bool = False
    pool: int = 1
    rate: float | None = None
    dropout: int = 0

    @property
    def out_height(self) -> int:
        """Rows after the convolution."""
        return self.height - self.kernel_height + 1

    @property
    def out_width(self) -> int:
        """Columns after the convolution."""
        return self.width - self.kernel_width + 1

    @property
    def depth(self) -> int:
        """Weights of one output."""
        return self.kernel_height * self.kernel_width * self.channels

    @property
    def is_finished(self) -> bool:
        """Whether pooling or dropout follows."""
        return self.pool > 1 or self.rate is not None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the images that go out."""
        return self.out_height // self.pool, self.out_width // self.pool, self.outputs

    @property
    def flops(self) -> int:
        """Operations of a forward pass over one image."""
        return 2 * self.out_height * self.out_width * self.outputs * self.depth


@dataclass(frozen=True, eq=False)
class Network:
    """Blocks, and the places of a vector's numbers in the padded vector that kernels work on.

    Parameters
    ----------
    blocks : in the order of the forward pass
    places : (P,) place of each number of the weights vector
    size : length of the padded vector; what no number has as its place stays 0
    """

    blocks: tuple[Block, ...]
    places: npt.NDArray[np.int64]
    size: int

    @property
    def flops(self) -> int:
        """Operations of a forward and backward pass; the images themselves need no slopes."""
        return 3 * sum(block.flops for block in self.blocks) - self.blocks[0].flops


def describe_network(module: nn.Module, image: tuple[int, ...]) -> Network | None:
    """Blocks of a sequential network; None where it is something else.

    Parameters
    ----------
    module : of convolutions, rectifiers, poolings, dropouts, and linear layers behind a flattening
    image : (channels, height, width) of one example
    """
    if type(module) is not nn.Sequential or len(set(module)) < len(module) or len(image) != 3:
        return None
    builder = _Builder(image)
    if not all(builder.add(child) for child in module):
        return None
    return builder.build()


class _Builder:
    """Reads layers one after the other."""

    def __init__(self, image: tuple[int, ...]) -> None:
        channels, height, width = image
        self.shape = (height, width, channels)
        self.is_flat = False
        self.blocks: list[Block] = []
        self.places: list[npt.NDArray[np.int64]] = []
        self.size = self.dropouts = 0

    def add(self, layer: nn.Module) -> bool:
        """Take one layer in; whether that is possible."""
        if type(layer) is nn.Conv2d:
            return self._add_convolution(layer)
        if type(layer) is nn.Linear:
            return self._add_linear(layer)
        if type(layer) is nn.Flatten:
            self.is_flat = True
            return layer.start_dim == 1 and layer.end_dim == -1
        return bool(self.blocks) and self._extend(layer)

    def build(self) -> Network | None:
        """The network, if it ends in a bare linear layer and has a convolution."""
        if not self.blocks or not self.is_flat:
            return None
        first, last = self.blocks[0], self.blocks[-1]
        if first.kernel_height * first.kernel_width == 1 or last.out_height * last.out_width > 1:
            return None
        if last.is_rectified or last.is_finished:
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
        shape = (layer.out_channels, channels, rows, columns)
        order = np.arange(math.prod(shape)).reshape(layer.out_channels, rows, columns, channels)
        self._append(height, width, channels, shape, order.transpose(0, 3, 1, 2), layer.bias)
        return True

    def _add_linear(self, layer: nn.Linear) -> bool:
        height, width, channels = self.shape
        inputs = height * width * channels
        if not self.is_flat or layer.in_features != inputs:
            return False
        order = np.arange(inputs * layer.out_features).reshape(-1, height, width, channels)
        shape = (layer.out_features, inputs, 1, 1)
        self._append(1, 1, inputs, shape, order.transpose(0, 3, 1, 2), layer.bias)
        return True

    def _append(
        self,
        height: int,
        width: int,
        channels: int,
        shape: tuple[int, int, int, int],
        order: npt.NDArray[np.int64],
        bias: torch.Tensor | None,
    ) -> None:
        """A new block; `order` are the places of its weights as the module orders them."""
        weights_start = self._reserve(order)
        biases_start = None if bias is None else self._reserve(np.arange(shape[0]))
        outputs, _, rows, columns = shape
        block = Block(height, width, channels, rows, columns, outputs, weights_start, biases_start)
        self.blocks.append(block)
        self.shape = block.shape

    def _reserve(self, order: npt.NDArray[np.int64]) -> int:
        start = self.size
        self.places.append(start + order.ravel())
        self.size = start + -(-order.size // _ALIGNMENT) * _ALIGNMENT
        return start

    def _extend(self, layer: nn.Module) -> bool:
        """What follows a weighted layer: each at most once, and no pooling behind dropout.

        Rectifying may come at any place among them: it changes places with the two others.
        """
        block = self.blocks[-1]
        if type(layer) is nn.ReLU and not block.is_rectified:
            block = replace(block, is_rectified=True)
        elif type(layer) is nn.MaxPool2d and not block.is_finished and not self.is_flat:
            if not _is_plain_pool(layer, block):
                return False
            block = replace(block, pool=_side(layer.kernel_size))
        elif type(layer) is nn.Dropout and block.rate is None and layer.p < 1.0:
            block = replace(block, rate=layer.p, dropout=self.dropouts)
            self.dropouts += 1
        else:
            return False
        self.blocks[-1], self.shape = block, block.shape
        return True


def _side(size: int | tuple[int, ...]) -> int:
    return size if isinstance(size, int) else size[0]


def _is_plain_pool(layer: nn.MaxPool2d, block: Block) -> bool:
    """Whether windows are squares that tile the image."""
    sizes = {
        side
        for size in (layer.kernel_size, layer.stride)
        for side in ((size,) if isinstance(size, int) else size)
    }
    plain = layer.padding in (0, (0, 0)) and layer.dilation in (1, (1, 1)) and not layer.ceil_mode
    room = min(block.out_height, block.out_width)
    return plain and not layer.return_indices and len(sizes) == 1 and 1 < min(sizes) <= room
