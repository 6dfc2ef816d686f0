"""The work that simulators of federations are compared on: models, data, and a client's pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from simulator_process import BATCH_SIZE, BATCHES, CLIENTS
from torch import nn
from torch.nn import functional

from covertfl.arrays import IntArray
from covertfl.kernels.autograd.module import describe_layout
from covertfl.kernels.choose import draw_weights
from covertfl.kernels.job import Examples, LocalOptimizer, Loss
from covertfl.kernels.weights import Vector
from covertfl.tasks.models import make_head, make_logistic, make_mlp

CLIENT_EXAMPLES = BATCHES * BATCH_SIZE
OPTIMIZER = LocalOptimizer(name="adam", lr=1e-3)
# With this seed no input of a ReLU lies so near 0 that rounding decides on which side it is.
SEED = 2


@dataclass(frozen=True)
class Model:
    """A model and the loss that it is trained with."""

    make: Callable[[int, int], nn.Module]
    inputs: int
    outputs: int
    loss: Loss

    def make_module(self) -> nn.Module:
        """The module, freshly initialised."""
        return self.make(self.inputs, self.outputs)

    def first_module(self) -> nn.Module:
        """The module with the weights that everybody begins with."""
        module = self.make_module()
        load_vector(module, draw_weights(self.make_module, seed=SEED))
        return module

    def compute_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean loss of a batch."""
        if self.loss == "binary":
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)
        return functional.cross_entropy(outputs, labels)


def make_still_head(inputs: int, outputs: int) -> nn.Module:
    """The head without its dropout, for comparing weights."""
    module = make_head(inputs, outputs)
    assert isinstance(module, nn.Sequential)
    return nn.Sequential(*(layer for layer in module if not isinstance(layer, nn.Dropout)))


MODELS = {
    "head": Model(make_head, 128, 1, "binary"),
    "logistic": Model(make_logistic, 784, 10, "multiclass"),
    "mlp": Model(make_mlp, 784, 10, "multiclass"),
    "still-head": Model(make_still_head, 128, 1, "binary"),
}


@cache
def make_examples(name: str) -> Examples:
    """Standard normal features with labels that a linear model can learn."""
    model, generator = MODELS[name], np.random.default_rng(SEED)
    shape = (CLIENTS * CLIENT_EXAMPLES, model.inputs)
    features = generator.standard_normal(shape, dtype=np.float32)
    scores = features @ generator.standard_normal((model.inputs, model.outputs), dtype=np.float32)
    if model.loss == "binary":
        return Examples(features, (scores[:, 0] > 0.0).astype(np.float32))
    return Examples(features, scores.argmax(axis=1).astype(np.int64))


def list_rows(client: int) -> IntArray:
    """Rows that a client holds."""
    return np.arange(client * CLIENT_EXAMPLES, (client + 1) * CLIENT_EXAMPLES)


@cache
def make_client_tensors(name: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and labels of a client."""
    examples, rows = make_examples(name), list_rows(client)
    return torch.from_numpy(examples.features[rows]), torch.from_numpy(examples.labels[rows])


def make_adam(parameters: object, **options: object) -> torch.optim.Optimizer:
    """Adam in its fused form, the fastest that PyTorch has on a processor."""
    settings = {"lr": OPTIMIZER.lr, **options}
    return torch.optim.Adam(parameters, fused=True, **settings)  # type: ignore[arg-type]


def train_client(module: nn.Module, name: str, client: int) -> None:
    """One pass of a client over its batches, with an optimiser of its own."""
    features, labels = make_client_tensors(name, client)
    optimizer = make_adam(module.parameters())
    module.train()
    for batch, classes in zip(
        torch.split(features, BATCH_SIZE), torch.split(labels, BATCH_SIZE), strict=True
    ):
        optimizer.zero_grad()
        torch.autograd.backward(MODELS[name].compute_loss(module(batch), classes))
        optimizer.step()


def load_vector(module: nn.Module, vector: Vector) -> None:
    """Give a module the weights of a vector."""
    parts = describe_layout(module).split(vector)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(parts[name]))


def read_vector(module: nn.Module) -> Vector:
    """The weights of a module as a vector."""
    parts = {name: value.detach().numpy() for name, value in module.named_parameters()}
    return describe_layout(module).join(parts)
