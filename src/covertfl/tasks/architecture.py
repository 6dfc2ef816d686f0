"""The architecture of a model as JSON, and the torch module built from it.

A layer is `{"name": ..., "type": ..., "arguments": {...}}`: the type is that of `torch.nn`, and the
arguments are those of its constructor.  A `Sequential` has `layers` instead of arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from covertfl.errors import InvalidInput
from covertfl.tasks.task import TrainingTask

if TYPE_CHECKING:
    from torch import nn


CONTAINER = "Sequential"
_CONVOLUTION = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
# Layers by type, with the arguments that are attributes of the same name; `bias` is added.
LAYERS: Mapping[str, tuple[str, ...]] = {
    "Linear": ("in_features", "out_features"),
    "Conv1d": (*_CONVOLUTION, "groups"),
    "Conv2d": (*_CONVOLUTION, "groups"),
    "MaxPool1d": ("kernel_size", "stride", "padding", "dilation"),
    "MaxPool2d": ("kernel_size", "stride", "padding", "dilation"),
    "AvgPool2d": ("kernel_size", "stride", "padding"),
    "AdaptiveAvgPool2d": ("output_size",),
    "BatchNorm1d": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "BatchNorm2d": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "GroupNorm": ("num_groups", "num_channels", "eps", "affine"),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine"),
    "Flatten": ("start_dim", "end_dim"),
    "Dropout": ("p",),
    "LeakyReLU": ("negative_slope",),
    "ELU": ("alpha",),
    "GELU": ("approximate",),
    **dict.fromkeys(("ReLU", "Sigmoid", "Tanh", "SiLU", "Identity"), ()),
}
BIASED = ("Linear", "Conv1d", "Conv2d", "LayerNorm")
THRESHOLD = 0.5  # of the probability above which class 1 of two is named


def describe_module(module: nn.Module) -> dict[str, Any]:
    """Return the architecture of a module.

    What is no `Sequential` of the layers in `LAYERS` has a `type` with the module's Python module,
    such as "app.models.Net", and its printed form as `text`.
    """
    every = dict(module.named_parameters(remove_duplicate=False))
    is_shared = len(every) > len(list(module.parameters()))  # which a description does not say
    found = None if is_shared else _describe_layer(module)
    if can_be_built(found):
        return found or {}
    kind = type(module)
    return {"type": f"{kind.__module__}.{kind.__qualname__}", "text": repr(module)}


def _describe_layer(module: nn.Module) -> dict[str, Any] | None:
    """Return a layer without its name, None if it cannot be described."""
    from torch import nn

    kind = type(module).__name__
    if type(module) is not getattr(nn, kind, None) or _has_more(module):
        return None
    if isinstance(module, nn.Sequential):
        parts = {name: _describe_layer(part) for name, part in module._modules.items() if part}
        layers = [{"name": name, **part} for name, part in parts.items() if part is not None]
        return {"type": kind, "layers": layers} if 0 < len(layers) == len(parts) else None
    if kind not in LAYERS:
        return None
    arguments = {name: getattr(module, name) for name in LAYERS[kind]}
    if kind in BIASED:
        arguments["bias"] = module.bias is not None
    return {"type": kind, "arguments": arguments}


def _has_more(module: nn.Module) -> bool:
    """Return whether a module does more than its type and arguments say."""
    padding = getattr(module, "padding_mode", "zeros")
    return bool(module._forward_hooks or module._forward_pre_hooks) or padding != "zeros"


def can_be_built(architecture: object) -> bool:
    """Return whether `build_module` accepts a description, as far as its type shows."""
    return isinstance(architecture, Mapping) and architecture.get("type") == CONTAINER


def build_module(architecture: Mapping[str, Any]) -> nn.Module:
    """Return a new module of an architecture that `describe_module` returned, also after JSON.

    Raises
    ------
    InvalidInput
        if it is not such a description
    """
    from torch import nn

    try:
        if architecture["type"] == CONTAINER:
            parts = ((part["name"], build_module(part)) for part in architecture["layers"])
            return nn.Sequential(OrderedDict(parts))
        if architecture["type"] not in LAYERS:
            raise InvalidInput(f"the layer type {architecture['type']!r} is not known")
        arguments = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in architecture["arguments"].items()
        }
        layer: nn.Module = getattr(nn, architecture["type"])(**arguments)
        return layer
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"it is not the architecture of a model: {error}") from error


def describe_model(task: TrainingTask) -> dict[str, Any]:
    """Return the description of a task's model.

    - `task`: its name
    - `architecture`: as `architecture.describe_module` returns it
    - `parameters`: the shape of each parameter by name
    - `classes`: the names of the classes, in the order of the outputs; empty if they have none
    - `inputs`: `meaning` and `shape` of an input, and the `encoder` that makes it of a text
    - `standardisation`: `mean` and `deviation`, null for none; `public_map`: the SHA-256 of the
      public set of the map that inputs pass after it, null for none
    - `output`: its `meaning` and, for two classes, the `threshold` of the probability
    """
    from covertfl.kernels.generator import isolate_generator

    with isolate_generator():
        module = task.make_model()
    standardisation, is_binary = task.inputs.standardisation, task.loss == "binary"
    return {
        "task": task.name,
        "architecture": describe_module(module),
        "parameters": {name: list(part.shape) for name, part in module.named_parameters()},
        "classes": list(task.classes or (("0", "1") if is_binary else ())),
        "inputs": {**task.inputs.to_dict(), "shape": list(task.public.features.shape[1:])},
        "standardisation": None
        if standardisation is None
        else {
            "mean": standardisation.mean.tolist(),
            "deviation": standardisation.deviation.tolist(),
        },
        "public_map": None if task.public_map is None else task.public_map.fingerprint,
        "output": {
            "meaning": "logit of the second class" if is_binary else "logit of each class",
            "threshold": THRESHOLD if is_binary else None,
        },
    }
