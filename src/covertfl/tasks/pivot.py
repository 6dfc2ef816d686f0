"""The pivot of a model: its first trained layer, if that is linear in the inputs.

The decoy `replica` flips the signs of columns of the pivot's weights.  It needs a model that maps a
flip of an input's sign to a flip of a column's sign and to nothing else, also after training, and
whose pivot starts from random weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from covertfl.errors import InvalidInput
from covertfl.tasks.models import ModelMaker

if TYPE_CHECKING:
    import torch
    from torch import nn


# Outputs of two forward passes that are equal but for rounding differ by less than this share.
ROUNDING = 1e-4


def find_pivot(make_model: ModelMaker, shape: tuple[int, ...], name: str | None = None) -> str:
    """Return the name of the pivot's weights, (outputs, inputs).

    Parameters
    ----------
    make_model : returns the torch module, freshly initialised from torch's global generator
    shape : of one input
    name : the name that is expected, None for any

    Raises
    ------
    InvalidInput
        if the first trained layer is not linear in the inputs, has another name, or starts from
        known weights
    """
    import torch
    from torch import nn

    from covertfl.kernels.generator import isolate_generator

    with isolate_generator():
        module, again = _draw(make_model, 0), _draw(make_model, 1)
        inputs = torch.randn(4, *shape)
        first = _find_first(module, inputs)
        layer = dict(module.named_modules())[first]
        pivot = f"{first}.weight" if first else "weight"
        if type(layer) is not nn.Linear or layer.in_features != math.prod(shape):
            raise _refuse(f"the first trained layer must be linear in the inputs, got {layer}")
        if name not in (None, pivot):
            raise _refuse(
                f"pivot must be {pivot}, the weights of the first trained layer, got {name}"
            )
        if torch.equal(layer.weight, dict(again.named_parameters())[pivot]):
            raise _refuse(f"{pivot} must start from random weights, but starts from known ones")
        if not _is_equivariant(module, layer, inputs):
            raise _refuse(f"nothing but {pivot} may act on the inputs' signs, but something does")
    return pivot


def _refuse(reason: str) -> InvalidInput:
    return InvalidInput(f"the decoy replica cannot be used with this model: {reason}")


def _draw(make_model: ModelMaker, seed: int) -> nn.Module:
    import torch

    torch.default_generator.manual_seed(seed)
    return make_model().eval()


def _find_first(module: nn.Module, inputs: torch.Tensor) -> str:
    """Return the name of the first module with trained parameters of its own that is called."""
    import torch

    called: list[str] = []
    hooks = []
    for name, part in module.named_modules():
        if any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            hooks.append(part.register_forward_pre_hook(lambda *_, name=name: called.append(name)))
    try:
        with torch.no_grad():
            module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not called:
        raise _refuse("it must call a layer with trained parameters, got none")
    return called[0]


def _is_equivariant(module: nn.Module, layer: nn.Linear, inputs: torch.Tensor) -> bool:
    """Return whether flipped inputs and flipped columns give the same outputs, also after training.

    Training may move every parameter and buffer, so each is moved at random first.
    """
    import torch

    signs = torch.where(torch.arange(layer.in_features) % 2 == 0, 1.0, -1.0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer in module.buffers():
            if buffer.is_floating_point():
                buffer.add_(0.1 * torch.rand_like(buffer))
        before = module(inputs)
        layer.weight.mul_(signs)
        after = module(inputs * signs.reshape(inputs.shape[1:]))
    scale = float(before.abs().max()) + ROUNDING
    return bool((before - after).abs().max() <= ROUNDING * scale)
