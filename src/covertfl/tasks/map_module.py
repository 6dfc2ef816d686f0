"""The public map as a torch module."""

from __future__ import annotations

import torch
from torch import nn

from covertfl.arrays import FloatArray


class MapModule(nn.Module):
    """The linear map x -> ((x - mean) @ basis) * scale of (n, d) inputs, in double precision.

    Its arrays are buffers that no state_dict holds.

    Parameters
    ----------
    mean : (d,)
    basis : (d, d), one axis in each column
    scale : (d,)
    """

    def __init__(self, mean: FloatArray, basis: FloatArray, scale: FloatArray) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("basis", basis), ("scale", scale)):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs as the model sees them, in their own precision."""
        mean, basis, scale = (self.get_buffer(name) for name in ("mean", "basis", "scale"))
        return (((inputs - mean) @ basis) * scale).to(inputs.dtype)
