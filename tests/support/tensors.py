"""Second versions of what covertfl writes and draws by itself."""

from __future__ import annotations

import numpy as np

from covertfl.kernels.dropout import derive_dropout_key, hash_dropout_mask
from covertfl.kernels.job import Float32Array, Layout, Vector


def serialise(layout: Layout, vector: Vector) -> bytes:
    """Return a safetensors file with the weights by parameter, as the library writes it."""
    from safetensors.numpy import save

    parts = layout.split(np.ascontiguousarray(vector, dtype=np.float32))
    return save({name: np.ascontiguousarray(part) for name, part in parts.items()})


def dropout_mask(
    seed: int, step: int, layer: int, shape: tuple[int, ...], rate: float
) -> Float32Array:
    """Return the mask of a dropout layer in a step of the job with a seed."""
    return hash_dropout_mask(*derive_dropout_key(seed, step), layer, shape, rate)
