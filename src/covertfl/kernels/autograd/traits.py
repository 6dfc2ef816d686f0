"""What a module does besides computing outputs, found by a forward pass: draws, buffers, mixing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from covertfl.kernels.job import Layout


@dataclass(frozen=True)
class Traits:
    """What decides how jobs of a module can be stacked.

    Parameters
    ----------
    draws : whether a pass in training draws from torch's own generator
    moving : buffers that a pass changes, other than the layout's and those that count batches
    counters : buffers of normalisations that count batches
    mixes : whether examples of a batch may depend on each other, so that none may be added
    """

    draws: bool
    moving: tuple[str, ...]
    counters: tuple[str, ...]
    mixes: bool


def find_norms(module: nn.Module) -> list[_NormBase]:
    """Return the normalisations that may keep running statistics."""
    return [part for part in module.modules() if isinstance(part, _NormBase)]


def set_training(module: nn.Module, num_rows: int) -> None:
    """Set training for a batch; one example is normalised with the running statistics."""
    module.train()
    for norm in find_norms(module):
        norm.train(num_rows > 1)


def read_generator(device: torch.device) -> torch.Tensor:
    """Return the state of torch's generator of a device."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def find_traits(module: nn.Module, layout: Layout, features: torch.Tensor) -> Traits:
    """Return the traits of a module, with hashed dropout; its buffers are left as they were.

    Torch's generator is not: the caller restores it.
    """
    counters = tuple(
        name for name, _ in module.named_buffers() if name.endswith("num_batches_tracked")
    )
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    state = read_generator(features.device)
    set_training(module, len(features))
    with torch.no_grad():
        module(features)
    others = [name for name in before if name not in (*layout.names, *counters)]
    moving = [name for name in others if not torch.equal(module.get_buffer(name), before[name])]
    for name, buffer in before.items():
        set_buffer(module, name, buffer)
    return Traits(
        draws=not torch.equal(state, read_generator(features.device)),
        moving=tuple(moving),
        counters=counters,
        mixes=layout.measured > 0 or bool(moving) or bool(find_norms(module)),
    )


def set_buffer(module: nn.Module, name: str, values: torch.Tensor) -> None:
    """Put a tensor in the place of a buffer."""
    owner, _, key = name.rpartition(".")
    module.get_submodule(owner)._buffers[key] = values
