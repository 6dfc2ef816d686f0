"""The weights of a model as one vector, and as named tensors.

Inside covertfl a model's weights are one vector of 32-bit floats.  A layout maps its sections to
the model's parameters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from covertfl.errors import InvalidInput

Float32Array = npt.NDArray[np.float32]
Vector = Float32Array


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a model's parameters, in order, and of what it measures while it trains.

    Parameters
    ----------
    measured : how many of the last arrays are buffers, such as BatchNorm's running statistics:
        training moves them, but not along a gradient
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    measured: int = 0

    @cached_property
    def size(self) -> int:
        """Number of weights of the model."""
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def trained_names(self) -> tuple[str, ...]:
        """Names of the parameters, without measured arrays."""
        return self.names[: len(self.names) - self.measured]

    @cached_property
    def num_trained(self) -> int:
        """Number of weights that are parameters; they come first in the vector."""
        return sum(math.prod(shape) for shape in self.shapes[: len(self.trained_names)])

    def split(self, vector: Vector) -> dict[str, Vector]:
        """Return the parameters by name, as views of the vector."""
        if vector.shape != (self.size,):
            raise InvalidInput(
                f"weights must be a vector of {self.size} numbers, got shape {vector.shape}"
            )
        parts, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            parts[name] = vector[start:stop].reshape(shape)
            start = stop
        return parts

    def locate(self, name: str) -> slice:
        """Return the place of a parameter in the vector."""
        if name not in self.names:
            raise InvalidInput(f"a parameter must be one of {', '.join(self.names)}, got {name!r}")
        number = self.names.index(name)
        start = sum(math.prod(shape) for shape in self.shapes[:number])
        return slice(start, start + math.prod(self.shapes[number]))

    def join(self, parts: Mapping[str, npt.NDArray[np.floating]]) -> Vector:
        """Return the vector of parameters given by name.

        Raises
        ------
        InvalidInput
            if a name is missing or unknown, or a shape differs
        """
        if set(parts) != set(self.names):
            missing, unknown = set(self.names) - set(parts), set(parts) - set(self.names)
            raise InvalidInput(
                f"weights must have the parameters {', '.join(self.names)}; "
                f"missing: {sorted(missing)}, unknown: {sorted(unknown)}"
            )
        for name, shape in zip(self.names, self.shapes, strict=True):
            if parts[name].shape != shape:
                raise InvalidInput(f"{name} must have shape {shape}, got {parts[name].shape}")
        joined = [np.ravel(parts[name]) for name in self.names]
        return np.concatenate(joined).astype(np.float32)


def name_content(content: bytes) -> str:
    """Return the name of a file of weights: the SHA-256 of its content."""
    return hashlib.sha256(content).hexdigest()
