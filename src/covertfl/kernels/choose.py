"""The kernel for a model and a device, and a model's initial weights."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import nn

from covertfl.errors import InvalidInput
from covertfl.kernels.autograd.kernel import TorchKernel
from covertfl.kernels.autograd.module import (
    ModelFactory,
    describe_layout,
    isolate_generator,
    list_values,
)
from covertfl.kernels.cnn.cpu import CnnCpuKernel, fits_cpu_kernel
from covertfl.kernels.cnn.kernel import CnnKernel, fits_cnn_kernel
from covertfl.kernels.job import LocalKernel, LocalOptimizer, Loss, Vector
from covertfl.kernels.mlp import DropoutLayer, LinearLayer, MlpKernel, MlpLayer, RectifierLayer


def choose_kernel(
    make_model: ModelFactory, loss: Loss, optimizer: LocalOptimizer, device: str = "cpu"
) -> LocalKernel:
    """Return the fastest kernel for a model on a device (cpu or cuda).

    Convolutional networks on a GPU are trained with products of 16-bit floats (see `cnn.kernel`).
    """
    check_device(device)
    with isolate_generator():
        module = make_model()
    if device != "cpu" and fits_cnn_kernel(module) and find_spec("triton") is not None:
        return CnnKernel(make_model, loss, optimizer, device)
    layers = _list_layers(module) if device == "cpu" else None
    if layers is not None and _fits_mlp_kernel(layers, optimizer):
        return MlpKernel(describe_layout(module), layers, loss, optimizer)
    if device == "cpu" and fits_cpu_kernel(module, optimizer):
        return CnnCpuKernel(make_model, loss, optimizer)
    return TorchKernel(make_model, loss, optimizer, device)


def _list_layers(module: nn.Module) -> list[MlpLayer] | None:
    """Return the layers of a perceptron; None if the module is something else."""
    if type(module) is not nn.Sequential or len(set(module)) < len(module):
        return None
    layers: list[MlpLayer] = []
    for child in module:
        if type(child) is nn.Linear:
            has_bias = child.bias is not None
            layers.append(LinearLayer(child.in_features, child.out_features, has_bias))
        elif type(child) is nn.ReLU:
            layers.append(RectifierLayer())
        elif type(child) is nn.Dropout:
            layers.append(DropoutLayer(child.p))
        elif not (type(child) is nn.Flatten and child.start_dim == 1 and child.end_dim == -1):
            return None
    return layers


def _fits_mlp_kernel(layers: list[MlpLayer], optimizer: LocalOptimizer) -> bool:
    """Return whether `MlpKernel` can run the layers; its padded outputs need a positive eps."""
    rates = [layer.rate for layer in layers if isinstance(layer, DropoutLayer)]
    ends_linear = bool(layers) and isinstance(layers[-1], LinearLayer)
    return ends_linear and all(rate < 1.0 for rate in rates) and optimizer.eps > 0.0


def check_device(device: str) -> None:
    """Raise InvalidInput if a device is unknown or not available."""
    kind, _, number = device.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()):
        raise InvalidInput(f"device must be cpu or cuda, got {device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInput(f"device {device!r} is not available; use cpu")
    if kind == "cuda" and number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise InvalidInput(f"device {device!r} is not available; the last is cuda:{last}")


def draw_weights(make_model: ModelFactory, *, seed: int) -> Vector:
    """Return the weights of a freshly initialised model; torch's generator is left unchanged."""
    with isolate_generator():
        torch.default_generator.manual_seed(seed)
        module = make_model()
    describe_layout(module)
    parts = [np.ravel(values.detach().numpy()) for values in list_values(module)]
    return np.concatenate(parts).astype(np.float32)
