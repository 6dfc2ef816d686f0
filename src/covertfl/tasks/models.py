"""The models of the tasks by name, and the architecture of any model as JSON and back.

All return logits.  Each maker is a plain function, so that a task can be pickled for another
process.  In JSON a layer is `{"name": ..., "type": ..., "arguments": {...}}`: the type is that of
`torch.nn`, and the arguments are those of its constructor.  A `Sequential` has `layers` instead of
arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from covertfl.errors import InvalidInput
from covertfl.tasks.task import TrainingTask

if TYPE_CHECKING:
    from torch import nn

VectorModel = Callable[[int, int], "nn.Module"]
ModelMaker = Callable[[], "nn.Module"]


def make_head(inputs: int, outputs: int) -> nn.Module:
    """Make the paper's head: 128 hidden units, ReLU, dropout 0.1 (Appendix A)."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(inputs, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, outputs)
    )


def make_logistic(inputs: int, outputs: int) -> nn.Module:
    """Make a logistic regression."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, outputs))


def make_mlp(inputs: int, outputs: int) -> nn.Module:
    """Make a perceptron with one hidden layer of 200 units."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, outputs))


def make_digit_cnn() -> nn.Module:
    """Make a convolutional network of 1,898 weights for ten classes of images of 8 x 8."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 2 * 2, 10),
    )


def make_small_cnn() -> nn.Module:
    """Make a convolutional network of 6,000 weights for ten classes of images of 28 x 28."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def make_paper_cnn() -> nn.Module:
    """Make the paper's network for MNIST (Appendix A): 228,010 weights, no padding."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64 * 3 * 3, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


# The first of each is the default.
TEXT_MODELS: Mapping[str, VectorModel] = {
    "head": make_head,
    "logistic": make_logistic,
    "mlp": make_mlp,
}
DIGIT_MODELS: Mapping[str, VectorModel] = {"mlp": make_mlp, "logistic": make_logistic}
DIGIT_CONVOLUTIONS: Mapping[str, ModelMaker] = {"digit-cnn": make_digit_cnn}
CONVOLUTIONS: Mapping[str, ModelMaker] = {"small-cnn": make_small_cnn, "paper-cnn": make_paper_cnn}


def choose_vector_model(
    models: Mapping[str, VectorModel], name: str | None, task: str, inputs: int, outputs: int
) -> ModelMaker:
    """Return the maker of a named model, or of the first, for given inputs and outputs."""
    chosen = next(iter(models)) if name is None else name
    if chosen not in models:
        raise unknown_model(task, chosen, models)
    return partial(models[chosen], inputs, outputs)


def choose_image_model(
    convolutions: Mapping[str, ModelMaker],
    name: str,
    task: str,
    image: tuple[int, ...],
    outputs: int,
) -> tuple[ModelMaker, tuple[int, ...]]:
    """Return the maker of a named model, and the shape in which it takes an image."""
    if name in convolutions:
        return convolutions[name], image
    if name not in DIGIT_MODELS:
        raise unknown_model(task, name, convolutions, DIGIT_MODELS)
    pixels = prod(image)
    return partial(DIGIT_MODELS[name], pixels, outputs), (pixels,)


def unknown_model(task: str, name: str, *models: Mapping[str, object]) -> InvalidInput:
    """Return the error for a model that a task does not have."""
    names = [known for some in models for known in some]
    allowed = f"{', '.join(names[:-1])} or {names[-1]}"
    return InvalidInput(f"[data] model must be {allowed} with task = {task}, got {name}")


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
    from covertfl.kernels.autograd.module import isolate_generator

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
