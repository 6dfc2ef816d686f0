"""The work on which simulators are compared: models, data, and a client's training pass."""

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
from covertfl.tasks.models import make_digit_cnn, make_head, make_logistic, make_mlp, make_small_cnn

CLIENT_EXAMPLES = BATCHES * BATCH_SIZE
OPTIMIZER = LocalOptimizer(name="adam", lr=1e-3)
# With this seed no input of a ReLU is so close to 0 that rounding decides its sign.
SEED = 2


@dataclass(frozen=True)
class Model:
    """A model, the shape of its examples, and its training loss."""

    make: Callable[[int, int], nn.Module]
    inputs: int
    outputs: int
    loss: Loss
    image: tuple[int, ...] | None = (
        None  # shape of an example of `inputs` numbers; None for (inputs,)
    )

    def make_module(self) -> nn.Module:
        """Return a freshly initialised module."""
        return self.make(self.inputs, self.outputs)

    def first_module(self) -> nn.Module:
        """Return the module with the initial weights that all simulators share."""
        module = self.make_module()
        load_vector(module, draw_weights(self.make_module, seed=SEED))
        return module

    def compute_loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        if self.loss == "binary":
            return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels)
        return functional.cross_entropy(outputs, labels)


def make_still_head(inputs: int, outputs: int) -> nn.Module:
    """Return the head without its dropout, for comparing weights."""
    module = make_head(inputs, outputs)
    assert isinstance(module, nn.Sequential)
    return nn.Sequential(*(layer for layer in module if not isinstance(layer, nn.Dropout)))


MODELS = {
    "head": Model(make_head, 128, 1, "binary"),
    "logistic": Model(make_logistic, 784, 10, "multiclass"),
    "mlp": Model(make_mlp, 784, 10, "multiclass"),
    "still-head": Model(make_still_head, 128, 1, "binary"),
    "digit-cnn": Model(lambda *_: make_digit_cnn(), 64, 10, "multiclass", (1, 8, 8)),
    "small-cnn": Model(lambda *_: make_small_cnn(), 784, 10, "multiclass", (1, 28, 28)),
}


@cache
def make_examples(name: str) -> Examples:
    """Return standard normal features with labels that a linear model can learn."""
    model, generator = MODELS[name], np.random.default_rng(SEED)
    shape = (CLIENTS * CLIENT_EXAMPLES, model.inputs)
    features = generator.standard_normal(shape, dtype=np.float32)
    scores = features @ generator.standard_normal((model.inputs, model.outputs), dtype=np.float32)
    features = features.reshape(len(features), *(model.image or (model.inputs,)))
    if model.loss == "binary":
        return Examples(features, (scores[:, 0] > 0.0).astype(np.float32))
    return Examples(features, scores.argmax(axis=1).astype(np.int64))


def list_rows(client: int) -> IntArray:
    """Return the rows that a client holds."""
    return np.arange(client * CLIENT_EXAMPLES, (client + 1) * CLIENT_EXAMPLES)


@cache
def make_client_tensors(name: str, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features and labels of a client."""
    examples, rows = make_examples(name), list_rows(client)
    return torch.from_numpy(examples.features[rows]), torch.from_numpy(examples.labels[rows])


def make_adam(parameters: object, **options: object) -> torch.optim.Optimizer:
    """Return fused Adam, the fastest that PyTorch has on a CPU."""
    settings = {"lr": OPTIMIZER.lr, **options}
    return torch.optim.Adam(parameters, fused=True, **settings)  # type: ignore[arg-type]


def train_client(module: nn.Module, name: str, client: int) -> None:
    """Train one pass over a client's batches, with a new optimizer."""
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
    """Copy the weights of a vector into a module."""
    parts = describe_layout(module).split(vector)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(parts[name]))


def read_vector(module: nn.Module) -> Vector:
    """Return the weights of a module as a vector."""
    parts = {name: value.detach().numpy() for name, value in module.named_parameters()}
    return describe_layout(module).join(parts)
